"""Result files that the real tools wrote (vLLM 0.33, SGLang, GuideLLM 0.8, AIPerf) become foreign runs, marked so."""

import json
from pathlib import Path

import pytest

from servebench.cli.main import dispatch
from servebench.foreign.readers import READERS, read_foreign
from servebench.store import studies as read
from servebench.util.errors import ConfigError

FILES = Path(__file__).parent / "files"


def run_of(capsys, *words):
    assert dispatch(["import", *[str(word) for word in words]]) == 0
    return read.load_study(Path(capsys.readouterr().out.strip()))


@pytest.mark.parametrize(
    ("name", "tool", "level", "expected"),
    [
        ("vllm_bench.json", "vllm", 4, {"ttft_ms_mean": 41.2842, "ttft_ms_p99": 54.8717, "e2e_ms_p50": 142.1162,
                                        "output_throughput_tok_s": 324.2357, "output_tokens_mean": 12.0}),
        ("sglang_bench.jsonl", "sglang", 4, {"ttft_ms_p50": 42.3187, "tpot_ms_mean": 11.2089, "e2e_ms_p99": 176.8466,
                                             "itl_ms_p95": 16.5363, "output_throughput_tok_s": 244.4727}),
        ("guidellm.json", "guidellm", 1, {"ttft_ms_mean": 38.1855, "e2e_ms_mean": 122.3862, "requests_ok": 12,
                                          "output_throughput_tok_s": 92.1121, "tpot_ms_mean": 6.7799}),
        ("aiperf.json", "aiperf", 2, {"requests_ok": 20, "output_tokens_mean": 13.0}),  # its own tokenizer counts one more
    ],
)  # fmt: skip
def test_files_of_the_real_tools_become_foreign_runs(tmp_path, capsys, name, tool, level, expected):
    run = run_of(capsys, FILES / name, "--outputs", tmp_path).runs[0]
    assert (run.foreign, run.status, run.faults) == (tool, "finished", ())
    row = run.point_rows[0]
    assert row["concurrency"] == level
    for column, value in expected.items():
        assert row[column] == pytest.approx(value, rel=1e-4), column
    assert 0 < row["ttft_ms_p50"] < row["e2e_ms_p50"]
    assert (row["verdict"], list(row["doubts"])) == ("doubtful", ["foreign"])


def guidellm_block(*values):
    """What GuideLLM writes of these values; of none, zeros and a count of 0."""
    mean = sum(values) / len(values) if values else 0.0
    percentiles = dict.fromkeys(("p50", "p90", "p95", "p99"), mean)
    shown = {"mean": mean, "median": mean, "min": mean, "max": mean, "count": len(values), "percentiles": percentiles}
    return {"successful": shown}


def guidellm_file(requests, prompt, output, first, gaps):
    metrics = {
        "request_totals": {"successful": requests, "errored": 1, "incomplete": 0, "total": requests + 1},
        "requests_per_second": guidellm_block(4.0),
        "request_latency": guidellm_block(0.25),
        "prompt_token_count": guidellm_block(prompt),
        "output_token_count": guidellm_block(*output),
        "time_to_first_token_ms": guidellm_block(*first),
        "inter_token_latency_ms": guidellm_block(*gaps),
        "output_tokens_per_second": guidellm_block(4.0 * sum(output)),
    }
    config = {"strategy": {"type_": "concurrent", "streams": 2}, "backend": {"model": "m"}}
    return {"metadata": {"version": 2}, "benchmarks": [{"config": config, "metrics": metrics, "duration": 10.0}]}


def aiperf_file(kind, **metrics):
    """A file of AIPerf, in which metrics that an endpoint of this type does not have are missing."""
    known = {
        "request_latency": {"unit": "ms", "avg": 250.0, "p50": 240.0, "p99": 300.0, "count": 40},
        "request_throughput": {"unit": "requests/sec", "avg": 4.0},
        "request_count": {"unit": "requests", "avg": 40.0},
        "input_sequence_length": {"unit": "tokens", "avg": 100.0},
    }
    config = {
        "models": {"items": [{"name": "m"}]},
        "endpoint": {"type": kind},
        "phases": [{"type": "concurrency", "concurrency": 2}],
    }
    return {"schema_version": "1.4", **known, **metrics, "input_config": config}


VLLM_EMBEDDINGS = {
    "model_id": "m", "backend": "openai-embeddings", "num_prompts": 41, "max_concurrency": 2, "request_rate": "inf",
    "duration": 10.0, "completed": 40, "failed": 1, "total_input_tokens": 4000, "request_throughput": 4.0,
    "mean_e2el_ms": 250.0, "median_e2el_ms": 250.0, "p99_e2el_ms": 250.0,
}  # fmt: skip
TURNS = {
    "time_to_first_token": {"unit": "ms", "avg": 50.0, "count": 40},
    "inter_token_latency": {"unit": "ms", "avg": 10.0, "count": 40},
    "output_sequence_length": {"unit": "tokens", "avg": 20.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 80.0},
    "session_count": {"unit": "sessions", "avg": 10.0},
}


@pytest.mark.parametrize(
    ("document", "tool", "streams"),
    [
        (guidellm_file(40, 100, (), (), ()), "guidellm", False),
        (guidellm_file(40, 100, (20,), (50.0,), (10.0,)), "guidellm", True),
        (aiperf_file("embeddings"), "aiperf", False),
        (aiperf_file("nim_rankings"), "aiperf", False),
        (aiperf_file("chat", **TURNS), "aiperf", True),
        (VLLM_EMBEDDINGS, "vllm", False),
    ],
    ids=[
        "guidellm-embeddings",
        "guidellm-turns",
        "aiperf-embeddings",
        "aiperf-rerank",
        "aiperf-turns",
        "vllm-embeddings",
    ],
)
def test_kinds_without_a_stream_have_no_columns_of_one(tmp_path, capsys, document, tool, streams):
    """Embeddings and rerank have a latency and a rate, and nothing of tokens that nobody generated, not even zeros."""
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    run = run_of(capsys, path, "--outputs", tmp_path / "o").runs[0]
    assert (run.foreign, run.fact("model"), run.faults) == (tool, "m", ())
    row = run.point_rows[0]
    assert (row.concurrency, row.requests_ok, row.request_throughput_req_s) == (2, 40, 4.0)
    assert (row.e2e_ms_mean, row.input_tokens_mean) == (250.0, 100.0)
    expected = (50.0, 10.0, 20.0, 80.0) if streams else (None,) * 4
    assert (row.ttft_ms_mean, row.tpot_ms_mean, row.output_tokens_mean, row.output_throughput_tok_s) == expected
    assert row.input_throughput_tok_s == (None if streams else 400.0)
    assert dispatch(["report", "--outputs", str(tmp_path / "o"), run.study_id]) == 0


def test_a_sweep_in_one_file_is_a_run_of_several_points(tmp_path, capsys):
    run = run_of(capsys, FILES / "guidellm.json", "--outputs", tmp_path).runs[0]
    assert [row.concurrency for row in run.point_rows] == [1, 3]
    assert run.fact("model") == "smollm2"


def test_where_nothing_got_through_no_latency_is_known(tmp_path, capsys):
    """vLLM's own file says 0 ms; a latency of zero would win every comparison."""
    run = run_of(capsys, FILES / "vllm_bench_failed.json", "--outputs", tmp_path).runs[0]
    row = run.point_rows[0]
    assert (row["requests_ok"], row["requests_failed"]) == (0, 12)
    assert (row.ttft_ms_p50, row.tpot_ms_mean, row.itl_ms_p99, row.e2e_ms_p99) == (None,) * 4


def test_files_of_one_tool_and_model_are_one_run(tmp_path, capsys):
    other = json.loads((FILES / "vllm_bench.json").read_text()) | {"max_concurrency": 1}
    (tmp_path / "one.json").write_text(json.dumps(other))
    words = (FILES / "vllm_bench.json", tmp_path / "one.json", "--engine", "vllm", "--model", "m")
    (run,) = run_of(capsys, *words, "--outputs", tmp_path / "o").runs
    assert [row.concurrency for row in run.point_rows] == [1, 4]
    assert (run.fact("engine"), run.fact("model")) == ("vllm", "m")


def test_what_a_file_does_not_tell_is_missing_and_not_zero(tmp_path, capsys):
    row = run_of(capsys, FILES / "vllm_bench.json", "--outputs", tmp_path).runs[0].point_rows[0]
    assert (row.lateness_ms_p99, row.goodput_req_s) == (None, None)


def test_foreign_runs_are_shown_compared_and_reported_as_such(tmp_path, capsys):
    run_of(capsys, FILES / "vllm_bench.json", FILES / "sglang_bench.jsonl", "--outputs", tmp_path, "--name", "f",
           "--model", "m", "--workload", "random")  # fmt: skip
    outputs = ["--outputs", str(tmp_path)]
    assert dispatch(["ls", *outputs, "tool=vllm"]) == 0
    assert "(vllm)" in capsys.readouterr().out
    assert dispatch(["report", *outputs, "f"]) == 0
    page = (tmp_path / "f" / "report.html").read_text()
    assert "measured by: vllm" in page
    assert "measured by another tool" in page
    assert dispatch(["compare", *outputs, "f", "--with-doubtful"]) == 0
    assert "foreign.tool" in capsys.readouterr().out
    assert dispatch(["recommend", *outputs, "f"]) == 0
    with pytest.raises(ConfigError, match="no successful requests"):
        dispatch(["report", *outputs, "f", "--as", "vllm"])


def test_the_numbers_of_two_foreign_runs_stand_in_their_comparison(tmp_path, capsys):
    """They have no single requests, so there is no verdict; the numbers are those of `ls`."""
    run_of(capsys, FILES / "vllm_bench.json", FILES / "sglang_bench.jsonl", "--outputs", tmp_path, "--name", "f",
           "--model", "m", "--workload", "short")  # fmt: skip
    outputs = ["--outputs", str(tmp_path)]
    assert dispatch(["ls", *outputs, "--json"]) == 0
    known = {one["best_output_throughput_tok_s"] for one in json.loads(capsys.readouterr().out)}
    for words in ([], ["--varying", "foreign.*,input_tokens_mean,output_tokens_mean"]):
        dispatch(["compare", *outputs, "f", "--with-doubtful", "--json", *words])
        (found,) = json.loads(capsys.readouterr().out)["comparisons"]
        rows = {row["metric"]: row for row in found["rows"]}
        assert {rows["output_throughput_tok_s"][side] for side in ("baseline", "candidate")} == known
        assert {row["effect"] for row in rows.values()} == {None}
        assert {row["result"] for row in rows.values()} <= {"not enough data", "unequal_settings"}
    assert dispatch(["recommend", *outputs, "f"]) == 0
    assert "0 requests" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("not json", "is not valid JSON"),
        ("{}", "is not a known result file of guidellm, aiperf"),
        ("[]", "contains no JSON object"),
        ('{"benchmarks": []}', "contains no result of guidellm"),
    ],
)
def test_a_file_that_is_none_is_told_in_one_line(tmp_path, text, told):
    path = tmp_path / "f.json"
    path.write_text(text)
    if told is None:
        assert read_foreign(path).points[0] == {}
        return
    with pytest.raises(ConfigError, match=told):
        read_foreign(path)


def test_a_missing_file_and_an_unknown_tool_are_told(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: no such file"):
        read_foreign(tmp_path / "no.json")
    with pytest.raises(ConfigError, match=r"--tool must be one of .*\(got jmeter\)"):
        read_foreign(FILES / "vllm_bench.json", "jmeter")
    with pytest.raises(ConfigError, match="is not a known result file of guidellm"):
        read_foreign(FILES / "vllm_bench.json", "guidellm")
    assert set(READERS) == {"vllm", "sglang", "guidellm", "aiperf"}


def test_a_file_that_is_named_twice_is_refused(tmp_path, capsys):
    copy = tmp_path / "copy.json"
    copy.write_bytes((FILES / "vllm_bench.json").read_bytes())
    with pytest.raises(ConfigError, match="same content"):
        dispatch(["import", str(FILES / "vllm_bench.json"), str(copy), "--outputs", str(tmp_path / "outputs")])
    assert not (tmp_path / "outputs").exists()
