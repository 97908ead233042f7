import pytest

from servebench.config.problems import Problem, format_value, nearest_name, suggest, summarize_error, without_duplicates

KEYS = ["engine.port", "engine.host", "engine.reuse", "load.concurrency", "load.max_concurrency", "workload.seed"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("load.concurency", "load.concurrency"),
        ("engine.prot", "engine.port"),
        ("engin.port", "engine.port"),
        ("concurrency", "load.concurrency"),
        ("load.port", "engine.port"),
        ("Engine.PORT", "engine.port"),
        ("engine.threads", None),
        ("zzz", None),
    ],
)
def test_nearest_key(name, expected):
    assert nearest_name(name, KEYS) == expected


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (["vllm", "openai"], "did you mean 'vllm'? available: openai, vllm"),
        (["openai"], "the only one is 'openai'"),
        ([], "there are none"),
    ],
)
def test_hint_lists_what_is_known(known, expected):
    assert suggest("vlm", known, listed=True) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "null"), (True, "true"), ("8", "'8'"), ([0, 1], "[0, 1]"), (float("inf"), "Infinity")],
)
def test_values_are_shown_as_a_config_writes_them(value, expected):
    assert format_value(value) == expected


def test_long_values_are_cut():
    assert len(format_value("x" * 1000)) == 80


def test_one_line_of_a_many_line_error():
    error = ValueError("Could not override 'a'.\nTo append to your config use +a=1\nSee https://hydra.cc")
    assert summarize_error(error) == "could not override 'a'"


def test_same_fault_is_told_once():
    faults = [Problem("b", "key"), Problem("a", "key"), Problem("b", "key")]
    assert [fault.text for fault in without_duplicates(faults)] == ["b", "a"]
