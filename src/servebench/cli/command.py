"""The parts that all commands are made of: the command class, shared options, value types and usage errors."""

import difflib
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import click

from servebench.cli.completion import complete_conditions, complete_stored, complete_studies, complete_words

STORED = "RUN|STUDY"
HELP_WORDS = ("-h", "--help")
SETTINGS = {"help_option_names": [*HELP_WORDS], "max_content_width": 100}

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class CliCommand(click.Command):
    """A command with examples at the end of its help, whose usage errors name it."""

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **options: Any) -> None:
        """Take what click takes, and examples: pairs of a command line and what it does."""
        super().__init__(*args, **{"context_settings": SETTINGS, **options})
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        write_examples(self.examples, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words. Raises click.UsageError."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise


class CommandGroup(CliCommand, click.Group):
    """A command with commands of its own."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the words name. Raises click.UsageError."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise click.UsageError(_unknown("command", args[0], self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)


class WordsCommand(CliCommand):
    """A command whose words Hydra parses. Its options are taken out of the words, but those with `expose_value=False`, which are
    Hydra's: declared for help only."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Sort options and words, unless help is requested. Raises click.BadOptionUsage."""
        if any(word in HELP_WORDS for word in args) and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        options = [one for one in self.params if isinstance(one, click.Option) and one.expose_value]
        ctx.params = {str(one.name): False if one.is_flag else None for one in options}
        known = {word: one for one in options for word in one.opts}
        own = {word for one in self.params for word in one.opts}
        words, left = [], list(args)
        while left:
            word = left.pop(0)
            name, given, value = word.partition("=")
            option = known.get(name)
            if option is None or (given and option.is_flag):
                if name not in own and difflib.get_close_matches(name, known, n=1, cutoff=0.8):
                    raise click.NoSuchOption(name, possibilities=list(known), ctx=ctx)
                words.append(word)
            elif option.is_flag:
                ctx.params[str(option.name)] = True
            else:
                if not given:
                    follows = bool(left) and "=" not in left[0] and not left[0].startswith("-")
                    default = option.flag_value if isinstance(option.flag_value, str) else ""
                    value = left.pop(0) if follows else default
                if not value and not ctx.resilient_parsing:
                    raise click.BadOptionUsage(name, f"{name} needs a value", ctx)
                ctx.params[str(option.name)] = value
        ctx.params["words"] = tuple(words)
        ctx._opt_prefixes.update(("-", "--"))
        return []


def write_examples(examples: Sequence[tuple[str, str]], formatter: click.HelpFormatter) -> None:
    """Write a section of examples; a command line is never wrapped, so that it can be copied."""
    if examples:
        formatter.write_paragraph()
        formatter.write("Examples:\n")
        for line, meaning in examples:
            formatter.write(f"  {line}\n      {meaning}\n")


def define(name: str, *, examples: Sequence[tuple[str, str]], free_words: bool = False) -> Callable[..., CliCommand]:
    """Return the decorator that makes a function the command `name`; its docstring is the help text.

    With `free_words` its words are config overrides and Hydra options, which it gets as they are.
    """
    return click.command(name, cls=WordsCommand if free_words else CliCommand, examples=examples)


class Parsed(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """The type of a value that `parse` reads from text; ValueError means that it is not `expected`."""

    def __init__(self, name: str, parse: Callable[[str], Any], expected: str) -> None:
        """`expected` completes the sentence "must be ..."."""
        self.name = name
        self._parse = parse
        self._expected = expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value. Raises click.BadParameter."""
        if not isinstance(value, str) or (ctx is not None and ctx.resilient_parsing):
            return value
        try:
            return self._parse(value)
        except ValueError:
            self.fail(f"must be {self._expected} (got {value})", param, ctx)


class OneOf(click.Choice[str]):
    """A choice whose error has the form of the other errors."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the message for a value that is not a choice."""
        choices = tuple(str(choice) for choice in self.choices)
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        return f"must be {', '.join(choices[:-1])} or {choices[-1]} (got {value}){hint}"


def _parse_share(text: str) -> float:
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value < 1:
        raise ValueError(text)
    return value


def _parse_port(text: str) -> int:
    if not (text.isdigit() and 0 < int(text) < 65536):
        raise ValueError(text)
    return int(text)


def _parse_duration(text: str) -> float:
    from servebench.contracts.precision import seconds_of

    return seconds_of("", text)


def _parse_outputs(text: str) -> Path:
    from servebench.store.layout import outputs_folder

    return outputs_folder(text)


SHARE = Parsed("share", _parse_share, "a percentage between 0% and 100%, or a number between 0 and 1")
PORT = Parsed("port", _parse_port, "a port from 1 to 65535")
DURATION = Parsed("duration", _parse_duration, "a duration such as 90s, 30m or 2h")
OUTPUTS = Parsed("outputs", _parse_outputs, "a folder")
FILE = click.Path(path_type=Path)


outputs_option = click.option(
    "--outputs", metavar="DIR", type=OUTPUTS, default="outputs", help="Folder of stored studies (default: outputs)."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
format_option = click.option(
    "--format", "form", type=OneOf(("text", "json", "markdown")), help="How to print: text (default), json or markdown."
)
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Print all tables, warnings and settings.")
doubtful_option = click.option("--with-doubtful", is_flag=True, help="Use doubtful points too, not only valid ones.")
varying_option = click.option(
    "--varying", metavar="KEY,...", help="Config keys that differ on purpose: not unequal settings."
)
rules_option = click.option(
    "--rules", "rules_path", metavar="FILE", type=FILE, help="Use cases and weights of your own."
)
trust_option = click.option(
    "--trust", "trusted", is_flag=True, help="Do not ask about what was not made by you on this machine."
)
config_dir_option = click.option(
    "-cd", "--config-dir", metavar="DIR", type=FILE, expose_value=False, help="Add a folder of your own config files."
)
studies_argument = click.argument("names", metavar="[STUDY]...", nargs=-1, shell_complete=complete_studies)
conditions_argument = click.argument(
    "conditions", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=complete_conditions
)
words_argument = click.argument(
    "words", metavar="[GROUP=OPTION | KEY=VALUE]...", nargs=-1, shell_complete=complete_words
)


def together(*options: Decorator) -> Decorator:
    """Return the decorator that declares options in this order."""
    return lambda command: reduce(lambda found, option: option(found), reversed(options), command)


# `session`: a command that runs something; `shown`: one that prints stored runs; `judged`: one that concludes from them
data_options = together(json_option, outputs_option)
session_options = together(verbose_option, json_option)
shown_options = together(verbose_option, format_option, data_options)
judged_options = together(varying_option, doubtful_option)


def stored_argument(*, several: bool = False, required: bool = True) -> Decorator:
    """Declare the argument that names one stored run or study, or `several`."""
    name, metavar, count = ("names", f"{STORED}...", -1) if several else ("name", STORED, 1)
    return click.argument(name, metavar=metavar, nargs=count, required=required, shell_complete=complete_stored)


def usage_message(error: click.ClickException) -> str:
    """Return one line for a usage error: the command, what is wrong, and what to do."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path.partition(" ")[2] if context is not None else ""
    problem = _problem(error)
    if "; " not in problem:
        problem += f"; see 'servebench {path} --help'" if path else "; see 'servebench help'"
    return f"{path}: {problem}" if path else problem


def _problem(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption):
        return _unknown("option", error.option_name, error.possibilities or ())
    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name} needs a value"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        kind = "option" if isinstance(error.param, click.Option) else "argument"
        hint = "; 'servebench ls' lists them" if _name(error.param) == STORED else ""
        return f"missing {kind} {_name(error.param)}{hint}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        return f"{_name(error.param)} {error.message}"
    message = error.format_message().removesuffix(".")
    return message[:1].lower() + message[1:]


def _name(param: click.Parameter) -> str:
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return (param.metavar or param.name or "").strip("[].")


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown {kind} '{name}'" + (f"; did you mean '{near[0]}'?" if near else "")
