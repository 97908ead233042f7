import pytest

from servebench.config.arguments import asks_hydra, parse_arguments


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--cfg", "job"], True),
        (["--cfg=job"], True),
        (["engine=vllm", "-c", "job"], True),
        (["--info"], True),
        (["-i", "searchpath"], True),
        (["--hydra-help"], True),
        (["--resolve"], True),
        (["--package", "load"], True),
        (["-sc", "install=bash"], True),
        ([], False),
        (["-m", "engine=a,b"], False),
        (["--config-dir", "conf"], False),
        (["study.name=cfg"], False),
    ],
)
def test_which_words_ask_for_information(arguments, expected):
    assert asks_hydra(arguments) is expected


def test_words_are_sorted():
    words = parse_arguments(["a=1", "-m", "-cd", "x", "b=2", "--config-dir=y", "-cn", "mine.yaml"])
    assert words.overrides == ["a=1", "b=2"]
    assert words.multirun
    assert words.config_dirs == ["x", "y"]
    assert words.config_name == "mine"
    assert words.problems == []


def test_info_takes_only_its_own_choices():
    words = parse_arguments(["--info", "engine=vllm"])
    assert (words.information, words.overrides) == (["--info"], ["engine=vllm"])


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
    ],
)
def test_unknown_options_are_faults(arguments, line):
    assert [fault.text for fault in parse_arguments(arguments).problems] == [line]
