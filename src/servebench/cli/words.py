"""Options and conditions among the words of a command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from servebench.store import outputs_folder
from servebench.store.studies import CONDITION_KEYS
from servebench.util.errors import ConfigError

OUTPUTS = "outputs"
OUTPUTS_WORD = "--outputs"


def take_option(words: Sequence[str], name: str) -> tuple[str | None, list[str]]:
    """The value of `--name VALUE` or `--name=VALUE` (the last one given), and the words without it. Raises ConfigError."""
    rest: list[str] = []
    value: str | None = None
    stream = iter(words)
    for word in stream:
        if word == name:
            value = next(stream, None)
            if value is None:
                raise ConfigError(f"{name} needs a value behind it")
        elif word.startswith(f"{name}="):
            value = word.removeprefix(f"{name}=")
        else:
            rest.append(word)
    return value, rest


def take_flag(words: Sequence[str], name: str) -> tuple[bool, list[str]]:
    """Whether a word is there, and the words without it."""
    return name in words, [word for word in words if word != name]


def take_outputs(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The outputs folder that is looked into, and the words without `--outputs DIR`."""
    asked, rest = take_option(words, OUTPUTS_WORD)
    return outputs_folder(asked or OUTPUTS), rest


def no_options(verb: str, words: Sequence[str], known: Iterable[str]) -> None:
    """Raises ConfigError for a word that begins with a hyphen: all options that are known were taken before."""
    unknown = next((word for word in words if word.startswith("-")), None)
    if unknown is not None:
        raise ConfigError(f"{verb}: unknown option '{unknown}'; it takes {', '.join(known)}")


def parse_conditions(words: Sequence[str]) -> dict[str, str]:
    """`key=value` words. Raises ConfigError for one that is none."""
    conditions = {}
    for word in words:
        key, equals, value = word.partition("=")
        plain = key in CONDITION_KEYS or "." in key
        if not equals or not plain:
            raise ConfigError(
                f"'{word}' is no condition; give key=value with one of {', '.join(CONDITION_KEYS)}, "
                "or a config key such as engine.dtype"
            )
        conditions[key] = value
    return conditions
