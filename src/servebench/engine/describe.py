"""Format a command as one line of shell, without secrets: to print, paste or put in a bug report."""

import shlex

from servebench.contracts.engine import Command
from servebench.util.redaction import redact
from servebench.util.secret_patterns import MARK


def describe_command(command: Command) -> str:
    """Return the command as one quoted line of shell, with its additional variables in front and secrets redacted."""
    start = ["cd", shlex.quote(str(command.cwd)), "&&"] if command.cwd is not None else []
    variables = [f"{name}={_quoted(value)}" for name, value in redact(dict(command.env)).items()]
    return " ".join([*start, *variables, *map(_quoted, redact(list(command.argv)))])


def _quoted(word: str) -> str:
    rest = word.replace(MARK, "x")
    return word if MARK in word and shlex.quote(rest) == rest else shlex.quote(word)
