"""Read the `tune.` words of a command, and the spaces of engines from the config group `tune`; every error is one line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from pydantic import TypeAdapter, ValidationError

from servebench.config.problems import nearest_name, summarize_error
from servebench.contracts.tuning import (
    OBJECTIVES,
    ForbiddenSettings,
    TuneParameter,
    TuneQuestion,
    TuneRule,
    TuneSpace,
)
from servebench.registry.conf import TUNE_FOLDER, config_folders
from servebench.registry.registry import Registry
from servebench.util.bounded_file import STATE_BYTES_MAX, load_yaml, read_bytes
from servebench.util.errors import ConfigError, reason_of

PREFIX = "tune."
SEARCHED = ("engine.", "model.")
"""Which keys a space may vary: those that shape the engine."""
NEVER = ("engine.name", "engine.host", "engine.port", "engine.executable", "model.name")
SPACE_KEYS = ("source", "parameters", "rules", "forbidden")
PARAMETER_KEYS = ("values", "range", "unit", "source", "answers", "when")
RULE_KEYS = ("name", "when", "set")
FORBIDDEN_KEYS = ("when", "why")
RECIPE_KEYS = ("name", "set", "engine")
RANGE_KEYS = ("from", "to", "step", "factor")
VALUES_MAX = 1000
TRIALS_MIN = 6
"""Starts that compare one candidate with stock: one of each in the race, and two of each in the finals."""


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the `tune.` words of a command, and its other words."""
    own = [word for word in words if word.lstrip("+").startswith(PREFIX)]
    return own, [word for word in words if word not in own]


def parse_question(words: Sequence[str]) -> TuneQuestion:
    """Return the question that these `tune.` words ask. Raises ConfigError with all problems."""
    known = [one.name for one in fields(TuneQuestion)]
    values: dict[str, Any] = {}
    faults: list[str] = []
    for word in words:
        key, _, text = word.lstrip("+").partition("=")
        name = key.removeprefix(PREFIX)
        if name not in known:
            near = nearest_name(name, known)
            hint = f"did you mean {PREFIX}{near}?" if near else f"known are {', '.join(known)}"
            faults.append(f"{word}: unknown key; {hint}")
            continue
        try:
            values[name] = _value(word, text)
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError(faults)
    return check_question(values)


def _value(word: str, text: str) -> Any:
    try:
        (parsed,) = OverridesParser.create().parse_overrides([word.lstrip("+")])
    except HydraException as error:
        raise ValueError(f"{word}: invalid override ({summarize_error(error)})") from error
    if parsed.is_sweep_override():
        raise ValueError(
            f"{word}: a tune has one question; write a list in brackets, as in {word.partition('=')[0]}=[{text}]"
        )
    value = parsed.value()
    # `tune.budget=90m` is text, and `tune.margin=3%` too
    return value if not isinstance(value, str) else value.strip("'\"")


def check_question(values: Mapping[str, Any]) -> TuneQuestion:
    """Return a question of these values. Raises ConfigError with all problems."""
    plain = dict(values)
    for name in ("levels", "only"):
        if plain.get(name) is not None and not isinstance(plain[name], list | tuple):
            plain[name] = [plain[name]]
    try:
        question = TypeAdapter(TuneQuestion).validate_python(plain)
    except ValidationError as error:
        raise ConfigError(
            [
                f"{PREFIX}{'.'.join(map(str, one['loc']))}: {one['msg'].lower()} (got {one['input']})"
                for one in error.errors()
            ]
        ) from error
    faults = []
    if question.objective not in OBJECTIVES:
        near = nearest_name(question.objective, list(OBJECTIVES))
        hint = f"did you mean {near}?" if near else f"use one of {', '.join(OBJECTIVES)}"
        faults.append(f"tune.objective={question.objective}: unknown objective; {hint}")
    for name in ("budget_s", "margin_share", "error_share", "quality_share"):
        try:
            getattr(question, name)
        except ValueError as error:
            faults.append(str(error))
    least = {"count": 2, "finalists": 1, "final_starts": 2, "trials": TRIALS_MIN}
    for name, low in least.items():
        value = getattr(question, name)
        if value is not None and value < low:
            faults.append(f"tune.{name} must be at least {low} (got {value})")
    if question.levels is not None and (not question.levels or min(question.levels) <= 0):
        faults.append(f"tune.levels must be load levels above 0, such as [32] (got {list(question.levels)})")
    if faults:
        raise ConfigError(faults)
    return question


def load_space(engine: str, registry: Registry, config_dirs: Sequence[str] = (), path: str | None = None) -> TuneSpace:
    """Return the space of an engine: that of a file, or of `tune/ENGINE.yaml` in the user's, built-in or plugins' folders.

    Raises ConfigError with all problems.
    """
    places = [Path(name) for name in config_dirs] + config_folders(registry)
    found = (
        Path(path)
        if path
        else next((file for one in places if (file := one / TUNE_FOLDER / f"{engine}.yaml").is_file()), None)
    )
    if found is None:
        known = sorted({file.stem for one in places for file in (one / TUNE_FOLDER).glob("*.yaml")})
        raise ConfigError(
            f"there is no space of settings for engine={engine}: write {TUNE_FOLDER}/{engine}.yaml and add its folder with "
            f"--config-dir, or name a file with tune.space=FILE (there are {', '.join(known)}; see docs/tune.md)"
        )
    return parse_space(engine, str(found), read_mapping(found))


def read_mapping(path: Path) -> Any:
    """Return the value in a YAML file. Raises ConfigError."""
    import yaml

    try:
        return load_yaml(read_bytes(path, STATE_BYTES_MAX).decode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def parse_space(engine: str, file: str, data: Any) -> TuneSpace:
    """Return the space in the contents of a YAML file. Raises ConfigError with all problems, each with file and key."""
    read = _Reader(file)
    top = read.mapping("", data, SPACE_KEYS)
    parameters = [
        one
        for key, value in read.mapping("parameters", top.get("parameters") or {}).items()
        if (one := _parameter(read, str(key), value)) is not None
    ]
    rules = [_rule(read, f"rules[{i}]", one) for i, one in enumerate(read.items("rules", top.get("rules")))]
    forbidden = [
        _forbidden(read, f"forbidden[{i}]", one) for i, one in enumerate(read.items("forbidden", top.get("forbidden")))
    ]
    if not parameters and not read.faults:
        read.fault("parameters", "must have at least one parameter")
    read.finish()
    return TuneSpace(
        engine=engine,
        file=file,
        source=str(top.get("source") or ""),
        parameters=tuple(parameters),
        rules=tuple(rules),
        forbidden=tuple(forbidden),
    )


def load_recipes(path: str, engine: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and settings in a file of recipes that are for this engine. Raises ConfigError with all problems.

    The file is a YAML list of `{name: ..., set: {KEY: VALUE}}`; `engine:` limits one to an engine.
    """
    read = _Reader(path)
    found = []
    for index, one in enumerate(read.items("", read_mapping(Path(path)), whole=True)):
        where = f"[{index}]"
        recipe = read.mapping(where, one, RECIPE_KEYS)
        settings = _settings(read, f"{where}.set", recipe.get("set"))
        if recipe.get("engine") in (None, engine):
            found.append((str(recipe.get("name") or f"recipe {index + 1}"), settings))
    read.finish()
    return found


class _Reader:
    """Collects the faults of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.faults: list[str] = []

    def fault(self, where: str, what: str) -> None:
        """Note a fault."""
        self.faults.append(f"{self.file}: {where + ' ' if where else ''}{what}")

    def finish(self) -> None:
        """Raise ConfigError if there are faults."""
        if self.faults:
            raise ConfigError(self.faults)

    def mapping(self, where: str, value: Any, known: Sequence[str] = ()) -> Mapping[str, Any]:
        """Return a mapping with known keys, or note a fault and return an empty one."""
        if not isinstance(value, Mapping):
            self.fault(where, f"must be a mapping (got {_shown(value)})")
            return {}
        for key in value:
            if known and key not in known:
                near = nearest_name(str(key), list(known))
                hint = f"did you mean {near}?" if near else f"known are {', '.join(known)}"
                self.fault(where, f"has an unknown key '{key}'; {hint}")
        return value

    def items(self, where: str, value: Any, *, whole: bool = False) -> Sequence[Any]:
        """Return a list, or note a fault and return an empty one."""
        if value is None and not whole:
            return ()
        if not isinstance(value, list):
            self.fault(where, f"must be a list (got {_shown(value)})")
            return ()
        return value


def _parameter(read: _Reader, key: str, value: Any) -> TuneParameter | None:
    where = f"parameters.{key}"
    before = len(read.faults)
    _check_key(read, where, key)
    own = read.mapping(where, value, PARAMETER_KEYS)
    if ("values" in own) == ("range" in own):
        if own:
            read.fault(where, "needs either values or range")
        values: list[Any] = []
    elif "values" in own:
        values = [
            _resolved(read, f"{where}.values", one) for one in read.items(f"{where}.values", own["values"], whole=True)
        ]
    else:
        values = _range(read, f"{where}.range", own["range"])
    if len(values) < 1 and len(read.faults) == before:
        read.fault(f"{where}.values", "must not be empty")
    if not isinstance(own.get("answers", False), bool):
        read.fault(f"{where}.answers", f"must be true or false (got {_shown(own['answers'])})")
    when = read.mapping(f"{where}.when", own.get("when") or {})
    if len(read.faults) > before:
        return None
    return TuneParameter(
        key=key,
        values=tuple(values),
        unit=str(own.get("unit") or ""),
        source=str(own.get("source") or ""),
        answers=bool(own.get("answers", False)),
        when=dict(when),
    )


def _check_key(read: _Reader, where: str, key: str) -> None:
    if not key.startswith(SEARCHED) or key in NEVER:
        read.fault(
            where,
            "cannot be varied: name a setting of the engine, such as engine.max_num_seqs or engine.extra_args.FLAG",
        )


def _resolved(read: _Reader, where: str, value: Any) -> Any:
    """The value with `cores` and `cores/N` of this machine as numbers."""
    if not (isinstance(value, str) and value.startswith("cores")):
        return value
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rest = value.removeprefix("cores")
    if not rest:
        return cores
    divisor = rest[1:]
    if rest[0] not in "/*" or not divisor.isdigit() or not int(divisor):
        read.fault(where, f"has {_shown(value)}; write cores, cores/2 or cores*2")
        return None
    return max(1, cores // int(divisor) if rest[0] == "/" else cores * int(divisor))


def _range(read: _Reader, where: str, value: Any) -> list[Any]:
    own = read.mapping(where, value, RANGE_KEYS)
    low, high = (_resolved(read, f"{where}.{name}", own.get(name)) for name in ("from", "to"))
    step, factor = own.get("step"), own.get("factor")
    numbers = [one for one in (low, high, step, factor) if one is not None]
    if any(not isinstance(one, int | float) or isinstance(one, bool) for one in numbers) or low is None or high is None:
        read.fault(where, "needs numbers for from and to, and for step or factor")
        return []
    if (step is None) == (factor is None) or (step is not None and step <= 0) or (factor is not None and factor <= 1):
        read.fault(where, "needs either a step above 0 or a factor above 1")
        return []
    if factor is not None and low <= 0:
        read.fault(where, "with a factor must begin above 0")
        return []
    found: list[Any] = []
    while low <= high and len(found) <= VALUES_MAX:
        found.append(low)
        low = low + step if step is not None else type(low)(low * factor)
    if not found or len(found) > VALUES_MAX:
        read.fault(where, f"must have 1 to {VALUES_MAX} values")
        return []
    return found


def _settings(read: _Reader, where: str, value: Any) -> dict[str, Any]:
    own = read.mapping(where, value)
    for key in own:
        _check_key(read, f"{where}.{key}", str(key))
    if not own and isinstance(value, Mapping):
        read.fault(where, "must set something")
    return {str(key): _resolved(read, f"{where}.{key}", one) for key, one in own.items()}


def _rule(read: _Reader, where: str, value: Any) -> TuneRule:
    own = read.mapping(where, value, RULE_KEYS)
    settings = _settings(read, f"{where}.set", own.get("set"))
    when = read.mapping(f"{where}.when", own.get("when") or {})
    return TuneRule(name=str(own.get("name") or where), settings=settings, when=dict(when))


def _forbidden(read: _Reader, where: str, value: Any) -> ForbiddenSettings:
    own = read.mapping(where, value, FORBIDDEN_KEYS)
    when = read.mapping(f"{where}.when", own.get("when"))
    if not own.get("why"):
        read.fault(f"{where}.why", "must say why the settings cannot work together")
    return ForbiddenSettings(when=dict(when), why=str(own.get("why") or ""))


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
