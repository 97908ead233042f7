"""Read the `tune.` words of a command, and the spaces of engines from the config group `tune`; every error is one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self, cast, get_args

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from servebench.config.consistency import refusals
from servebench.config.problems import nearest_name, suggest, summarize_error
from servebench.config.strict import Strict, parse_strict, read_yaml
from servebench.config.validate import check_section
from servebench.contracts.tuning import OBJECTIVES, Candidate, Origin, Share, TuneQuestion
from servebench.registry.conf import TUNE_FOLDER, config_folders
from servebench.registry.registry import Registry
from servebench.util.errors import ConfigError
from servebench.util.processes import usable_cpus

PREFIX = "tune."
SEARCHED = ("engine.", "model.")
"""Which keys a space may vary: those that shape the engine."""
NEVER = ("engine.name", "engine.host", "engine.port", "engine.executable", "model.name")
VALUES_MAX = 1000


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the `tune.` words of a command, and its other words."""
    own = [word for word in words if word.lstrip("+").startswith(PREFIX)]
    return own, [word for word in words if word not in own]


def parse_question(words: Sequence[str]) -> TuneQuestion:
    """Return the question that these `tune.` words ask. Raises ConfigError with all problems."""
    known = [f"{PREFIX}{one.name}" for one in fields(TuneQuestion)]
    values: dict[str, Any] = {}
    faults: list[str] = []
    for word in words:
        key = word.lstrip("+").partition("=")[0]
        if key not in known:
            faults.append(f"{word}: unknown key; {suggest(key, known)}")
            continue
        try:
            values[key.removeprefix(PREFIX)] = override_value(word)
        except ValueError as error:
            faults.append(str(error))
    for name in ("levels", "only"):
        if isinstance(values.get(name), str | int | float):
            values[name] = [values[name]]
    question, problems = check_section("tune", values, {"tune": TuneQuestion})
    faults += [problem.text for problem in problems]
    if question is not None:
        faults += _question_faults(question)
    if faults:
        raise ConfigError(faults)
    return cast("TuneQuestion", question)


def _question_faults(question: TuneQuestion) -> Iterator[str]:
    if question.objective not in OBJECTIVES:
        near = nearest_name(question.objective, list(OBJECTIVES))
        hint = f"did you mean {near}?" if near else f"use one of {', '.join(OBJECTIVES)}"
        yield f"tune.objective={question.objective}: unknown objective; {hint}"
    yield from refusals(lambda: question.budget_s, *(partial(question.share, name) for name in get_args(Share)))


def override_value(word: str) -> Any:
    """Return the value that a word `KEY=VALUE` sets, as Hydra reads it. Raises ValueError with one line."""
    key, _, text = word.partition("=")
    try:
        (parsed,) = OverridesParser.create().parse_overrides([word.lstrip("+")])
    except HydraException as error:
        raise ValueError(f"{word}: invalid override ({summarize_error(error)})") from error
    if parsed.is_sweep_override():
        raise ValueError(f"{word}: a tune has one question; write a list in brackets, as in {key}=[{text}]")
    value = parsed.value()
    # `tune.budget=90m` is text, and `tune.margin=3%` too
    return value if not isinstance(value, str) else value.strip("'\"")


def load_space(engine: str, registry: Registry, config_dirs: Sequence[str] = (), path: str | None = None) -> TuneSpace:
    """Return the space of an engine: that of a file, or of `tune/ENGINE.yaml` in the user's, built-in or plugins' folders.

    Raises ConfigError with all problems.
    """
    places = [Path(name) for name in config_dirs] + config_folders(registry.config_paths)
    files = [Path(path)] if path else [one / TUNE_FOLDER / f"{engine}.yaml" for one in places]
    found = next((file for file in files if path or file.is_file()), None)
    if found is None:
        known = sorted({file.stem for one in places for file in (one / TUNE_FOLDER).glob("*.yaml")})
        raise ConfigError(
            f"there is no space of settings for engine={engine}: write {TUNE_FOLDER}/{engine}.yaml and add its folder with "
            f"--config-dir, or name a file with tune.space=FILE (there are {', '.join(known)}; see docs/tune.md)"
        )
    return parse_space(engine, str(found), read_yaml(found))


def parse_space(engine: str, file: str, data: Any) -> TuneSpace:
    """Return the space in the contents of a YAML file. Raises ConfigError with all problems, each with file and key."""
    return TuneSpace.model_construct(engine=engine, file=file, **dict(parse_strict(_SpaceFile, data, file)))


def load_recipes(path: str, engine: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and settings in a file of recipes that are for this engine. Raises ConfigError with all problems.

    The file is a YAML list of `{name: ..., set: {KEY: VALUE}}`; `engine:` limits one to an engine.
    """
    found = enumerate(parse_strict(list[_Recipe], read_yaml(Path(path)), path), 1)
    return [(one.name or f"recipe {index}", one.settings) for index, one in found if one.engine in (None, engine)]


def _searched(key: str) -> str:
    if not key.startswith(SEARCHED) or key in NEVER:
        raise ValueError(
            "cannot be varied: name a setting of the engine, such as engine.max_num_seqs or engine.extra_args.FLAG"
        )
    return key


def _resolved(value: Any) -> Any:
    """The value with `cores` and `cores/N` of this machine as numbers."""
    if not (isinstance(value, str) and value.startswith("cores")):
        return value
    cores = len(usable_cpus())
    rest = value.removeprefix("cores")
    if rest and not (rest[0] in "/*" and rest[1:].isdigit() and int(rest[1:])):
        raise ValueError(f"write cores, cores/2 or cores*2 (got {value})")
    number = int(rest[1:] or 1)
    return max(1, cores * number if rest.startswith("*") else cores // number)


_Key = Annotated[str, AfterValidator(_searched)]
_Value = Annotated[Any, AfterValidator(_resolved)]
_Number = Annotated[int | float, BeforeValidator(_resolved)]
_Settings = Annotated[dict[_Key, _Value], Field(min_length=1, alias="set")]
_When = dict[str, Any]


class _Range(Strict):
    first: Annotated[_Number, Field(alias="from")]
    last: Annotated[_Number, Field(alias="to")]
    step: Annotated[int | float | None, Field(gt=0)] = None
    factor: Annotated[int | float | None, Field(gt=1)] = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.step is None) == (self.factor is None):
            raise ValueError("needs either a step above 0 or a factor above 1")
        if self.factor is not None and self.first <= 0:
            raise ValueError(f"with a factor must begin above 0 (got {self.first})")
        if not 1 <= len(self.values) <= VALUES_MAX:
            raise ValueError(f"must have 1 to {VALUES_MAX} values")
        return self

    @property
    def values(self) -> tuple[int | float, ...]:
        """All values, as far as VALUES_MAX and one more."""
        found: list[int | float] = []
        value = self.first
        while value <= self.last and len(found) <= VALUES_MAX:
            found.append(value)
            value = value + self.step if self.step is not None else type(value)(value * (self.factor or 1))
        return tuple(found)


class TuneParameter(Strict):
    """A setting that may be varied: the values to try, of which null is the engine's own default.

    It is only varied where `when` holds. `answers`: another value may change the answers of the model. `source` says where the
    engine documents it.
    """

    listed: Annotated[tuple[_Value, ...] | None, Field(min_length=1, alias="values")] = None
    range: _Range | None = None
    unit: str = ""
    source: str = ""
    answers: bool = False
    when: _When = Field(default_factory=dict)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.listed is None) == (self.range is None):
            raise ValueError("needs either values or range")
        return self

    @property
    def values(self) -> tuple[Any, ...]:
        """The values, listed or in a range."""
        return self.listed or (self.range.values if self.range is not None else ())


class TuneRule(Strict):
    """A rule of thumb: settings to try where `when` holds."""

    name: str = ""
    settings: _Settings
    when: _When = Field(default_factory=dict)


class ForbiddenSettings(Strict):
    """Settings that cannot work together, and why: they are refused before a launch."""

    when: _When
    why: Annotated[str, Field(min_length=1)]


class _SpaceFile(Strict):
    source: str = ""
    parameters: Annotated[dict[_Key, TuneParameter], Field(min_length=1)]
    rules: tuple[TuneRule, ...] = ()
    forbidden: tuple[ForbiddenSettings, ...] = ()


class TuneSpace(_SpaceFile):
    """The space of one engine, from its YAML in the config group `tune`: the parameters by their config keys."""

    engine: str
    file: str

    def candidate(self, name: str, origin: Origin, settings: Mapping[str, Any], **more: Any) -> Candidate:
        """Return these settings as a candidate, of which `answers` says whether one of them may change what the model answers. Of
        those that the space does not know, only the common ones of servebench that say how much an engine does at a time are
        known not to; `more` are other fields."""
        known = {key: one.answers for key, one in self.parameters.items()}
        answers = any(known.get(key, key not in HARMLESS) for key, value in settings.items() if value is not None)
        fields = {"engine": self.engine, **more}
        return Candidate(name=name, origin=origin, settings=dict(settings), answers=answers, **fields)


HARMLESS = (
    *("engine.max_num_seqs", "engine.gpu_memory_fraction", "engine.threads", "engine.prefix_caching"),
    *("engine.tensor_parallel_size", "engine.ready_timeout_s", "engine.request_timings"),
)


class _Recipe(Strict):
    name: str = ""
    settings: _Settings
    engine: str | None = None
