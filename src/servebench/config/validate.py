"""From the plain dict of a composed config to frozen settings, with every fault told as a line."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import PurePath
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from servebench.config.absent import absent
from servebench.config.combine import normalised, section_faults
from servebench.config.faults import Fault, did_you_mean, nearest, show
from servebench.config.keys import Types, known_keys, section_types
from servebench.contracts.settings import RunSettings
from servebench.registry.registry import Registry
from servebench.util.errors import ConfigError

Origin = Callable[[str], str]
"""Says where the value at a dotted key came from: ` (from load.concurrency=[0])`, or nothing."""

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
}


NO_CLASS = frozenset({("quality", "none"), ("quality", "all")})
"""Options of a group of classes that stand for none of them, or for all."""


@dataclass
class Checked:
    """What came of a config: the sections that are right, and what is wrong with the others."""

    sections: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    settings: RunSettings | None = None


def check(
    plain: Mapping[str, Any],
    registry: Registry,
    *,
    origin: Origin = lambda _: "",
    distrusted: Collection[str] = (),
    options: Mapping[str, tuple[str, ...]] | None = None,
) -> Checked:
    """Check a whole config. `settings` of the answer is set when nothing is wrong.

    `distrusted` sections hold a stand-in for an option that does not exist: only what cannot depend on it is told.
    `options` are the options of each group, to name them when a class is missing.
    """
    plain = _lenient(plain)
    checked = Checked()
    types: dict[str, Any] = {}
    trusted: dict[str, bool] = {}
    for section, base in section_types().items():
        kind, fault = _type_of(section, base, plain.get(section), registry, options or {})
        types[section] = kind
        trusted[section] = section not in distrusted and fault is None
        if fault is not None and section not in distrusted:
            checked.faults.append(fault)
    for section in plain:
        if section not in types:
            text = f"{section}: unknown key; {did_you_mean(section, [*types, *known_keys(types)])}"
            checked.faults.append(Fault(text + origin(section), "key", section))
    for section in types:
        value, faults = _check_section(section, plain.get(section), types, origin)
        if trusted[section]:
            checked.faults.extend(faults)
        else:
            checked.faults.extend(_independent(section, faults))
        if value is not None and trusted[section]:
            checked.sections[section] = value
    _combine(checked, registry)
    return checked


def _independent(section: str, faults: list[Fault]) -> list[Fault]:
    """What is wrong whichever option was meant: not its name, and no key that only the right option may know."""
    return [fault for fault in faults if fault.kind == "value" and fault.path != f"{section}.name"]


def settings_from_dict(resolved: Mapping[str, Any], registry: Registry) -> RunSettings:
    """The settings of a stored config (a manifest's), checked like a composed one; nothing in it is evaluated.

    Raises ConfigError with every fault: an unknown key, a value that does not fit, an interpolation, a missing engine.
    """
    faults = [
        Fault(f"{path}: {show(value)} is not allowed: an interpolation must be resolved before it is stored", "value")
        for path, value in _leaves(resolved, "")
        if isinstance(value, str) and "${" in value
    ]
    checked = check(resolved, registry)
    faults.extend(checked.faults)
    if faults or checked.settings is None:
        raise ConfigError([fault.text for fault in faults])
    return checked.settings


def to_plain(settings: RunSettings) -> dict[str, Any]:
    """The settings as a dict that JSON can hold and `settings_from_dict` takes back."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return plain


def _combine(checked: Checked, registry: Registry) -> None:
    """Check what settings mean together, and build the whole when nothing is wrong."""
    sections = checked.sections
    engine = sections.get("engine")
    launchable = engine is None or bool(registry.kinds["engine"][engine.name].launchable)
    launch = sections.get("launch")
    local = launch is None or bool(registry.kinds["launch"][launch.name].local)
    for line in section_faults(sections, launchable=launchable, local=local):
        checked.faults.append(Fault(line, "combination"))
    if not checked.faults and len(sections) == len(section_types()):
        checked.settings = normalised(RunSettings(**sections))


def _lenient(plain: Mapping[str, Any]) -> dict[str, Any]:
    """What is plainly meant: a bare number as a list of one level, a model's name from its path."""
    copied: dict[str, Any] = copy.deepcopy(dict(plain))
    load = copied.get("load")
    if isinstance(load, dict):
        for key in ("concurrency", "rate"):
            value = load.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                load[key] = [value]
    quality = copied.get("quality")
    if isinstance(quality, dict):
        for key, kind in (("concurrency", int), ("tasks", str)):
            value = quality.get(key)
            if isinstance(value, kind) and not isinstance(value, bool):
                quality[key] = [value]
    model = copied.get("model")
    if isinstance(model, dict) and model.get("name") is None and isinstance(model.get("path"), str) and model["path"]:
        model["name"] = PurePath(model["path"]).name.removesuffix(".gguf")
    return copied


def _type_of(
    section: str, base: Any, value: Any, registry: Registry, options: Mapping[str, tuple[str, ...]]
) -> tuple[Any, Fault | None]:
    """The type that a section must have: that of the chosen class where classes are chosen by name."""
    if section not in registry.kinds or not isinstance(value, Mapping):
        return base, None
    name = value.get("name")
    if not isinstance(name, str) or (section, name) in NO_CLASS:
        return base, None
    found = registry.kinds[section].get(name)
    if found is None:
        line = absent(section, name, registry, listed=options.get(section, ()))
        return base, Fault(line, "class", f"{section}.name")
    return found.settings_type, None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _check_section(section: str, value: Any, types: Types, origin: Origin) -> tuple[Any, list[Fault]]:
    """One section's settings, or null and its faults."""
    if value is None:
        return None, [Fault(f"{section}: nothing is chosen; choose with {section}=NAME", "value", section)]
    if not isinstance(value, Mapping):
        line = f"{section}: {show(value)} is not allowed: must be a mapping{origin(section)}"
        return None, [Fault(line, "value", section)]
    problems: dict[str, str] = {}
    storable = _storable(value, section, problems)
    faults = [Fault(f"{path}: {problem}{origin(path)}", "value", path) for path, problem in problems.items()]
    # strict: true is no 1 and '8' is no 8. As JSON, because in strict mode only JSON lists become tuples
    adapter = _adapter(types[section])
    try:
        found = adapter.validate_json(json.dumps(storable), strict=True)
    except ValidationError as error:
        storable = _with_numbers_as_text(storable, error.errors(include_url=False))
        try:
            found = adapter.validate_json(json.dumps(storable), strict=True)
        except ValidationError as last:
            told = _told(section, storable, last.errors(include_url=False), types, origin)
            return None, faults + [fault for fault in told if fault.path not in problems]
    return (None, faults) if faults else (found, [])


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value that is no mapping or list, with its dotted path."""
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _storable(value: Any, path: str, problems: dict[str, str]) -> Any:
    """A copy without what JSON cannot hold and what a config library would act upon; why, by path, in `problems`."""
    if not isinstance(value, Mapping | list | tuple):
        return value
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else enumerate(value)
    is_mapping = isinstance(value, Mapping)
    kept: list[tuple[Any, Any]] = []
    for key, item in items:
        where = f"{path}.{key}"
        problem = (_bad_key(key) if is_mapping else None) or _bad_value(where, item)
        if problem is None:
            kept.append((key, _storable(item, where, problems)))
        else:
            problems[where] = problem
    return dict(kept) if is_mapping else [item for _, item in kept]


def _bad_key(key: Any) -> str | None:
    if not isinstance(key, str):
        return f"the key {show(key)} is not allowed: must be text; quote it"
    if key == "_target_":
        return "unknown key; nothing is constructed from a config"
    return None


def _bad_value(path: str, value: Any) -> str | None:
    if isinstance(value, str) and value == "???":
        return f"must be given, as {path}=VALUE"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not allowed: must be a finite number"
    if value is None or isinstance(value, str | int | float | Mapping | list | tuple):
        return None
    return f"{show(value)} is not allowed: must be text, a number, true, false or null"


def _with_numbers_as_text(value: Mapping[str, Any], errors: list[ErrorDetails]) -> Any:
    """A copy in which whole numbers that stand where text must be are text: `engine.env.OMP_NUM_THREADS=4`."""
    copied = copy.deepcopy(value)
    for error in errors:
        given = error["input"]
        path = _data_path(value, error)
        if error["type"] != "string_type" or isinstance(given, bool) or not isinstance(given, int):
            continue
        target: Any = copied
        for part in path[:-1]:
            target = target[part]
        target[path[-1]] = str(given)
    return copied


def _data_path(value: Any, error: ErrorDetails) -> tuple[Any, ...]:
    """The error's place in the data: its location without the names of a union's alternatives."""
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


def _told(section: str, value: Any, errors: list[ErrorDetails], types: Types, origin: Origin) -> list[Fault]:
    """Pydantic's errors as lines, those of one place together: they are alternatives."""
    places: dict[tuple[Any, ...], list[ErrorDetails]] = {}
    for error in errors:
        places.setdefault(_data_path(value, error), []).append(error)
    # a mapping where a number could have been is judged as a mapping: what is wrong inside it is enough
    outer = {path for path in places for other in places if path == other[: len(path)] and path != other}
    return [_line(section, path, some, types, origin) for path, some in places.items() if path not in outer]


def _line(section: str, place: tuple[Any, ...], errors: list[ErrorDetails], types: Types, origin: Origin) -> Fault:
    path = ".".join([section, *(str(part) for part in place)])
    first = errors[0]
    if first["type"] == "unexpected_keyword_argument":
        known = known_keys(types)
        near = nearest(path, known)
        own = ", ".join(key for key in known if key.startswith(f"{section}.") and key.count(".") == 1)
        hint = f"did you mean '{near}'?" if near else f"known are {own}"
        source = origin(path)
        # on the command line the key itself is what was written
        source = "" if source.startswith(f" (from {path}=") else source
        return Fault(f"{path}: unknown key; {hint}{source}", "key", path)
    if first["type"] == "missing":
        return Fault(f"{path}: must be given, as {path}=VALUE", "value", path)
    expected = " or ".join(dict.fromkeys(_expected(error) for error in errors))
    line = f"{path}: {show(first['input'])} is not allowed: must be {expected}{origin(path)}"
    return Fault(line, "value", path)


def _expected(error: ErrorDetails) -> str:
    """What would have been right, to stand after `must be`."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "string_type" and error["input"] is not None:
        return "text (quoted twice on the command line: \"'...'\")"
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if kind == "literal_error":
        return str(context["expected"])
    bounds = {
        "greater_than_equal": lambda: f"{_bound(context['ge'])} or more",
        "greater_than": lambda: f"more than {_bound(context['gt'])}",
        "less_than_equal": lambda: f"{_bound(context['le'])} or less",
        "less_than": lambda: f"less than {_bound(context['lt'])}",
    }
    if kind in bounds:
        return bounds[kind]()
    message = error["msg"]
    return message[0].lower() + message[1:]


def _bound(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) and value >= 100_000 else f"{value:g}"
