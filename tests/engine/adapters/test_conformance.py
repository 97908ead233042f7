"""The built-in engines, checked by the suite that plugins run."""

import json
from dataclasses import replace
from pathlib import Path
from urllib.request import proxy_bypass_environment

import pytest

from servebench.contracts.engine import ServerTimings
from servebench.contracts.settings import ModelSettings
from servebench.engine.adapters import sglang, vllm
from servebench.engine.adapters.openai import OpenAiEngine
from servebench.engine.adapters.sglang import SglangEngine
from servebench.engine.adapters.trtllm import TrtllmEngine, kept_timings, llm_options
from servebench.engine.adapters.vllm import VllmEngine
from servebench.testing import EngineConformance
from support.records import record_ms


class TestVllm(EngineConformance):
    """The lines are those of a real start of 0.32 on a CPU, and of its sources where only a GPU says them."""

    engine = VllmEngine
    program = "vllm"
    sample_log = (
        "INFO 11-01 10:00:00 [utils.py:1] non-default args: {'model': '/models/model'}",
        "INFO 11-01 10:00:10 [default_loader.py:1] Loading weights took 0.32 seconds",
        "INFO 11-01 10:00:20 [monitor.py:1] torch.compile takes 8.10 s in total",
        "INFO 11-01 10:00:30 [gpu_model_runner.py:1] Graph capturing finished in 11 secs, took 0.60 GiB",
        "INFO 11-01 10:00:31 [core.py:1] init engine (profile, create kv cache, warmup model) took 20.10 seconds",
    )
    failures = {
        "out_of_memory": "ValueError: No available memory for the cache blocks.",
        "model_missing": "OSError: none is not a local folder and is not a valid model identifier listed on the hub",
        "unknown_flag": "vllm: error: unrecognized arguments: --no-such-flag",
        "wrong_cuda": "RuntimeError: Failed to infer device type",
        "port_in_use": "OSError: [Errno 98] Address already in use",
        "other": "ValueError: OpenTelemetry is not available. Unable to configure 'otlp_traces_endpoint'.",
    }


class TestSglang(EngineConformance):
    """The lines are those of a real start of 0.5.23 on a CPU, and of its sources where only a GPU says them."""

    engine = SglangEngine
    program = "sglang"
    rejection = "event"
    own_defaults = {"prefix_caching": True}
    sample_log = (
        "[2026-11-01 10:00:00] Load weight begin. avail mem=20.00 GB",
        "[2026-11-01 10:00:05] Load weight end. elapsed=5.00 s, type=LlamaForCausalLM",
        "[2026-11-01 10:00:10] Capture cuda graph end. Time elapsed: 5.00 s.",
        "[2026-11-01 10:00:11] max_total_num_tokens=32768, chunked_prefill_size=8192",
        "[2026-11-01 10:00:12] The server is fired up and ready to roll!",
    )
    failures = {
        "out_of_memory": "torch.OutOfMemoryError: CUDA out of memory.",
        "model_missing": "OSError: none is not a local folder and is not a valid model identifier listed on the hub",
        "unknown_flag": "sglang serve: error: unrecognized arguments: --no-such-flag",
        "wrong_cuda": "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "port_in_use": "[Errno 98] error while attempting to bind on address: address already in use",
        "other": "RuntimeError: opentelemetry package is not installed!!! Please not enable tracing or install opentelemetry",
    }


class TestTrtllm(EngineConformance):
    """The lines are those of its sources (1.2)."""

    engine = TrtllmEngine
    program = "trtllm-serve"
    known_fields = (
        "model", "messages", "prompt", "max_tokens", "temperature", "stream", "stream_options", "seed", "ignore_eos",
        "response_format",
    )  # fmt: skip
    failures = {
        "out_of_memory": "torch.OutOfMemoryError: CUDA out of memory.",
        "model_missing": "OSError: none is not a local folder and is not a valid model identifier listed on the hub",
        "unknown_flag": "Error: No such option: --no-such-flag",
        "wrong_cuda": "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
        "other": "ImportError: libmpi.so.40: cannot open shared object file: No such file or directory",
    }


class TestOpenAi(EngineConformance):
    """It starts nothing: its dialect is all it has."""

    engine = OpenAiEngine
    model = ModelSettings(name="model")


def published(name):
    flags = json.loads((Path(__file__).parent / "data" / f"{name}_flags.json").read_text())["flags"]
    return set(flags)


@pytest.mark.parametrize(("engine", "table"), [(VllmEngine, vllm.FLAGS), (SglangEngine, sglang.FLAGS)])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_every_flag_is_among_the_published_ones(engine, table, prefix_caching, tmp_path):
    suite = TestVllm() if engine is VllmEngine else TestSglang()
    everything = dict.fromkeys(table.flags, 1) | {"dtype": "bfloat16", "quantization": "awq"}
    model = ModelSettings(name="org/model", revision="main")
    argv, _ = suite.composed(suite.context(tmp_path, model=model, prefix_caching=prefix_caching, **everything))
    flags = {word for word in argv if word.startswith("--")}
    assert len(flags) >= 13
    assert flags <= published(engine.name)


@pytest.mark.parametrize(
    ("engine", "answer", "timings"),
    [
        # the final chunk of vllm 0.32 (CPU), with --enable-per-request-metrics
        (
            VllmEngine,
            {"usage": {"prompt_tokens": 5}, "metrics": {"time_to_first_token_ms": 61.5, "generation_time_ms": 300.25,
                                                        "queue_time_ms": 0.5, "mean_itl_ms": 20.0}},
            ServerTimings(queue_ms=0.5, prefill_ms=61.5, decode_ms=300.25),
        ),
        (VllmEngine, {"metrics": {"queue_time_ms": None, "generation_time_ms": "x"}}, ServerTimings()),
        (VllmEngine, {"metrics": [1]}, ServerTimings()),
        (VllmEngine, {"metrics": {"queue_time_ms": -1.0, "generation_time_ms": 1e300}}, ServerTimings()),
        (OpenAiEngine, {"metrics": {"queue_time_ms": 2}}, ServerTimings(queue_ms=2.0)),
        # Dynamo's nvext.timing
        (
            OpenAiEngine,
            {"nvext": {"timing": {"prefill_wait_time_ms": 12.0, "prefill_time_ms": 70.5, "ttft_ms": 82.5,
                                  "total_time_ms": 1000.0, "kv_transfer_estimated_latency_ms": 4.25}}},
            ServerTimings(queue_ms=12.0, prefill_ms=70.5, kv_transfer_ms=4.25, decode_ms=917.5, e2e_ms=1000.0),
        ),
        (OpenAiEngine, {"nvext": {}}, ServerTimings()),
    ],
)  # fmt: skip
def test_request_timings(engine, answer, timings):
    assert engine().request_timings(answer, {}) == timings


def test_request_timings_can_be_turned_off(tmp_path):
    """By the setting, and where another argument excludes them."""
    flag, suite = VllmEngine.timings_flag, TestVllm()
    assert flag in suite.composed(suite.context(tmp_path))[0]
    assert flag not in suite.composed(suite.context(tmp_path, request_timings=False))[0]
    assert flag not in suite.composed(suite.context(tmp_path, extra_args={"disable-log-stats": True}))[0]


@pytest.mark.parametrize(("suite", "engine"), [(TestVllm, VllmEngine), (TestSglang, SglangEngine)])
def test_a_traced_engine_sends_its_spans_over_http(suite, engine, tmp_path):
    """Flags are published ones; without spans nothing of it is in the command."""
    endpoint = "http://127.0.0.1:4318/v1/traces"
    argv, env = suite().composed(replace(suite().context(tmp_path), spans_endpoint=endpoint))
    assert argv[argv.index("--otlp-traces-endpoint") + 1] == endpoint
    assert {word for word in argv if word.startswith("--")} <= published(engine.name)
    assert env["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"
    assert env["OTEL_BSP_SCHEDULE_DELAY"] == "1000"
    plain, variables = suite().composed(suite().context(tmp_path))
    assert not {"--otlp-traces-endpoint", "--enable-trace"} & set(plain)
    assert not any(name.startswith("OTEL_") for name in variables)


@pytest.mark.parametrize(
    ("variables", "own", "spared"),
    [
        ({}, {}, None),
        ({"NO_PROXY": "a"}, {}, None),
        ({"HTTP_PROXY": "http://p:1"}, {}, "127.0.0.1"),
        ({"all_proxy": "http://p:1", "NO_PROXY": "a, b"}, {}, "a,b,127.0.0.1"),
        ({"http_proxy": "http://p:1", "NO_PROXY": "a", "no_proxy": "127.0.0.1,c"}, {}, "127.0.0.1,c"),
        ({}, {"HTTP_PROXY": "http://p:1", "NO_PROXY": "a"}, "a,127.0.0.1"),
    ],
)
def test_spans_do_not_go_to_a_proxy(variables, own, spared, tmp_path, monkeypatch):
    """Exporters obey the proxy of the environment, for 127.0.0.1 too; what the user leaves out of it stays so."""
    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    context = replace(TestVllm().context(tmp_path, env=own), spans_endpoint="http://127.0.0.1:4318/v1/traces")
    _, env = TestVllm().composed(context)
    assert env.get("no_proxy") == spared
    assert spared is None or proxy_bypass_environment("127.0.0.1:4318", {"no": env["no_proxy"]})
    assert env.get("NO_PROXY") == own.get("NO_PROXY", spared)


LINE = {
    "request_parameters": "{}", "id": "a", "queue_time": 0.5, "forward_entry_time": 1000.5, "prefill_finished_time": 1000.75,
    "request_finished_ts": 1002.75, "request_received_ts": 999.75,
}  # fmt: skip


def test_the_file_of_sglang_is_read_and_emptied(tmp_path):
    """What others, or a broken server, put there is left out."""
    context = TestSglang().context(tmp_path, request_timings="after_load")
    argv, _ = TestSglang().composed(context)
    assert argv[-3:] == ("--export-metrics-to-file", "--export-metrics-to-file-dir", str(context.kept_folder))
    assert set(argv[-3:-1]) <= published("sglang")
    context.kept_folder.mkdir(parents=True)
    path = context.kept_folder / "sglang-request-metrics-20261101_10.log"
    odd = [
        {**LINE, "id": 1},
        {**LINE, "id": "b", "queue_time": -1, "forward_entry_time": None, "request_finished_ts": 1e308},
    ]
    lines = [json.dumps(one).encode() for one in (LINE, *odd, [], None)]
    path.write_bytes(b"\n".join([b"junk", b"\xff{", b"[" * 9999, *lines, lines[0][:20]]))
    (context.kept_folder / "sglang-request-metrics-x.log").mkdir()
    kept = SglangEngine().timings_after_load(context, None)
    assert kept == {
        "a": ServerTimings(queue_ms=500.0, prefill_ms=250.0, decode_ms=2000.0, e2e_ms=3000.0),
        "b": ServerTimings(),
    }
    with path.open("ab") as file:
        file.write(lines[0][20:].replace(b'"a"', b'"c"') + b"\n")
    assert set(SglangEngine().timings_after_load(context, None)) == {"a", "b", "c"}, (
        "not emptied before its last line was whole"
    )
    assert SglangEngine().timings_after_load(context, None) == {}


def test_a_large_file_of_sglang_is_read_line_by_line(tmp_path, monkeypatch):
    """Its lines have the whole prompt, as text and as ids. One that is too long is left out."""
    monkeypatch.setattr(sglang, "LINE_BYTES_MAX", 1000)
    context = TestSglang().context(tmp_path, request_timings="after_load")
    context.kept_folder.mkdir(parents=True)
    lines = [json.dumps({**LINE, "id": name, "request_parameters": "x" * size}) for name, size in
             (("a", 10), ("long", 5000), ("b", 600))]  # fmt: skip
    path = context.kept_folder / "sglang-request-metrics-20261101_10.log"
    path.write_text("\n".join(lines) + "\n")
    (context.kept_folder / "sglang-request-metrics-20261101_11.log").write_text(
        lines[0].replace('"a"', '"next hour"') + "\n"
    )
    assert set(SglangEngine().timings_after_load(context, None)) == {"a", "b", "next hour"}
    assert path.stat().st_size == 0


@pytest.mark.parametrize(
    "item",
    [
        {}, {"perf_metrics": 1}, {"perf_metrics": {"timing_metrics": [1]}},
        {"perf_metrics": {"timing_metrics": {"arrival_time": "x", "first_scheduled_time": 1.0, "first_token_time": 0.5,
                                             "last_token_time": 10**400}}},
    ],
)  # fmt: skip
def test_an_odd_item_of_trtllm_says_nothing(item):
    assert kept_timings(item) == ServerTimings()


def test_trtllm_keeps_times_only_if_asked():
    plain = llm_options(TrtllmEngine.settings_type(name="trtllm"))
    kept = llm_options(TrtllmEngine.settings_type(name="trtllm", request_timings="after_load"))
    assert kept == {**plain, "perf_metrics_max_requests": 100_000}


@pytest.mark.parametrize(("residual_ms", "words"), [(-5.0, "longer"), (160.0, "no time"), (None, "finds nothing")])
def test_the_suite_notices_timings_that_do_not_fit(residual_ms, words):
    """Too long, of another unit, or not read at all."""
    answer = record_ms(0, [1, 1000], residual_ms=residual_ms)
    with pytest.raises(AssertionError, match=words):
        TestVllm().check_timings(answer, lambda: answer, real=False)
