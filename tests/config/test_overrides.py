import pytest

from servebench.config.overrides import parse_arguments


def test_words_are_sorted():
    words = parse_arguments(["a=1", "-m", "-cd", "x", "b=2", "--config-dir=y", "-cn", "mine.yaml"])
    assert words.overrides == ["a=1", "b=2"]
    assert words.multirun
    assert words.config_dirs == ["x", "y"]
    assert words.config_name == "mine"
    assert words.problems == []


def test_a_value_may_begin_with_the_home_folder(monkeypatch):
    """No shell expands it after a name with a dot, and Hydra cannot read it."""
    monkeypatch.setenv("HOME", "/home/me")
    words = parse_arguments(["model.path=~/m", "+workload.path=~/a/~/b.jsonl", "~engine.port", "a=b~/c", "a=~me/x"])
    assert words.overrides == [
        "model.path=/home/me/m",
        "+workload.path=/home/me/a/~/b.jsonl",
        "~engine.port",
        "a=b~/c",
        "a=~me/x",
    ]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--multi-run"], "--multi-run: unknown option; did you mean '--multirun'?"),
        (["--config-dir"], "--config-dir needs a value"),
        (
            ["--config-path", "x"],
            "--config-path: the built-in config folder cannot be replaced; add a folder with --config-dir DIR",
        ),
        (["--zzz"], "--zzz: unknown option; run 'servebench help' to list options"),
        (["--model", "x"], "--model: unknown option; settings have no dashes: model=x"),
        (["--load.rate=4"], "--load.rate: unknown option; settings have no dashes: load.rate=4"),
        (["--engine=vllm"], "--engine: unknown option; settings have no dashes: engine=vllm"),
        (["--endpoint", "a=1"], "--endpoint: unknown option; settings have no dashes: endpoint=VALUE"),
    ],
)
def test_unknown_options_are_faults(arguments, line):
    assert [fault.text for fault in parse_arguments(arguments).problems] == [line]
