"""Sort command-line arguments into overrides, options, and options that make Hydra print information."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from servebench.config.problems import Problem, nearest_name

LOCK_WORD = "--lock"
"""The option before the manifest of a stored run that is repeated."""

_SWITCHES = ("-m", "--multirun")
_FOLDER = ("-cd", "--config-dir")
_WITH_VALUE = (*_FOLDER, "-cn", "--config-name")
_INFO_SWITCHES = ("--hydra-help", "--resolve", "--shell-completion", "-sc")
_INFO_WITH_VALUE = ("--cfg", "-c", "--package", "-p")
_INFO_WITH_CHOICE = ("--info", "-i")
_INFO_CHOICES = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_INFORMATION = (*_INFO_SWITCHES, *_INFO_WITH_VALUE, *_INFO_WITH_CHOICE)


@dataclass
class Arguments:
    """Sorted arguments. `information` are the options that Hydra itself answers, as they were given."""

    overrides: list[str] = field(default_factory=list)
    multirun: bool = False
    config_dirs: list[str] = field(default_factory=list)
    config_name: str = "config"
    information: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def wants(self, *options: str) -> bool:
        """Return whether one of these options for Hydra is given."""
        return any(word.split("=", 1)[0] in options for word in self.information)


def asks_hydra(arguments: Sequence[str]) -> bool:
    """Return whether the arguments only make Hydra print information (`--cfg job`, `--info`, ...)."""
    return any(word.split("=", 1)[0] in _INFORMATION for word in arguments if word.startswith("-"))


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Sort the arguments; append to `problems` instead of raising."""
    words = Arguments()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if not word.startswith("-"):
            words.overrides.append(word)
        elif word in _SWITCHES:
            words.multirun = True
        elif name in _INFORMATION:
            words.information.append(word)
            takes_next = name in _INFO_WITH_VALUE or (name in _INFO_WITH_CHOICE and set(rest[:1]) & set(_INFO_CHOICES))
            if takes_next and rest and not has_value:
                words.information.append(rest.pop(0))
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
            words.problems.append(_unknown(word))
    return words


def _unknown(word: str) -> Problem:
    name = word.split("=", 1)[0]
    if name in ("--config-path", "-cp"):
        return Problem(
            f"{name}: the built-in config folder cannot be replaced; add a folder with --config-dir DIR", "words"
        )
    near = nearest_name(name, [*_SWITCHES, *_WITH_VALUE, *_INFORMATION])
    hint = f"did you mean '{near}'?" if near else "run 'servebench help' to list options"
    return Problem(f"{name}: unknown option; {hint}", "words")
