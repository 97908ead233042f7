"""The group of all commands: finds and imports a command when it is used, and leaves other words to `run`."""

import difflib
import os
import re
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from servebench import __version__
from servebench.cli.command import HELP_WORDS, SETTINGS, write_examples
from servebench.cli.completion import complete_words, install_completion
from servebench.registry.conf import groups_in_order
from servebench.util.errors import ConfigError

COMMANDS = {
    **{"run": "run", "tune": "run", "plugins": "tools"},
    **dict.fromkeys(("resume", "work", "sync", "recover"), "studies"),
    **{"ls": "show", "show": "show"},
    **dict.fromkeys(("compare", "recommend", "report"), "conclude"),
    "demo": "run",
    **dict.fromkeys(("selfcheck", "record", "export", "import", "bundle", "dashboard", "help"), "tools"),
}
"""The commands, as help lists them, each with its module in `cli/commands`, where it is `NAME_command`."""

DEFAULT = "run"
NAME_LIKE = re.compile(r"[A-Za-z][A-Za-z_-]*")

EXAMPLES = (
    ("servebench", "one run on the embedded engine: a real model on this machine's CPU"),
    ("servebench -m engine=vllm,sglang,trtllm workload=unique", "three engines, launched one after another, compared"),
    ("servebench endpoint=http://host:8000 load=sweep", "a server that is already running"),
    ("servebench load.concurrency=[1,4,16] load.requests=100", "your own levels and number of requests per point"),
)


class Commands(click.Group):
    """The group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"servebench.cli.commands.{COMMANDS[cmd_name]}")
        found: click.Command = getattr(module, f"{cmd_name}_command")
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before words that do not begin with a command or an option of the group. Raises ConfigError."""
        own = {option for param in self.get_params(ctx) for option in param.opts}
        first = args[0].partition("=")[0] if args else ""
        if first in own or (not args and ctx.resilient_parsing):
            return super().parse_args(ctx, args)
        if first not in COMMANDS:
            if NAME_LIKE.fullmatch(args[0] if args else "") and not ctx.resilient_parsing:
                raise ConfigError(unknown_command(first))
            values = (word for before, word in pairwise(args) if before == "-m" or not before.startswith("-"))
            late = (word for word in values if word in COMMANDS)
            if not ctx.resilient_parsing and (word := next(late, None)):
                raise ConfigError(f"{word}: the command comes first: servebench {word} ...")
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands, and the options and overrides of `run`, for it is the default."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            run = self.get_command(ctx, DEFAULT)
            known = {item.value for item in found}
            return found + [i for i in run.shell_complete(ctx, incomplete) if i.value not in known] if run else found
        return found + complete_words(ctx, self.params[0], incomplete)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, commands, config groups with their options, options and examples. Raises ConfigError."""
        formatter.write(
            "servebench: which serving engine, with which settings, for my model, my GPU and\nmy workload?\n\n"
        )
        formatter.write(
            "Usage:\n"
            "  servebench [GROUP=OPTION ...] [GROUP.KEY=VALUE ...]\n"
            "  servebench -m [GROUP=OPTION,OPTION ...] [GROUP.KEY=VALUE,VALUE ...]\n"
            "  servebench COMMAND [...]        'servebench COMMAND --help' explains it\n"
        )
        commands = [(name, self._short_help(ctx, name)) for name in COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(commands)
        with formatter.section("Config groups"):
            formatter.write_dl([(group, ", ".join(options)) for group, options in groups_in_order()])
        run = self.get_command(ctx, DEFAULT)
        records = [record for param in self.get_params(ctx) if (record := param.get_help_record(ctx)) is not None]
        options = [param for param in run.params if isinstance(param, click.Option)] if run else []
        records += [record for param in options if (record := param.get_help_record(ctx)) is not None]
        with formatter.section("Options"):
            formatter.write_dl(records)
        write_examples(EXAMPLES, formatter)

    def _short_help(self, ctx: click.Context, name: str) -> str:
        found = self.get_command(ctx, name)
        return found.get_short_help_str(limit=200) if found is not None else ""


def unknown_command(word: str) -> str:
    """Return the message for a word that is neither a command nor an override."""
    near = difflib.get_close_matches(word.lower(), COMMANDS, n=1)
    hint = f"did you mean '{near[0]}'? " if near else f"or {word}=VALUE? " if word in dict(groups_in_order()) else ""
    return (
        f"'{word}' is not a command or an override (group=option, group.key=value); {hint}"
        "run 'servebench help' to list both"
    )


def with_help(words: list[str]) -> list[str]:
    """Return the words that print help, if help is requested anywhere among them, else the words unchanged."""
    if not any(word in HELP_WORDS for word in words):
        return words
    named = words[:2] if words[:2] == ["plugins", "new"] else words[:1]
    return [*named, "--help"] if words[0] in COMMANDS else ["--help"]


def _install_completion(ctx: click.Context, _param: click.Parameter, shell: str | None) -> None:
    if shell is not None and not ctx.resilient_parsing:
        shell = Path(os.environ.get("SHELL", "")).name if shell == "auto" else shell
        click.echo(install_completion(shell, ctx.command), nl=False)
        ctx.exit()


@click.group("servebench", cls=Commands, context_settings=SETTINGS)
@click.version_option(__version__, message="servebench %(version)s", help="Print the version.")
@click.option(
    "--install-completion",
    metavar="[bash|zsh|fish]",
    is_flag=False,
    flag_value="auto",
    is_eager=True,
    expose_value=False,
    callback=_install_completion,
    help="Set up shell completion (default: for your shell).",
)
def cli() -> None:
    """Run the command that the words name."""


__all__ = ["COMMANDS", "cli", "unknown_command", "with_help"]
