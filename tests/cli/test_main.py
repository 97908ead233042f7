"""Help, usage errors and routing of the command line."""

import os
import pty
import shlex
import subprocess
import sys

import click
import pytest

from servebench.cli.commands.conclude import MLPERF, TOOLS
from servebench.cli.group import COMMANDS, EXAMPLES, cli
from servebench.cli.main import dispatch
from servebench.config.overrides import parse_arguments
from servebench.measure.dialects import DIALECTS
from servebench.util.errors import ConfigError

CONTEXT = click.Context(cli, info_name="servebench")
PATHS = [(name,) for name in COMMANDS] + [("plugins", "new")]


def find_command(path):
    """Return a command by its path, such as ('plugins', 'new')."""
    found = cli.get_command(CONTEXT, path[0])
    for name in path[1:]:
        found = found.commands[name]
    return found


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_lists_every_option_and_two_examples(path, word, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert dispatch([*path, word]) == 0
    text = capsys.readouterr().out
    command = find_command(path)
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    assert all(option.help for option in options)
    assert all(name in text for option in options for name in option.opts)
    assert len(command.examples) >= 2
    assert all(f"  {line}\n" in text for line, _ in command.examples)
    assert max(len(line) for line in text.partition("Examples:")[0].splitlines()) <= 80


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_examples_of_help_parse(path):
    """They are this command's, and each takes its words; those of a run are overrides or Hydra options."""
    command = find_command(path)
    for line, _ in command.examples:
        words = shlex.split(line)
        assert words.pop(0) == "servebench"
        words = words[len(path) :] if tuple(words[: len(path)]) == path else words
        with command.make_context(" ".join(path), words) as context:
            assert context.params is not None
        if path == ("run",) and "--lock" not in words:
            assert not parse_arguments(context.params["words"]).problems


def test_examples_of_the_main_help_parse():
    for line, _ in EXAMPLES:
        assert not parse_arguments(shlex.split(line.replace("\\\n", ""))[1:]).problems


def test_hydras_options_stay_among_the_words_of_a_run():
    options = [param for param in find_command(("run",)).params if isinstance(param, click.Option)]
    for name in (name for option in options if not option.expose_value for name in option.opts):
        assert name == "--lock" or not parse_arguments([name, "x"]).problems


def test_options_of_a_run_are_taken_out_of_its_words():
    words = ["a=1", "-v", "-cd", "my", "--cfg", "job", "--package=load", "-m", "--verbose=1"]
    with find_command(("run",)).make_context("run", words) as context:
        assert context.params["words"] == ("a=1", "-cd", "my", "-m", "--verbose=1")
        assert (context.params["verbose"], context.params["cfg"], context.params["package"]) == (True, "job", "load")
        assert not context.params["as_json"]
    with find_command(("tune",)).make_context("tune", ["--continue", "tune.budget=30m"]) as context:
        assert (context.params["study"], context.params["words"]) == ("last", ("tune.budget=30m",))
    with pytest.raises(click.BadOptionUsage):
        find_command(("run",)).make_context("run", ["--cfg"])


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["engine=openai", "--help"], ["--bogus", "-h"]])
def test_main_help_lists_commands_groups_and_options(words, capsys):
    assert dispatch(words) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert "\n  workload  " in text
    assert all(option in text for option in ("--multirun", "--install-completion", "--version"))


def test_help_wins_over_mistakes(capsys):
    assert dispatch(["compare", "--bogus", "-h"]) == 0
    assert "--max-regression" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "late"),
    [
        (["--config-dir", "my", "tune", "engine=vllm"], "tune"),
        (["engine=vllm", "compare"], "compare"),
        (["-m", "tune"], "tune"),
        (["--config-dir", "report", "no=such"], None),
        (["-cd", "report", "no=such"], None),
    ],
)
def test_a_command_after_other_words_is_told(words, late):
    with pytest.raises(ConfigError) as error:
        dispatch(words)
    assert ("the command comes first" in str(error.value)) == (late is not None)
    assert late is None or f"servebench {late} ..." in str(error.value)


@pytest.mark.parametrize(
    ("word", "near"), [("runn", "'run'"), ("Show", "'show'"), ("bench", None), ("engine", "engine=VALUE")]
)
def test_unknown_command(word, near):
    with pytest.raises(ConfigError, match=f"^'{word}' is not a command") as error:
        dispatch([word, "engine=openai"])
    assert (near or "servebench help") in str(error.value)
    assert ("did you mean" in str(error.value)) == (near is not None and "=" not in near)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["compare", "a", "b", "--max-regresion=5%"], ["compare", "'--max-regresion'", "'--max-regression'"]),
        (["compare", "a", "b", "--max-regression", "7"], ["compare", "--max-regression", "(got 7)"]),
        (["compare", "a", "b", "--margin"], ["compare", "--margin needs a value"]),
        (["compare", "a", "b", "--margin", "200%"], ["compare", "--margin", "(got 200%)"]),
        (["compare"], ["compare", "RUN|STUDY"]),
        (["ls", "engin=vllm"], ["ls", "'engin=vllm'"]),
        (["export", "x"], ["export", "--format"]),
        (["export", "x", "--format", "cvs"], ["export", "--format", "(got cvs)", "'csv'"]),
        (["dashboard", "--port", "70000"], ["dashboard", "--port", "(got 70000)"]),
        (["dashboard", "extra"], ["dashboard", "extra"]),
        (["selfcheck", "--jsno"], ["selfcheck", "'--jsno'", "'--json'"]),
        (["engine=vllm", "--dryrun"], ["run", "'--dryrun'", "'--dry-run'"]),
        (["tune", "--jsno"], ["tune", "'--jsno'", "'--json'"]),
        (["plugins", "nwe"], ["plugins", "'nwe'", "'new'"]),
        (["plugins", "new"], ["plugins new", "NAME"]),
        (["plugins", "new", "x", "--kind", "pacer"], ["plugins new", "--kind", "(got pacer)"]),
        (["work", "study"], ["work", "RUN"]),
        (["--install-completion", "tcsh"], ["--install-completion", "(got tcsh)"]),
    ],
)
def test_usage_error_names_command_and_option_in_one_line(words, parts):
    with pytest.raises(ConfigError) as error:
        dispatch(words)
    (line,) = str(error.value).splitlines()
    assert all(part in line for part in parts)
    assert error.value.exit_code == 2


def test_options_stand_before_and_after_names(tmp_path):
    """And a value stands behind a space or `=`; both reach the command, which then misses the study."""
    for words in (["--outputs", str(tmp_path), "x"], ["x", f"--outputs={tmp_path}"]):
        with pytest.raises(ConfigError, match=f"'x'.*{tmp_path}"):
            dispatch(["show", *words])


def test_version(capsys):
    assert dispatch(["--version"]) == 0
    assert capsys.readouterr().out.startswith("servebench ")


def test_choices_of_the_command_line_are_those_of_the_packages():
    from servebench.cli.commands import tools
    from servebench.report.dashboard.local import PORT
    from servebench.skeleton import KINDS

    assert (*DIALECTS, MLPERF) == TOOLS
    assert tuple(KINDS) == tools.KINDS
    (port,) = (param for param in tools.dashboard_command.params if param.name == "port")
    assert port.default == PORT


@pytest.mark.slow
def test_an_error_wraps_at_words_on_a_terminal():
    """It is one line for other programs."""
    command = [sys.executable, "-m", "servebench", "engine=vlm"]
    ours, theirs = pty.openpty()
    subprocess.run(command, stderr=theirs, env={**os.environ, "COLUMNS": "60"}, check=False)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    piped = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert shown.split() == piped.split()
    assert (len(piped.splitlines()), max(map(len, shown.splitlines())) <= 60) == (1, True)
