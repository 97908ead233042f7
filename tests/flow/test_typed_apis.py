"""One engine through several APIs: the same prompts, exact counts, and histories in the shape of each."""

import pandas as pd
import pytest

from servebench.protocol.kinds.table import KINDS
from support.results import attached_study, document, requests, run_of
from support.servers import ScriptedServer

CARD = ("launch=emulated", "launch.time_scale=0.002", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "tracking=none")
SMALL = ("load.concurrency=[4]", "load.requests=24", "load.warmup_requests=4", "load.hold_level=false", "study.name=s")
TYPED = ("responses", "messages")


@pytest.mark.slow
def test_one_engine_through_three_apis(servebench, tmp_path):
    """Each as its own server counts; an exact length where it can be asked for."""
    words = ("workload=unique", "workload.output_tokens=16", "workload.exact_output=true", "study.starts=1")
    servebench("-m", "engine=vllm", f"workload.api=chat,{','.join(TYPED)}", *words, *CARD, *SMALL, code=0)
    runs = {
        document(path)["config"]["workload"]["api"]: path.parent for path in tmp_path.glob("outputs/*/*/manifest.json")
    }
    assert set(runs) == {"chat", *TYPED}
    for api, run in runs.items():
        sent = requests(run)
        assert (set(sent.outcome), set(sent.counted_by), len(sent)) == ({"ok"}, {"usage"}, 24)
        point = pd.read_csv(run / "points.csv").iloc[0]
        assert (point.output_tokens_mean == 16) or api == "messages"
        # counted by events and by the engine
        assert sent.output_tokens.sum() == sent.event_ns.str.len().sum()
        assert point.ttft_ms_p50 > 0


@pytest.mark.slow
@pytest.mark.parametrize("api", TYPED)
def test_a_conversation_goes_on_with_what_was_answered(api, servebench, tmp_path):
    """Real history, and the engine finds it in its cache: the turns are those that it has written."""
    words = (
        "workload=multi_turn",
        "workload.output_tokens=32",
        "quality=parity",
        "quality.items=3",
        f"quality.api={api}",
    )
    servebench("engine=vllm", f"workload.api={api}", *words, *CARD, *SMALL, code=0)
    point = pd.read_csv(run_of(tmp_path) / "points.csv").iloc[0]
    assert (point.requests_ok, point.requests_failed) == (24, 0)
    assert abs(point.prefix_cache_hit_rate - point.prefix_cache_hit_rate_ideal) < 0.1
    graded = pd.read_parquet(run_of(tmp_path) / "quality.parquet")
    assert set(graded.outcome) == {"ok"}


@pytest.mark.parametrize(("own", "version"), [((), "2023-06-01"), (("workload.headers.anthropic-version=x",), "x")])
def test_what_anthropics_server_needs_is_sent(own, version, run_main, monkeypatch):
    """The version of the API, unless the user sets one, and the key in its header."""
    seen = []

    def serve(connection, request):
        if request.method == "GET":
            return (200, {"data": [{"id": "tiny"}]}) if request.path == "/v1/models" else (404, {})
        seen.append(dict(request.headers))
        text = {"type": "text", "text": "Yes"}
        usage = {"input_tokens": 8, "output_tokens": 1}
        return 200, {"type": "message", "content": [text], "stop_reason": "end_turn", "usage": usage}

    monkeypatch.setenv("A_KEY", "planted-key-123456")
    server = ScriptedServer(serve)
    try:
        key = ("launch.api_key_env=A_KEY", "launch.api_key_header=x-api-key")
        load = (
            "workload=unique",
            "workload.api=messages",
            "load.concurrency=[2]",
            "load.requests=6",
            "load.warmup_requests=0",
        )
        run_main(*attached_study(server.base_url, *load, *key, *own), code=0)
    finally:
        server.close()
    assert {one["x-api-key"] for one in seen} == {"planted-key-123456"}
    # the first request asks whether it answers
    assert {one["anthropic-version"] for one in seen[1:]} == {version}
    assert seen[0]["anthropic-version"] == "2023-06-01"


def test_the_kinds_are_in_the_table():
    """With what they cannot be asked."""
    assert set(TYPED) < set(KINDS)
    assert [name for name, kind in KINDS.items() if kind.answers_text and not kind.exact_length] == ["messages"]
