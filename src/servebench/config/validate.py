"""Check the plain dict of a composed config and make frozen settings of it; every problem is one line."""

import copy
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, reduce
from operator import getitem
from pathlib import PurePath
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from servebench.config.consistency import section_problems, with_derived_values
from servebench.config.keys import Types, known_keys, section_types
from servebench.config.problems import Problem, format_value, missing_option, nearest_name, suggest
from servebench.contracts.precision import DURATION, SECONDS_IN
from servebench.contracts.settings import LengthSettings, RunSettings
from servebench.contracts.stored import mapping
from servebench.registry.registry import Registry
from servebench.registry.shorthand import RENAMED_KEYS
from servebench.util.errors import ConfigError
from servebench.util.plain_data import leaves

Origin = Callable[[str], str]
"""Returns where the value at a dotted key was set: `load.concurrency=[0]`, or an empty string."""

_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list, as in [A,B]",
    "list_type": "a list, as in [A,B]",
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
NO_CLASS = frozenset({("quality", "none"), ("quality", "all")})
"""Options without a class of their own: no scorer, and all scorers."""


@dataclass
class Checked:
    """The result of a check: the valid sections, and the problems of the others."""

    sections: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    settings: RunSettings | None = None


def check(
    plain: Mapping[str, Any],
    registry: Registry,
    *,
    origin: Origin = lambda _: "",
    distrusted: Collection[str] = (),
    options: Mapping[str, tuple[str, ...]] | None = None,
) -> Checked:
    """Check a whole config. `settings` of the result is set if there is no problem.

    `distrusted` sections hold a stand-in for an option that does not exist: only problems that do not depend on it are
    reported. `options` are the options of each group, for the message when a class is missing.
    """
    plain = _lenient(plain)
    checked = Checked()
    types: dict[str, Any] = {}
    trusted: set[str] = set()
    for section, base in section_types().items():
        types[section], problem = _type_of(section, base, plain.get(section), registry, options or {})
        if section in distrusted:
            continue
        if problem is None:
            trusted.add(section)
        else:
            checked.problems.append(problem)
    for section in plain:
        if section not in types:
            text = f"{section}: unknown key; {suggest(section, [*types, *known_keys(types)])}"
            checked.problems.append(Problem(text + _from(origin, section), "key", section))
    for section in types:
        value, problems = check_section(section, plain.get(section), types, origin)
        if section not in trusted:
            # only what does not depend on the option: not its name, and no keys that only the right option has
            problems = [one for one in problems if one.kind == "value" and one.path != f"{section}.name"]
        elif value is not None:
            checked.sections[section] = value
        name = mapping(plain.get(section)).get("name")
        checked.problems += [_of_other_kinds(section, one, name, registry, origin) for one in problems]
    _combine(checked, registry)
    return checked


def settings_from_dict(resolved: Mapping[str, Any], registry: Registry) -> RunSettings:
    """Return the settings of a stored config (of a manifest), checked like a composed one; nothing in it is evaluated.

    Raises ConfigError with every problem: unknown keys, invalid values, interpolations, a missing engine.
    """
    problems = [
        Problem(f"{show_path(path)} must not be an interpolation (got {format_value(value)})", "value")
        for path, value in leaves(resolved)
        if isinstance(value, str) and "${" in value
    ]
    checked = check(_with_todays_keys(resolved), registry)
    problems.extend(checked.problems)
    if problems or checked.settings is None:
        raise ConfigError([problem.text for problem in problems])
    return checked.settings


RETIRED = (("gpu", "power_w"), ("engine", "measure_restart"), ("load", "search", "goal"), ("load", "search", "share"))
"""Keys that earlier versions stored."""


def _with_todays_keys(resolved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored config without the keys that are no more, and with the names of today."""
    config: Any = copy.deepcopy(dict(resolved))
    for *sections, key in RETIRED:
        reduce(lambda found, name: mapping(found.get(name)), sections, config).pop(key, None)
    if isinstance(load := config.get("load"), dict):
        names = {old.partition(".")[2]: now.partition(".")[2] for old, now in RENAMED_KEYS.items()}
        config["load"] = {names.get(key, key): value for key, value in load.items()}
    return dict(config)


def to_plain(settings: RunSettings) -> dict[str, Any]:
    """Return the settings as a JSON-compatible dict that `settings_from_dict` accepts."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return plain


def _combine(checked: Checked, registry: Registry) -> None:
    sections = checked.sections
    engine = sections.get("engine")
    launchable = engine is None or bool(registry.kinds["engine"][engine.name].launchable)
    launch = sections.get("launch")
    local = launch is None or bool(registry.kinds["launch"][launch.name].local)
    for line in section_problems(sections, launchable=launchable, local=local):
        checked.problems.append(Problem(line, "combination"))
    if not checked.problems and len(sections) == len(section_types()):
        checked.settings = with_derived_values(RunSettings(**sections))


_LISTS: tuple[tuple[str, str, tuple[type, ...]], ...] = (
    *(("load", key, (int, float)) for key in ("concurrency", "rate")),
    *(("quality", key, (kind,)) for key, kind in (("concurrency", int), ("tasks", str))),
)
"""Lists that may be written as their only value, of these types: (group, key, types)."""


def _lenient(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with obvious shorthand spelled out: a number as a list of one level, a model's name from its path, and
    `8..24` in a workload as the uniform distribution from 8 to 24, and `10m` at a key in seconds as 600."""
    copied: dict[str, Any] = copy.deepcopy(dict(plain))
    for group, key, kinds in _LISTS:
        section = copied.get(group)
        value = section.get(key) if isinstance(section, dict) else None
        if section is not None and isinstance(value, kinds) and not isinstance(value, bool):
            section[key] = [value]
    model = copied.get("model")
    if isinstance(model, dict) and model.get("name") is None and isinstance(model.get("path"), str) and model["path"]:
        model["name"] = PurePath(model["path"]).name.removesuffix(".gguf")
    if isinstance(copied.get("workload"), dict):
        copied["workload"] = with_ranges(copied["workload"])
    return {section: with_seconds(value) for section, value in copied.items()}


OTHERS_KEYS = ("env", "extra_args", "body", "headers")
"""Mappings whose keys belong to the engine or the server."""


def with_seconds(value: Any) -> Any:
    """Return a copy in which each duration such as `90s` or `10m`, at a key that ends in `_s`, is a number of seconds."""
    if not isinstance(value, dict):
        return value
    return {
        key: float(found[1]) * SECONDS_IN[found[2]]
        if str(key).endswith("_s") and isinstance(item, str) and (found := DURATION.fullmatch(item))
        else (item if key in OTHERS_KEYS else with_seconds(item))
        for key, item in value.items()
    }


def with_ranges(value: Any) -> Any:
    """Return a copy in which each text `8..24` is a uniform distribution."""
    if isinstance(value, dict):
        return {key: with_ranges(item) for key, item in value.items()}
    found = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", value) if isinstance(value, str) else None
    return value if found is None else {"kind": "uniform", "min": int(found[1]), "max": int(found[2])}


def _type_of(
    section: str, base: Any, value: Any, registry: Registry, options: Mapping[str, tuple[str, ...]]
) -> tuple[Any, Problem | None]:
    """Return the type of a section: that of its class, where `name` chooses a class."""
    if section not in registry.kinds or not isinstance(value, Mapping):
        return base, None
    name = value.get("name")
    if not isinstance(name, str) or (section, name) in NO_CLASS:
        return base, None
    found = registry.kinds[section].get(name)
    if found is None:
        line = missing_option(section, name, registry, listed=options.get(section, ()))
        return base, Problem(line, "class", f"{section}.name")
    return getattr(found, "settings_type", base), None


def _of_other_kinds(section: str, problem: Problem, name: Any, registry: Registry, origin: Origin) -> Problem:
    """Return the problem of an unknown key with the kinds that have it, if some do; any other problem as it is."""
    key = problem.path.removeprefix(f"{section}.")
    if problem.kind != "key":
        return problem
    # a source of telemetry has no settings of its own
    classes = registry.kinds.get(section, {}).items()
    settings = {kind: one.settings_type for kind, one in classes if hasattr(one, "settings_type")}
    has = sorted(kind for kind, type_ in settings.items() if key in {field.name for field in fields(type_)})
    if not has:
        return problem
    text = f"{problem.path}: unknown key of {section} '{name}'; these have it: {', '.join(has)}"
    return replace(problem, text=text + _from(origin, problem.path))


_adapter = cache(TypeAdapter)


def check_section(section: str, value: Any, types: Types, origin: Origin = lambda _: "") -> tuple[Any, list[Problem]]:
    """Return the settings of one section, or None and its problems. `types` has the dataclass of the section, by its path."""
    if value is None:
        return None, [Problem(f"{section} must be chosen, with {section}=NAME", "value", section)]
    if not isinstance(value, Mapping):
        return None, [_must(section, "be a mapping", value, origin)]
    problems: list[Problem] = []
    storable = _storable(value, section, problems, origin)
    paths = {problem.path for problem in problems}
    # strict: true is not 1 and '8' is not 8. As JSON, because in strict mode only JSON lists become tuples
    adapter = _adapter(types[section])
    try:
        found = adapter.validate_json(json.dumps(storable), strict=True)
    except ValidationError as error:
        storable = _with_numbers_as_text(storable, error.errors(include_url=False))
        try:
            found = adapter.validate_json(json.dumps(storable), strict=True)
        except ValidationError as last:
            more = _as_problems(section, storable, last.errors(include_url=False), types, origin)
            return None, problems + [problem for problem in more if problem.path not in paths]
    return (None, problems) if problems else (found, [])


def _storable(value: Any, path: str, problems: list[Problem], origin: Origin) -> Any:
    """Return a copy without values that JSON cannot hold or that a config library would act upon; append their problems."""
    if not isinstance(value, Mapping | list | tuple):
        return value
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else enumerate(value)
    is_mapping = isinstance(value, Mapping)
    kept: list[tuple[Any, Any]] = []
    for key, item in items:
        where = f"{path}.{key}"
        problem = (_bad_key(where, key, origin) if is_mapping else None) or _bad_value(where, item, origin)
        if problem is None:
            kept.append((key, _storable(item, where, problems, origin)))
        else:
            problems.append(problem)
    return dict(kept) if is_mapping else [item for _, item in kept]


def _bad_key(path: str, key: Any, origin: Origin) -> Problem | None:
    if not isinstance(key, str):
        return Problem(f"{path}: a key must be text; quote it (got {format_value(key)})", "value", path)
    if key == "_target_":
        return Problem(f"{path}: unknown key; a config cannot construct objects{_from(origin, path)}", "value", path)
    return None


def _bad_value(path: str, value: Any, origin: Origin) -> Problem | None:
    if isinstance(value, str) and value == "???":
        return _missing_value(path)
    if isinstance(value, float) and not math.isfinite(value):
        return _must(path, "be a finite number", value, origin)
    if value is None or isinstance(value, str | int | float | Mapping | list | tuple):
        return None
    return _must(path, "be text, a number, true, false or null", value, origin)


def show_path(path: str) -> str:
    """Return a dotted path with list indexes in brackets: `load.concurrency[0]`."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path)


def _must(path: str, rule: str, value: Any, origin: Origin) -> Problem:
    """Return the problem of a value that breaks a rule: what is wrong, and where it was set."""
    where = ", ".join(filter(None, (f"got {format_value(value)}", _source(origin, path))))
    return Problem(f"{show_path(path)} must {rule} ({where})", "value", path)


def _missing_value(path: str) -> Problem:
    return Problem(f"{show_path(path)} is required; set {path}=VALUE", "value", path)


def _source(origin: Origin, path: str) -> str:
    """Return where a value was set; nothing for an override of exactly this key, which shows nothing new."""
    source = origin(path)
    return f"from {source}" if source and not source.startswith(f"{path}=") else ""


def _from(origin: Origin, path: str) -> str:
    source = _source(origin, path)
    return f" ({source})" if source else ""


def _with_numbers_as_text(value: Mapping[str, Any], errors: list[ErrorDetails]) -> Any:
    """Return a copy with integers as text where text is required: `engine.env.OMP_NUM_THREADS=4`."""
    copied = copy.deepcopy(value)
    for error in errors:
        given = error["input"]
        if error["type"] == "string_type" and isinstance(given, int) and not isinstance(given, bool):
            *parents, key = _data_path(value, error)
            target: Any = reduce(getitem, parents, copied)
            target[key] = str(given)
    return copied


def _data_path(value: Any, error: ErrorDetails) -> tuple[Any, ...]:
    """Return the error's place in the data: its location without the names of a union's alternatives."""
    path: list[Any] = []
    here: Any = value
    for part in error["loc"]:
        in_mapping = isinstance(here, Mapping) and part in here
        if in_mapping or (isinstance(here, list) and isinstance(part, int)):
            path.append(part)
            here = here[part]
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    return tuple(path)


def _as_problems(section: str, value: Any, errors: list[ErrorDetails], types: Types, origin: Origin) -> list[Problem]:
    places: dict[tuple[Any, ...], list[ErrorDetails]] = {}
    for error in errors:
        places.setdefault(_data_path(value, error), []).append(error)
    # a mapping where a number is allowed too is checked as a mapping: report only the problems inside it
    outer = {path for path in places for other in places if path == other[: len(path)] and path != other}
    return [_problem_at(section, path, some, types, origin) for path, some in places.items() if path not in outer]


def _problem_at(
    section: str, place: tuple[Any, ...], errors: list[ErrorDetails], types: Types, origin: Origin
) -> Problem:
    """Return the problem of one place in a section; several errors there are alternatives."""
    path = ".".join([section, *(str(part) for part in place)])
    first = errors[0]
    if first["type"] == "unexpected_keyword_argument":
        known = known_keys(types)
        parent = path.rpartition(".")[0]
        siblings = [key for key in known if key.rpartition(".")[0] == parent]
        # inside a mapping such as load.ramp its own keys are meant, and not the mapping
        near = nearest_name(path, known if parent == section else siblings)
        own = ", ".join(siblings)
        hint = f"did you mean '{near}'?" if near else f"known keys: {own}"
        return Problem(f"{path}: unknown key; {hint}{_from(origin, path)}", "key", path)
    if first["type"] == "missing":
        return _missing_value(path)
    if said := [error["msg"].removeprefix("Value error, ") for error in errors if error["type"] == "value_error"]:
        return Problem(f"{show_path(path)}: {said[0]}{_from(origin, path)}", "value", path)
    rule, *others = dict.fromkeys(rule_of(error) for error in errors)
    return _must(path, " or ".join((rule, *(other.removeprefix("be ") for other in others))), first["input"], origin)


def rule_of(error: ErrorDetails) -> str:
    """Return what the value must do, to follow "must"."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "string_type" and error["input"] is not None:
        return "be text (quoted twice on the command line: \"'...'\")"
    if kind == "too_short":
        return "not be empty"
    expected = _EXPECTED.get(kind)
    if kind == "float_type" and any(str(part).endswith("_s") for part in error["loc"]):
        expected = "a time such as 90s or 10m, or a number of seconds"
    elif kind == "dataclass_type" and context["class_name"] == LengthSettings.__name__:
        expected = "a range such as 8..24 or a mapping"
    if expected is not None:
        return f"be {expected}"
    if kind == "literal_error":
        return f"be {context['expected']}"
    bounds = {
        "greater_than_equal": ("ge", "be at least"),
        "greater_than": ("gt", "be greater than"),
        "less_than_equal": ("le", "be at most"),
        "less_than": ("lt", "be less than"),
    }
    if kind in bounds:
        key, words = bounds[kind]
        value = context[key]
        return f"{words} {value:,}" if isinstance(value, int) and value >= 100_000 else f"{words} {value:g}"
    message = error["msg"]
    return f"fit: {message[0].lower()}{message[1:]}"
