"""Prompts and conversations of a user's own, sent to an endpoint and through a gateway."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from servebench.contracts.emulation import EmulatedFaults
from servebench.testing.server import FakeServer, plain_server
from support.results import attached_study, run_of

SMALL = (
    *("load=quick", "load.warmup_requests=0", "load.hold_level=false", "load.concurrency=[2]", "load.self_check=never"),
    *("workload=dataset", "dataset=my.jsonl", "telemetry.enabled=false"),
)
TALK = [("system", "s"), ("user", "q1"), ("assistant", "a b c"), ("user", "q2"), ("assistant", "d e"), ("user", "q3")]
MESSAGES = [{"role": role, "content": text} for role, text in TALK]
ROWS = ({"messages": MESSAGES, "tools": [{"type": "function"}]}, {"prompt": "alone", "max_tokens": 9})
SECRET = "planted-0123456789-zq"


def write(folder, *rows, more=""):
    (folder / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + more)


@pytest.fixture
def point(tmp_path):
    return lambda: pd.read_csv(run_of(tmp_path) / "points.csv").iloc[0]


@pytest.mark.slow
@pytest.mark.parametrize("history", ["recorded", "real"])
def test_every_turn_is_sent(endpoint, run_main, tmp_path, history):
    """A user goes through a conversation, with its tools, the user's own fields, and the lengths of the data."""
    write(tmp_path, *ROWS)
    url, behaviour = endpoint(answer=None)
    own = (
        "workload.cache=as_is",
        f"workload.history={history}",
        "workload.body={chat_template_kwargs: {think: false}}",
    )
    run_main(*attached_study(url, *SMALL, *own, "workload.headers.x-team='a b'", "load.requests=4"), code=0)
    assert sum(head.get("x-team") == "a b" for head in behaviour.heads) == 4
    asked = [body for body in behaviour.seen if "chat_template_kwargs" in body]
    assert len(asked) == 4
    assert all(body["chat_template_kwargs"] == {"think": False} for body in asked)
    (alone,) = [body for body in asked if body["messages"][-1]["content"] == "alone"]
    assert (alone["max_tokens"], "tools" in alone) == (9, False)
    turns = sorted((body for body in asked if body is not alone), key=lambda body: len(body["messages"]))
    assert [len(body["messages"]) for body in turns] == [2, 4, 6]
    assert [body["tools"] for body in turns] == [[{"type": "function"}]] * 3
    assert turns[2]["max_tokens"] == 128
    if history == "recorded":
        assert turns[2]["messages"] == MESSAGES
    else:
        said = [turns[2]["messages"][place]["content"] for place in (2, 4)]
        assert said == [" word" * body["max_tokens"] for body in turns[:2]]
    requests = pd.read_parquet(run_of(tmp_path) / "requests.parquet").sort_values("request_id")
    sent = requests[requests.session_id.notna()]
    assert (sent.sent_ns.to_numpy()[1:] >= sent.ended_ns.to_numpy()[:-1]).all()


def test_a_broken_last_line_starts_nothing(run_main, tmp_path):
    write(tmp_path, *ROWS, more='{"prompt": "cut o')
    done = run_main(*attached_study("http://127.0.0.1:9/v1", *SMALL), code=2)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("servebench: ")]
    assert "servebench: dataset=my.jsonl:3: " in line
    assert not list(tmp_path.glob("outputs/*"))


@pytest.mark.slow
def test_what_the_data_does_not_say_is_said(endpoint, servebench, tmp_path):
    """Before the load: where the length of an answer is not that of the data."""
    write(tmp_path, *ROWS)
    done = servebench(*attached_study(endpoint()[0], *SMALL, "load.requests=4"), code=0)
    assert "1 of 4 requests" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("every", "verdict"), [(None, "doubtful"), (4, "void")])
def test_a_gateway(run_main, tmp_path, monkeypatch, point, every, verdict):
    """It wants a key in its own header, a header and a parameter, and refuses what is too much; no secret is stored."""
    monkeypatch.setenv("GATEWAY_KEY", SECRET)
    monkeypatch.setenv("GATEWAY_PASS", SECRET + "-pass")
    write(tmp_path, {"prompt": "some words " * 20, "max_tokens": 8})
    wanted = {"api-key": SECRET, "x-secret-key": SECRET + "-pass", "x-team": "a b", "?": "api-version=2024-10-21"}
    spec = replace(plain_server("m"), wanted=wanted, faults=EmulatedFaults(refuse_every=every))
    with FakeServer(spec) as server:
        words = [
            word for word in attached_study(server.base_url, *SMALL, "load.requests=40") if "model.name" not in word
        ]
        keys = ("launch.api_key_env=GATEWAY_KEY", "launch.api_key_header=api-key", "launch.headers.x-team='a b'")
        more = ("launch.headers_env.x-secret-key=GATEWAY_PASS", "launch.query.api-version=2024-10-21", "model.name=m")
        done = run_main(*words, *keys, *more)
    assert done.returncode == 0, done
    row = point()
    assert (row.requests_ok, row.requests_failed, row.requests_refused) == ((30, 10, 10) if every else (40, 0, 0))
    assert row.verdict == verdict
    assert ("rate_limited" in row.doubts) == bool(every)
    requests = pd.read_parquet(run_of(tmp_path) / "requests.parquet")
    assert set(requests.retry_after_s.dropna()) == ({2.0} if every else set())
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert kept == []
    launch = json.loads(next(tmp_path.glob("outputs/s/plan.json")).read_text())["runs"][0]["config"]["launch"]
    assert launch["headers_env"] == {"x-secret-key": "GATEWAY_PASS"}
    assert SECRET not in done.stdout + done.stderr
