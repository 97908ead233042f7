"""Sort the words of a command into overrides and options."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servebench.config.keys import section_types
from servebench.config.problems import Problem, nearest_name
from servebench.registry.shorthand import ENDPOINT, SHORT_WORDS, spelled_out

LOCK_WORD = "--lock"
"""The option before the manifest of a stored run that is repeated."""

SWEPT = "workload.hit_rate=["
"""A list of these is a run for each."""
_SWITCHES = ("-m", "--multirun")
_FOLDER = ("-cd", "--config-dir")
_WITH_VALUE = (*_FOLDER, "-cn", "--config-name")


@dataclass
class Arguments:
    """Sorted arguments."""

    overrides: list[str] = field(default_factory=list)
    multirun: bool = False
    config_dirs: list[str] = field(default_factory=list)
    config_name: str = "config"
    problems: list[Problem] = field(default_factory=list)


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Sort the arguments, and spell out short words; append to `problems` instead of raising."""
    words = Arguments()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if not word.startswith("-"):
            words.overrides.append(word)
        elif word in _SWITCHES:
            words.multirun = True
        elif name in _WITH_VALUE:
            if not has_value and not rest:
                words.problems.append(Problem(f"{name} needs a value", "words"))
                continue
            value = value if has_value else rest.pop(0)
            if name in _FOLDER:
                words.config_dirs.append(value)
            else:
                words.config_name = value.removesuffix(".yaml")
        else:
            follows = bool(rest) and "=" not in rest[0] and not rest[0].startswith("-")
            words.problems.append(_unknown(word, rest.pop(0) if follows and not has_value else value))
    words.multirun |= any(word.startswith(SWEPT) for word in words.overrides)
    # no shell expands a ~ after a name with a dot
    words.overrides = [
        word.replace("[", "").replace("]", "")
        if word.startswith(SWEPT)
        else re.sub("^([^=]+=)~(?=/)", rf"\g<1>{Path.home()}", word)
        for word in spelled_out(words.overrides)
    ]
    return words


def _unknown(word: str, value: str) -> Problem:
    name = word.split("=", 1)[0]
    if name in ("--config-path", "-cp"):
        return Problem(
            f"{name}: the built-in config folder cannot be replaced; add a folder with --config-dir DIR", "words"
        )
    key = name.lstrip("-").replace("-", "_")
    if key.partition(".")[0] in (*section_types(), ENDPOINT, *SHORT_WORDS):
        return Problem(f"{name}: unknown option; settings have no dashes: {key}={value or 'VALUE'}", "words")
    near = nearest_name(name, [*_SWITCHES, *_WITH_VALUE])
    hint = f"did you mean '{near}'?" if near else "run 'servebench help' to list options"
    return Problem(f"{name}: unknown option; {hint}", "words")
