"""Metrics as engines print them, in the words that all share. The texts are what real engines answered, shortened."""

import pytest

from servebench.engine.adapters.sglang import METRICS as SGLANG
from servebench.engine.adapters.vllm import METRICS as VLLM
from servebench.telemetry.engine_metrics import parse_series, translate_names

VLLM_TEXT = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1024.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 512.0
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 4.0
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 4.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 0.5
"""

SGLANG_TEXT = b"""# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 1.0
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 300.0
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="device",model_name="m"} 100.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 20.0
"""

LLAMA_TEXT = b"""# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 70
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 30
"""

BOTH = "llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total"

TRT_TEXT = b"""[{"iter": 1, "kvCacheStats": {"usedNumBlocks": 1}},
 {"iter": 2, "numActiveRequests": 7, "kvCacheStats": {"usedNumBlocks": 9, "cacheHitRate": 0.5}, "name": "x", "on": true}]"""


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        (
            VLLM_TEXT,
            VLLM,
            {
                "requests_running": 5,
                "kv_cache_usage": 0.75,
                "prefix_cache_queries_tokens": 1024,
                "prefix_cache_hits_tokens": 512,
                "queue_time_s_sum": 0.5,
                "queue_time_s_count": 4,
            },
        ),
        (
            SGLANG_TEXT,
            SGLANG,
            {
                "requests_running": 1,
                "prefix_cache_queries_tokens": 300,
                "prompt_tokens": 300,
                "prefix_cache_hits_tokens": 120,
            },
        ),
        (
            LLAMA_TEXT,
            {"prompt_tokens": ("llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total",)},
            {"prompt_tokens": 100},
        ),
        (LLAMA_TEXT, {"prompt_tokens": ("absent", "llamacpp:prompt_tokens_total")}, {"prompt_tokens": 70}),
        (LLAMA_TEXT, {"prompt_tokens": ("absent + llamacpp:prompt_tokens_total",)}, {}),
        (TRT_TEXT, {"requests_running": ("numActiveRequests",)}, {"requests_running": 7}),
        (b"", VLLM, {}),
    ],
    ids=["vllm", "sglang", "sum", "second", "missing part", "json", "nothing"],
)
def test_translation(text, names, expected):
    assert {word: value for word, (_, value) in translate_names(list(parse_series(text)), names).items()} == expected


def test_json_is_the_last_iteration_by_path():
    assert list(parse_series(TRT_TEXT)) == [
        ("iter", "", 2),
        ("numActiveRequests", "", 7),
        ("kvCacheStats.usedNumBlocks", "", 9),
        ("kvCacheStats.cacheHitRate", "", 0.5),
    ]


@pytest.mark.parametrize("text", [b"<html>no</html>", b"[1, 2]", b"{not json"])
def test_what_is_no_metrics_raises_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        list(parse_series(text))


def test_what_is_no_number_is_left_out():
    """No share, sum or mean of it would be one."""
    assert [name for name, _, _ in parse_series(b"a 1\nb NaN\nc +Inf\nd 1e400\ne -Inf\n")] == ["a"]
