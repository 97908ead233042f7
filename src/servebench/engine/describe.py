"""Format a command as one line of shell, without secrets: to print, paste or put in a bug report."""

import re
import shlex
from collections.abc import Iterator, Sequence

from servebench.contracts.engine import Command

MARK = "[redacted]"
SECRET_WORDS = {"key", "apikey", "token", "secret", "password", "passwd", "passphrase", "credential", "credentials"}
HARMLESS_BEFORE = {"eos", "bos", "pad", "unk", "stop", "first", "last", "per", "max", "min"}
"""`--eos-token` and `max_token` refer to tokens of text."""


def is_secret(name: str) -> bool:
    """Return whether a flag or variable of this name holds a secret: one of its words says so, and the word before it does
    not mean a token of text (`HF_TOKEN`, `--api-key`; not `--max-num-batched-tokens`, not `TOKENIZERS_PARALLELISM`)."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1_\2", name)
    words = [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]
    for index, word in enumerate(words):
        if word in SECRET_WORDS and not (word == "token" and index and words[index - 1] in HARMLESS_BEFORE):
            # `--api-key-file` and `--token-id` hold a path or a number
            return words[index + 1 :] not in (["file"], ["path"], ["id"], ["env"])
    return False


def _redacted_arguments(argv: Sequence[str]) -> Iterator[str]:
    hidden = False
    for word in argv:
        flag, equals, value = word.partition("=")
        if hidden and not word.startswith("--"):
            yield MARK
            hidden = False
        elif word.startswith("-") and is_secret(flag):
            yield f"{flag}={MARK}" if equals and value else word
            hidden = not equals
        else:
            yield shlex.quote(word)
            hidden = False


def describe_command(command: Command) -> str:
    """Return the command as one quoted line of shell, with its additional variables in front and secrets redacted."""
    start = ["cd", shlex.quote(str(command.cwd)), "&&"] if command.cwd is not None else []
    variables = [
        f"{name}={MARK if value and is_secret(name) else shlex.quote(value)}" for name, value in command.env.items()
    ]
    return " ".join([*start, *variables, *_redacted_arguments(command.argv)])
