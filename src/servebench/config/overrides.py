"""Sort the words of a command, and parse, sweep and check its overrides before Hydra composes them.

Hydra stops at the first error. Here each override is checked alone and wrong ones are left out, so that composing
continues and all problems are reported together.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig

from servebench.config.folders import Composer
from servebench.config.keys import known_keys, section_types
from servebench.config.problems import Problem, missing_option, nearest_name, suggest, summarize_error
from servebench.registry.conf import ABSTRACT, EXPERIMENT
from servebench.registry.registry import Registry
from servebench.registry.shorthand import ENDPOINT, SHORT_WORDS, spelled_out

LAUNCHER_GROUP = "hydra/launcher"
LAUNCHER_KEYS = "hydra.launcher."
FOLDER_KEYS = ("hydra.run.", "hydra.sweep.", "hydra.output_subdir")
"""Where Hydra would write; servebench names its own folders."""
HYDRA_KEYS = ("hydra.sweeper.params", "hydra/")
"""What else of Hydra is used: the sweeps of a config, and its groups."""
IPV6_URL = re.compile(r"""(?<!["'\w])https?://\[[^\s,"'\[\]{}()]+\][^\s,"'\[\]{}()]*""")
LOCK_WORD = "--lock"
"""The option before the manifest of a stored run that is repeated."""

SWEPT = "workload.hit_rate=["
"""A list of these is a run for each."""
_SWITCHES = ("-m", "--multirun")
_FOLDER = ("-cd", "--config-dir")
_WITH_VALUE = (*_FOLDER, "-cn", "--config-name")


@dataclass
class Prepared:
    """Overrides ready for Hydra. `keys` maps a dotted key to the override that sets it, `choices` groups to options.

    `distrusted` are groups for which a stand-in was chosen, because the chosen option does not exist.
    """

    words: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)
    distrusted: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)
    config: DictConfig | None = None
    """What Hydra composes of the words, with an empty mapping at each key of `emptied` that is still null."""
    by_machine: list[str] = field(default_factory=list)
    """The words that this machine chose, where the config left that to it."""


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
            words.problems.append(_unknown_option(word, rest.pop(0) if follows and not has_value else value))
    words.multirun |= any(word.startswith(SWEPT) for word in words.overrides)
    # no shell expands a ~ after a name with a dot
    words.overrides = [
        word.replace("[", "").replace("]", "")
        if word.startswith(SWEPT)
        else re.sub("^([^=]+=)~(?=/)", rf"\g<1>{Path.home()}", word)
        for word in spelled_out(words.overrides)
    ]
    return words


def _unknown_option(word: str, value: str) -> Problem:
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


def parse(texts: Iterable[str]) -> tuple[list[Override], list[Problem]]:
    """Return the overrides that can be parsed, and a problem for each that cannot."""
    parser = OverridesParser.create()
    overrides: list[Override] = []
    problems: list[Problem] = []
    for word in texts:
        key, equals, value = word.partition("=")
        # Hydra's grammar takes the bracket of a URL such as `http://[::1]:8000/v1` for a list
        text = key + equals + IPV6_URL.sub(r'"\g<0>"', value)
        try:
            overrides.extend(parser.parse_overrides([text]))
        except HydraException as error:
            problems.append(Problem(_unreadable(text, error), "syntax"))
    return overrides, problems


def _unreadable(text: str, error: HydraException) -> str:
    if "=" not in text and not text.startswith("~"):
        known = text.partition(".")[0] in (*section_types(), ENDPOINT, *SHORT_WORDS)
        return f"{text}: not an override; write {f'{text}=VALUE' if known else 'group=option or group.key=value'}"
    if text.partition("=")[0].endswith(" "):
        return f"{text}: an override has no spaces around ="
    reason = summarize_error(error).split(" expecting {", 1)[0]
    reason = "it has a character that needs quotes" if reason.startswith("lexerNoViable") else reason
    return (
        f"{text}: invalid override ({reason}); close brackets and quotes, and quote text with , = [ ] {{ }} or spaces"
    )


def sweep(overrides: Sequence[Override], composer: Composer) -> tuple[list[list[str]], list[Problem]]:
    """Return the overrides of each job, in the order of Hydra's basic sweeper: the last key varies fastest, and the later of
    two overrides of one key replaces the first.
    """
    problems: list[Problem] = []
    final: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            final[key] = [str(override.input_line)]
        elif not override.is_discrete_sweep():
            line = f"{override.input_line}: an interval cannot be swept; list values, as in {key}=1,2,4"
            problems.append(Problem(line, "syntax"))
        elif override.is_hydra_override():
            problems.append(Problem(f"{override.input_line}: Hydra's own settings cannot be swept", "syntax"))
        else:
            # the parser only uses the loader for the options of a group that `glob(...)` sweeps over
            shown = SimpleNamespace(get_group_options=lambda group, **_: list(composer.options(group)))
            override.config_loader = shown  # type: ignore[assignment]
            values = [f"{key}={value}" for value in override.sweep_string_iterator()]
            if not values:
                problems.append(Problem(f"{override.input_line}: nothing matches", "syntax"))
            else:
                final[key] = values
    return [list(job) for job in itertools.product(*final.values())], problems


def prepare(overrides: Sequence[Override], composer: Composer, registry: Registry) -> Prepared:
    """Check each override alone, and turn the valid ones into overrides for Hydra."""
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
    key, value = override.key_or_group, override.value()
    if key == LAUNCHER_GROUP and isinstance(value, str) and value not in composer.options(LAUNCHER_GROUP):
        line = f"{key}={value}: no such launcher; {suggest(value, composer.options(LAUNCHER_GROUP), listed=True)}"
        prepared.problems.append(Problem(line, "group", LAUNCHER_GROUP))
    elif key.startswith(LAUNCHER_KEYS) and not override.is_delete():
        prepared.words.append(f"++{key}={override.get_value_string()}")
    elif key == "hydra.searchpath":
        prepared.problems.append(Problem(f"{key}: add a folder with --config-dir DIR", "key", key))
    elif key.startswith(FOLDER_KEYS):
        line = f"{override.input_line}: has no effect; set study.dir for the folder of all studies, study.name for this one"
        prepared.problems.append(Problem(line, "key", key))
    elif key.startswith("hydra.") and not key.startswith(HYDRA_KEYS):
        line = f"{override.input_line}: has no effect; of Hydra's settings those of hydra/launcher have one, and -m for sweeps"
        prepared.problems.append(Problem(line, "key", key))
    else:
        prepared.words.append(str(override.input_line))


def _undescribed_model(prepared: Prepared) -> None:
    """Let a model that is named by hand not inherit the file, size and shape of the default preset."""
    if "model" in prepared.choices or "model" in prepared.distrusted:
        return
    named = "model.name" in prepared.keys
    placed = "model.path" in prepared.keys and EXPERIMENT not in prepared.choices
    if named or placed:
        prepared.words.insert(0, f"model={ABSTRACT}")


def _group(override: Override, composer: Composer, registry: Registry, prepared: Prepared) -> None:
    group, value = override.key_or_group, override.value()
    if override.is_delete():
        prepared.words.append(str(override.input_line))
        return
    if value is None and group == EXPERIMENT:
        return
    options = composer.options(group)
    if isinstance(value, str) and value in options:
        # Hydra refuses a `+` before a group that has a default, where it means the same
        plus = "+" if override.is_add() and group not in section_types() and group != EXPERIMENT else ""
        prepared.words.append(f"{plus}{group}={value}")
        prepared.choices[group] = value
        return
    prepared.distrusted.add(group)
    if composer.has_abstract(group):
        prepared.words.append(f"{group}={ABSTRACT}")
    if isinstance(value, list):
        several = ",".join(str(item) for item in value)
        line = (
            f"{group}={override.get_value_string()}: a run has one {group}; use -m {group}={several} for one run each"
        )
    else:
        line = missing_option(group, str(override.get_value_string()), registry, listed=options)
    prepared.problems.append(Problem(line, "group", group))


def _key(override: Override, composer: Composer, prepared: Prepared) -> None:
    """Add a value `group.key=value`, forced: the settings, not Hydra, decide which keys exist."""
    key, text = override.key_or_group, str(override.input_line)
    top = key.partition(".")[0]
    if top not in section_types() or (key == top and not isinstance(override.value(), dict)):
        prepared.problems.append(_unknown(override, composer))
    elif override.is_delete():
        prepared.words.append(text)
    else:
        # Hydra merges mappings: an empty one would change nothing. null replaces what is there, and composing makes it {}
        empty = override.value() == {}
        prepared.words.append(f"++{key}={'null' if empty else override.get_value_string()}")
        prepared.emptied += [key] * empty
        prepared.keys.pop(key, None)
        prepared.keys[key] = f"{key}={override.get_value_string()}"


def _unknown(override: Override, composer: Composer) -> Problem:
    key = override.key_or_group
    if "." in key:
        line = f"{key}: unknown key; {suggest(key, known_keys(section_types()))}"
        if nearest_name(key, known_keys(section_types())) is None:
            line = f"{key}: unknown key; the groups are {', '.join(composer.groups)}"
        return Problem(line, "key", key)
    shown = key if override.is_delete() else f"{key}={override.get_value_string()}"
    short = [ENDPOINT, *SHORT_WORDS]
    near = nearest_name(key, [*composer.groups, *short]) or nearest_name(key, known_keys(section_types()))
    hint = f"did you mean '{near}'?" if near else f"the groups are {', '.join(composer.groups)}"
    return Problem(f"{shown}: no such config group; {hint}", "key", key)


def override_of(keys: dict[str, str], path: str) -> str | None:
    """Return the override that set a dotted path: of the path itself, above it or below it; the last one wins."""
    for key, text in reversed(list(keys.items())):
        if path == key or path.startswith(f"{key}.") or key.startswith(f"{path}."):
            return text
    return None
