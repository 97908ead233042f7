"""Overrides: read by Hydra's own parser, swept in Hydra's order, and checked one by one before Hydra composes them.

Hydra stops at the first thing that is wrong. Here each override is judged alone, and the wrong ones are left out, so
that composing goes on and all faults are told together.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from servebench.config.absent import absent
from servebench.config.faults import Fault, did_you_mean, nearest, one_line
from servebench.config.folders import Composer
from servebench.config.keys import known_keys, section_types
from servebench.registry.conf import ABSTRACT, EXPERIMENT
from servebench.registry.registry import Registry

LAUNCHER_GROUP = "hydra/launcher"
LAUNCHER_KEYS = "hydra.launcher."
IPV6_URL = re.compile(r"""(?<!["'\w])https?://\[[^\s,"'\[\]{}()]+\][^\s,"'\[\]{}()]*""")


@dataclass
class Prepared:
    """Overrides ready for Hydra. `keys` maps a dotted key to the override that sets it, `choices` groups to options.

    `distrusted` are groups for which a stand-in was chosen, because the option asked for does not exist.
    """

    words: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)
    distrusted: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)


def parse(texts: Iterable[str]) -> tuple[list[Override], list[Fault]]:
    """The overrides that can be read, and a fault for each that cannot."""
    parser = OverridesParser.create()
    overrides: list[Override] = []
    faults: list[Fault] = []
    for text in map(_quote_addresses, texts):
        try:
            overrides.extend(parser.parse_overrides([text]))
        except HydraException as error:
            faults.append(Fault(_unreadable(text, error), "syntax"))
    return overrides, faults


def _quote_addresses(text: str) -> str:
    """`key=http://[::1]:8000/v1` as Hydra's grammar can read it, which takes the bracket for a list's."""
    key, equals, value = text.partition("=")
    return key + equals + IPV6_URL.sub(r'"\g<0>"', value)


def _unreadable(text: str, error: HydraException) -> str:
    if "=" not in text and not text.startswith("~"):
        return f"{text}: not an override; write group=option or group.key=value"
    reason = one_line(error).split(" expecting {", 1)[0]
    return f"{text}: cannot be read ({reason}); close what is open, and quote text that holds , [ ] {{ }} or blanks"


class _VisibleOptions:
    """What `glob(...)` sweeps over: the options of a group without the file that others inherit."""

    def __init__(self, composer: Composer) -> None:
        self._composer = composer

    def get_group_options(self, group_name: str, results_filter: Any = None) -> list[str]:
        """As Hydra's config loader has it."""
        del results_filter
        return list(self._composer.options(group_name))


def sweep(overrides: Sequence[Override], composer: Composer) -> tuple[list[list[str]], list[Fault]]:
    """The overrides of each job, in the order of Hydra's basic sweeper: the last key varies fastest, the later of two
    overrides of one key takes the place of the first.
    """
    faults: list[Fault] = []
    final: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            final[key] = [str(override.input_line)]
        elif not override.is_discrete_sweep():
            line = f"{override.input_line}: an interval cannot be counted off; name values, as in {key}=1,2,4"
            faults.append(Fault(line, "syntax"))
        elif override.is_hydra_override():
            faults.append(Fault(f"{override.input_line}: settings of Hydra itself cannot be swept", "syntax"))
        else:
            # the parser asks the loader for nothing but a group's options
            override.config_loader = _VisibleOptions(composer)  # type: ignore[assignment]
            values = [f"{key}={value}" for value in override.sweep_string_iterator()]
            if not values:
                faults.append(Fault(f"{override.input_line}: nothing matches", "syntax"))
            else:
                final[key] = values
    return [list(job) for job in itertools.product(*final.values())], faults


def prepare(overrides: Sequence[Override], composer: Composer, registry: Registry) -> Prepared:
    """Judge each override alone, and turn the good ones into words for Hydra."""
    prepared = Prepared()
    for override in overrides:
        key = override.key_or_group
        if override.is_hydra_override() or override.package is not None:
            _hydra(override, composer, prepared)
        elif key in composer.groups and not isinstance(override.value(), dict):
            _group(override, composer, registry, prepared)
        else:
            _key(override, composer, prepared)
    _undescribed_model(prepared)
    return prepared


def _hydra(override: Override, composer: Composer, prepared: Prepared) -> None:
    """A setting of Hydra itself. Of the launcher's, which servebench reads, what is wrong is told as of its own."""
    key, value = override.key_or_group, override.value()
    if key == LAUNCHER_GROUP and isinstance(value, str) and value not in composer.options(LAUNCHER_GROUP):
        line = f"{key}={value}: no such launcher; {did_you_mean(value, composer.options(LAUNCHER_GROUP), listed=True)}"
        prepared.faults.append(Fault(line, "group", LAUNCHER_GROUP))
    elif key.startswith(LAUNCHER_KEYS) and not override.is_delete():
        prepared.words.append(f"++{key}={override.get_value_string()}")
    else:
        prepared.words.append(str(override.input_line))


def _undescribed_model(prepared: Prepared) -> None:
    """A model named by hand is none of the presets: it must not inherit the file, size and shape of the default one."""
    if "model" in prepared.choices or "model" in prepared.distrusted:
        return
    named = "model.name" in prepared.keys
    placed = "model.path" in prepared.keys and EXPERIMENT not in prepared.choices
    if named or placed:
        prepared.words.insert(0, f"model={ABSTRACT}")


def _group(override: Override, composer: Composer, registry: Registry, prepared: Prepared) -> None:
    """A choice `group=option`."""
    group, value = override.key_or_group, override.value()
    if override.is_delete():
        prepared.words.append(str(override.input_line))
        return
    if value is None and group == EXPERIMENT:
        return
    options = composer.options(group)
    if isinstance(value, str) and value in options:
        # a `+` before a group that has a default is an error of Hydra's, and means the same
        plus = "+" if override.is_add() and group not in section_types() and group != EXPERIMENT else ""
        prepared.words.append(f"{plus}{group}={value}")
        prepared.choices[group] = value
        return
    prepared.distrusted.add(group)
    if composer.has_abstract(group):
        prepared.words.append(f"{group}={ABSTRACT}")
    if isinstance(value, list):
        several = ",".join(str(item) for item in value)
        line = f"{group}={override.get_value_string()}: a run has one {group}; for a run of each, -m {group}={several}"
    else:
        line = absent(group, str(override.get_value_string()), registry, listed=options)
    prepared.faults.append(Fault(line, "group", group))


def _key(override: Override, composer: Composer, prepared: Prepared) -> None:
    """A value `group.key=value`. It is given to Hydra as forced: which keys exist is for the settings to say."""
    key, text = override.key_or_group, str(override.input_line)
    top = key.partition(".")[0]
    if top not in section_types() or (key == top and not isinstance(override.value(), dict)):
        prepared.faults.append(_unknown(override, composer))
    elif override.is_delete():
        prepared.words.append(text)
    else:
        prepared.words.append(f"++{key}={override.get_value_string()}")
        prepared.keys.pop(key, None)
        prepared.keys[key] = f"{key}={override.get_value_string()}"


def _unknown(override: Override, composer: Composer) -> Fault:
    key = override.key_or_group
    if "." in key:
        line = f"{key}: unknown key; {did_you_mean(key, known_keys(section_types()))}"
        if nearest(key, known_keys(section_types())) is None:
            line = f"{key}: unknown key; groups are {', '.join(composer.groups)}"
        return Fault(line, "key", key)
    shown = key if override.is_delete() else f"{key}={override.get_value_string()}"
    near = nearest(key, composer.groups) or nearest(key, known_keys(section_types()))
    hint = f"did you mean '{near}'?" if near else f"known are {', '.join(composer.groups)}"
    return Fault(f"{shown}: no such config group; {hint}", "key", key)


def override_of(keys: dict[str, str], path: str) -> str | None:
    """The override that set a dotted path: the path's own, one above it, or one below it; the last given wins."""
    for key, text in reversed(list(keys.items())):
        if path == key or path.startswith(f"{key}.") or key.startswith(f"{path}."):
            return text
    return None
