"""What can be known of settings before an engine starts is said before it starts, and leaves no study behind."""

import shutil

import pytest

STUDY = (
    *(
        "engine=vllm",
        "launch=simulated",
        "gpu=h100",
        "model=llama-3.1-8b-instruct",
        "load=quick",
        "load.concurrency=[2]",
    ),
    *("load.until=null", "load.requests=20", "tracking=none", "quality=none"),
)
LATE = [
    (("workload=short", "load=replay", "load.concurrency=null"), "load=replay"),
    (("workload=long_context", "workload.input_tokens=50"), "workload.input_tokens=50"),
    (
        ("workload=summarization", "workload.input_tokens={kind: uniform, min: 40, max: 4000}"),
        "workload.input_tokens=40",
    ),
    (("workload=multi_turn", "workload.input_tokens=2"), "workload.input_tokens=2"),
    (("workload=multi_turn", "workload.system_tokens=2"), "workload.system_tokens=2"),
    (
        ("workload=agent_loop", "workload.result_tokens={kind: normal, mean: 64, stdev: 9, min: 2}"),
        "workload.result_tokens=2",
    ),
    (("workload=sharegpt", "workload.max_prompt_tokens=1"), "0 to 1 tokens"),
    (("workload=trace", "workload.max_input_tokens=1"), "workload.max_input_tokens=1"),
    (("workload=trace", "workload.path=empty.jsonl"), "workload.path=empty.jsonl"),
    (("load=replay", "load.concurrency=null", "load.replay.path=empty.jsonl"), "load.replay.path=empty.jsonl"),
    (("workload=mix", "workload.parts={}"), "workload.parts is empty"),
    (
        ("workload=mix", "workload.parts={long_context: {input_tokens: 50}}"),
        "workload.parts.long_context.input_tokens=50",
    ),
    (("workload.output_tokens=10000000",), "model.context_length"),
]
DISTRIBUTIONS = [
    ("workload=multi_turn", "workload.input_tokens={kind: lognormal, mean: 40, stdev: 60}"),
    ("workload=multi_turn", "workload.turns={kind: uniform, min: 1, max: 4}"),
    ("workload=agent_loop", "workload.result_tokens={kind: normal, mean: 64, stdev: 60}", "workload.output_tokens=1"),
    ("workload=summarization", "workload.input_tokens={kind: lognormal, mean: 400, stdev: 300}"),
    ("workload.output_tokens={kind: uniform, min: 8, max: 24}",),
    ("workload=multi_turn", "workload.adapters=[sql,chat,legal]", "workload.adapter_skew=1.0"),
    ("load.cancel_fraction=1", "load.cancel_after_s=0.03"),
    ("workload=agent_loop", "workload.tool_s=3600"),
    ("workload=rag_prefix", "workload.documents=100000"),
]


@pytest.mark.parametrize(("words", "said"), LATE)
def test_impossible_requests_are_told_before_the_start(run_main, tmp_path, words, said):
    (tmp_path / "empty.jsonl").write_text("")
    done = run_main(*STUDY, *words)
    assert done.returncode in (2, 3)
    (line,) = done.stderr.splitlines()
    assert said in line
    assert not list((tmp_path / "outputs").glob("*/study.json"))


@pytest.mark.parametrize("words", DISTRIBUTIONS)
def test_documented_forms_reach_the_last_screen(run_main, words):
    assert run_main(*STUDY, "workload=unique", *words).returncode == 0


def test_stored_runs_are_found_by_lists_and_before_they_start(run_main, tmp_path):
    assert (
        run_main("-m", "engine=vllm,sglang", *STUDY[1:], "workload=unique", "study.name=s", "study.starts=1").returncode
        == 0
    )
    assert "00_vllm_unique" in run_main("ls", "load.concurrency=[2]", "--json").stdout
    assert "00_vllm_unique" not in run_main("ls", "load.concurrency=[2,4]", "--json").stdout
    shutil.rmtree(tmp_path / "outputs" / "s" / "01_sglang_unique")
    assert run_main("show", "s/01_sglang_unique").returncode == 0
    assert run_main("show", "s/01").returncode == 0
    for command in ("compare", "recommend"):
        assert run_main(command, "s", "--varying", "engine.dtpe").returncode == 2
        assert run_main(command, "s", "--varying", "").returncode == 2


def test_a_point_with_fewer_requests_than_asked_says_so(run_main, tmp_path):
    words = [word for word in STUDY if not word.startswith(("load.until", "load.requests"))]
    asked = ("workload=unique", "load.min_requests=100000", "load.until=10%", "study.name=s")
    assert run_main(*words, *asked).returncode == 0
    (points,) = tmp_path.glob("outputs/s/*/points.csv")
    assert "not_precise" in points.read_text()
