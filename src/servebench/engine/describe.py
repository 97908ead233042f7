"""A command as one would type it: to print, to paste, to put in a bug report."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from servebench.contracts.engine import Command

MARK = "[redacted]"
SECRET_WORDS = {"key", "apikey", "token", "secret", "password", "passwd", "passphrase", "credential", "credentials"}
HARMLESS_BEFORE = {"eos", "bos", "pad", "unk", "stop", "first", "last", "per", "max", "min"}
"""`--eos-token` and `max_token` name tokens of text."""


def is_secret(name: str) -> bool:
    """Whether a flag or variable of this name holds a secret: one of its words says so, and none before it says that a
    token of text is meant (`HF_TOKEN`, `--api-key`; not `--max-num-batched-tokens`, not `TOKENIZERS_PARALLELISM`)."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1_\2", name)
    words = [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]
    for index, word in enumerate(words):
        if word in SECRET_WORDS and not (word == "token" and index and words[index - 1] in HARMLESS_BEFORE):
            # `--api-key-file` and `--token-id` name a place or a number
            return words[index + 1 :] not in (["file"], ["path"], ["id"], ["env"])
    return False


def _safe_words(argv: Sequence[str]) -> Iterator[str]:
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
    """The command in one line of shell, quoted, with the variables that it adds in front, and with secrets taken out."""
    start = ["cd", shlex.quote(str(command.cwd)), "&&"] if command.cwd is not None else []
    variables = [
        f"{name}={MARK if value and is_secret(name) else shlex.quote(value)}" for name, value in command.env.items()
    ]
    return " ".join([*start, *variables, *_safe_words(command.argv)])
