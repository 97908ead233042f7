"""The words of the command line: which are overrides, which are options, which ask Hydra for information only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from servebench.config.faults import Fault, nearest

_SWITCHES = {"-m": "multirun", "--multirun": "multirun"}
_WITH_VALUE = {
    "-cd": "config_dir",
    "--config-dir": "config_dir",
    "-cn": "config_name",
    "--config-name": "config_name",
}
_INFO_SWITCHES = ("--hydra-help", "--resolve", "--shell-completion", "-sc")
_INFO_WITH_VALUE = ("--cfg", "-c", "--package", "-p")
_INFO_WITH_CHOICE = ("--info", "-i")
_INFO_CHOICES = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_INFORMATION = (*_INFO_SWITCHES, *_INFO_WITH_VALUE, *_INFO_WITH_CHOICE)


@dataclass
class Words:
    """The command line, sorted. `information` are the options that Hydra itself answers, as they were given."""

    overrides: list[str] = field(default_factory=list)
    multirun: bool = False
    config_dirs: list[str] = field(default_factory=list)
    config_name: str = "config"
    information: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def wants(self, *options: str) -> bool:
        """Whether one of these options was given to Hydra."""
        return any(word.split("=", 1)[0] in options for word in self.information)


def hydra_words(arguments: Sequence[str]) -> bool:
    """Whether the arguments ask Hydra for information only (`--cfg job`, `--info`, `--shell-completion`...)."""
    return any(word.split("=", 1)[0] in _INFORMATION for word in arguments if word.startswith("-"))


def parse_words(arguments: Sequence[str]) -> Words:
    """Sort the arguments. What is wrong ends in `faults`; nothing is raised."""
    words = Words()
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
            _take_information_value(words, name, bool(has_value), rest)
        elif name in _WITH_VALUE:
            if not has_value:
                if not rest:
                    words.faults.append(Fault(f"{name}: a value must follow", "words"))
                    continue
                value = rest.pop(0)
            _keep(words, _WITH_VALUE[name], value)
        else:
            words.faults.append(_unknown(word))
    return words


def _take_information_value(words: Words, name: str, has_value: bool, rest: list[str]) -> None:
    """`--cfg` and `--package` take the next word, `--info` only if it is one of its choices."""
    if has_value or not rest:
        return
    if name in _INFO_WITH_VALUE or (name in _INFO_WITH_CHOICE and rest[0] in _INFO_CHOICES):
        words.information.append(rest.pop(0))


def _keep(words: Words, what: str, value: str) -> None:
    if what == "config_dir":
        words.config_dirs.append(value)
    else:
        words.config_name = value.removesuffix(".yaml")


def _unknown(word: str) -> Fault:
    name = word.split("=", 1)[0]
    if name in ("--config-path", "-cp"):
        return Fault(f"{name}: the config folder cannot be replaced; add one of yours with --config-dir DIR", "words")
    near = nearest(name, [*_SWITCHES, *_WITH_VALUE, *_INFORMATION])
    hint = f"did you mean '{near}'?" if near else "'servebench help' lists what there is"
    return Fault(f"{name}: unknown option; {hint}", "words")
