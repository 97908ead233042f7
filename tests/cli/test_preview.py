"""What `--preview` shows."""

import json

import pytest

from servebench.cli.commands.run import print_previews
from servebench.registry.registry import build
from servebench.report.screens.preview import _lengths
from servebench.util.errors import ConfigError

WORKLOADS = (
    "agent_loop", "dataset", "long_context", "mix", "multi_turn", "rag_prefix", "sharegpt", "short", "structured_json",
    "summarization", "trace", "unique",
)  # fmt: skip
OF_ROWS = ("dataset", "sharegpt")
ATTACHED = ("engine=openai", "launch=attach", "launch.base_url=http://127.0.0.1:9/v1")


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_can_be_seen(name, capsys):
    short = {"long_context": ["workload.input_tokens=2000"], "dataset": ["dataset=builtin"]}.get(name, [])
    assert print_previews([*ATTACHED, f"workload={name}", "load.requests=12", *short], build([], set())) == 0
    shown = capsys.readouterr().out
    for said in (
        f"{name} for",
        "12 requests",
        "approximate",
        "row 1:" if name in OF_ROWS else "preview-",
        "input tokens",
        "output tokens",
        "workload.cache=cold" if name in OF_ROWS else "ideal prefix",
    ):
        assert said in shown


def test_each_once(capsys):
    words = ["-m", "workload=unique", "load.requests=3", "load.timeout_s=1,2", "workload.seed=1,2"]
    print_previews([*ATTACHED, *words], build([], set()))
    assert capsys.readouterr().out.count("unique for") == 2


def test_adapters_and_sessions_are_told(capsys):
    words = ["workload=multi_turn", "load.requests=12", "workload.adapters=[x]"]
    print_previews([*ATTACHED, *words], build([], set()))
    shown = capsys.readouterr().out
    assert "sessions: 3, of 4 requests" in shown
    assert "adapters: x 12" in shown


def test_own_rows_as_they_will_be_sent(tmp_path, monkeypatch, capsys):
    """Three rows, a conversation as a whole, each with its tokens, and the fields that go with it."""
    rows = [{"prompt": f"prompt {number}", "max_tokens": 7} for number in range(3)]
    talk = [("user", "first question"), ("assistant", "an answer"), ("user", "last question")]
    rows.append({"messages": [{"role": role, "content": text} for role, text in talk], "tools": [{"type": "function"}]})
    (tmp_path / "my.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    monkeypatch.chdir(tmp_path)
    words = ["workload=dataset", "dataset=my.jsonl", "load.requests=5", "workload.body={reasoning_effort: low}"]
    print_previews([*ATTACHED, *words], build([], set()))
    shown = capsys.readouterr().out
    assert shown.count("input tokens,") == 3
    assert shown.count("reasoning_effort") == 3
    assert "4 rows, 5 requests" in shown
    assert [shown.index(f"user: prompt {number}") for number in range(3)] == sorted(
        shown.index(f"user: prompt {number}") for number in range(3)
    )
    assert "ideal prefix" not in shown


def test_a_conversation_is_seen_with_its_last_turn(tmp_path, monkeypatch, capsys):
    talk = [("user", "first question"), ("assistant", "an answer"), ("user", "last question")]
    row = {"messages": [{"role": role, "content": text} for role, text in talk]}
    (tmp_path / "my.jsonl").write_text(json.dumps(row))
    monkeypatch.chdir(tmp_path)
    for history in ("recorded", "real"):
        words = ["workload=dataset", "dataset=my.jsonl", f"workload.history={history}", "workload.cache=as_is"]
        print_previews([*ATTACHED, *words], build([], set()))
        shown = capsys.readouterr().out
        assert "1 row, 2 requests; repeated" in shown
        assert [text in shown for _, text in talk] == [True] * 3
        assert "random characters" not in shown


def test_mistakes():
    with pytest.raises(ConfigError):
        print_previews([*ATTACHED, "workload.sed=1"], build([], set()))
    with pytest.raises(ConfigError, match=r"no\.csv"):
        print_previews([*ATTACHED, "workload=trace", "workload.path=no.csv"], build([], set()))


FILES = {
    "last.jsonl": '{"prompt": "a"}\n' * 2 + '{"prompt": "b',
    "empty.jsonl": "",
    "other.jsonl": '{"foo": 1}\n',
    "broken.jsonl": "{foo\n",
    "other.csv": "a,b\n1,2\n",
}

MISTAKES = (
    (["workload=dataset"], ["dataset=FILE"]),
    (["workload=dataset", "dataset=no.jsonl"], ["workload.dataset=no.jsonl", "no such file"]),
    (["workload=dataset", "dataset=last.jsonl"], ["workload.dataset=last.jsonl:3: "]),
    (["workload=dataset", "dataset=other.csv"], ["workload.dataset=other.csv:2: ", "a, b"]),
    (["workload=dataset", "dataset=other.jsonl", "workload.fields.prompt=bar"], ["other.jsonl:1: ", "'bar'"]),
    (
        ["workload=dataset", "dataset=other.jsonl", "+workload.fields.promt=bar"],
        ["workload.fields.promt", "workload.fields.prompt"],
    ),
    (["workload=short", "workload.body={stream: false}"], ["workload.body.stream"]),
    (["workload=short", "workload.headers={x-api-key: secret123}"], ["launch.headers_env.x-api-key"]),
    (["workload=sharegpt", "dataset=no.json"], ["workload.dataset=no.json"]),
    (["workload=sharegpt", "dataset=empty.jsonl"], ["workload.dataset=empty.jsonl"]),
    (["workload=sharegpt", "dataset=other.jsonl"], ["workload.dataset=other.jsonl", "foo"]),
    (["workload=sharegpt", "workload.dataset=broken.jsonl"], ["workload.dataset=broken.jsonl"]),
    (["workload=sharegpt", "workload.min_prompt_tokens=9999"], ["9999 tokens"]),
    (["workload=trace", "workload.path=other.csv"], ["workload.path=other.csv", "a, b"]),
    (["workload=trace", "workload.path=other.jsonl"], ["workload.path=other.jsonl, line 1"]),
    (["workload=structured_json", "workload.path=other.jsonl"], ["line 1", "'schema'"]),
    (["workload=structured_json", "workload.path=empty.jsonl"], ["workload.path=empty.jsonl"]),
    (["workload=mix", "workload.parts.unique.weight=-1"], ["workload.parts.unique.weight", "-1"]),
    (["workload=mix", "+workload.parts.unique.wait=1"], ["workload.parts.unique.wait", "unknown key"]),
    (["workload=mix", "workload.parts.unique.input_tokens=-3"], ["unique.input_tokens", "-3"]),
    (["workload=mix", "+workload.parts.uniq.weight=1"], ["workload.parts.uniq", "'uniq'"]),
    (["workload=rag_prefix", "workload.share=2"], ["workload.share", "2"]),
    (["workload=multi_turn", "workload.input_tokens=2"], ["workload.input_tokens=2"]),
    (["workload=multi_turn", "workload.history=reel"], ["workload.history", "'reel'"]),
    (["workload=agent_loop", "workload.enforce_calls=true"], ["enforce_calls"]),
    (["workload=summarization", "workload.input_tokens=20"], ["workload.input_tokens=20"]),
    (
        ["workload=unique", "workload.input_tokens=100000", "engine.max_model_len=2048"],
        ["workload.input_tokens=100000", "workload.output_tokens=32", "engine.max_model_len=2048"],
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "parts"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_mistakes_are_one_line_each(words, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        print_previews([*ATTACHED, *words], build([], set()))
    (line,) = str(caught.value).splitlines()
    assert all(part in line for part in parts)


def test_requests_that_are_too_long(capsys):
    print_previews([*ATTACHED, "workload=multi_turn", "load.requests=8", "engine.max_model_len=500"], build([], set()))
    shown = " ".join(capsys.readouterr().out.split())
    assert "of 8 requests" in shown
    assert "engine.max_model_len is 500" in shown


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([], "input tokens: none"),
        ([5, 5, 5], "input tokens: 5 each"),
        (list(range(101)), "input tokens: 0 to 100 (p10 10, p50 50, p90 90, mean 50)"),
    ],
)
def test_lengths(lengths, words):
    assert _lengths("input tokens", lengths) == words
