"""Every servebench command in the docs is one that servebench takes."""

import contextlib
import re
import shlex
from pathlib import Path

import click
import pytest

from servebench.cli.commands import run
from servebench.cli.group import COMMANDS, cli
from servebench.config import compose_jobs
from servebench.config.overrides import parse_arguments
from servebench.registry.registry import registry

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("plugins/*/README.md")])
COMMAND = re.compile(r"^(?: {4}|\| `| +- run: )(?:\$ )?servebench\b(?![:.]) ?([^`\n]*)", re.MULTILINE)
MISTAKES = ("engine=vlm",)


def commands():
    for page in PAGES:
        for match in COMMAND.finditer(page.read_text(encoding="utf-8")):
            text = match.group(1).split(" # ")[0].split("   ")[0].strip()
            if not any(mistake in text for mistake in MISTAKES):
                yield pytest.param(text, id=f"{page.parent.name}/{page.name}: servebench {text}")


FILE = re.compile(r"^```yaml\n# (my/\S+\.yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A folder that has the files which the docs tell to write."""
    for page in PAGES:
        for name, text in FILE.findall(page.read_text(encoding="utf-8")):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def parse(command, words):
    """Parse the words of a command, and of the command in it, without running it. Raises click.UsageError."""
    with contextlib.suppress(click.exceptions.Exit):
        command.make_context(
            words[0], words[1:] if command is not cli else list(words), resilient_parsing=False
        ).close()
    if isinstance(command, click.Group):
        at = 0 if command is cli else 1
        inner = command.get_command(click.Context(command), words[at]) if len(words) > at else None
        assert inner is not None or not words[at:] or command is not cli, words
        if inner is not None:
            parse(inner, words[at:])


@pytest.mark.slow
@pytest.mark.parametrize("text", list(commands()))
def test_a_documented_command_is_taken(text, written):
    """A verb exists; words without a verb compose to jobs that validate."""
    words = [word for word in shlex.split(re.sub(r"\[(--[a-z-]+|[A-Z]+)\]", "", text)) if word != "--preview"]
    if words and words[0] in COMMANDS:
        parse(cli, words)
        if words[0] not in ("run", "tune"):
            return
        several = ["-m"] if words[0] == "tune" else []
        words = several + [word for word in words[1:] if not word.startswith(("tune.", "--"))]
    if words and words[0] in ("--help", "--version", "--install-completion"):
        parse(cli, words)
        return
    with run.run_command.make_context("run", words) as context:
        asked = context.params["words"]
    assert not parse_arguments(asked).problems
    assert compose_jobs(asked, registry())


def test_there_are_commands_to_check():
    """The pattern still finds what the docs write."""
    assert len(list(commands())) >= 10
