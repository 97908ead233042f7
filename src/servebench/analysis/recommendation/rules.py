"""The rules of `recommend.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from servebench.analysis.slo import SloLimits
from servebench.config.strict import Strict, parse_strict
from servebench.contracts.point_row import POINT_COLUMNS
from servebench.util.bounded_file import STATE_BYTES_MAX, load_yaml, read_bytes
from servebench.util.errors import ConfigError, reason_of

COLD_START = "cold_start"
"""The metric that no column holds: the seconds of a cold start."""
_BETTER = {name: one.better for name, one in POINT_COLUMNS.items()}
_UNITS = {name: one.unit for name, one in POINT_COLUMNS.items()}
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class UseCase:
    """A rule, with the fields of recommend.yaml."""

    name: str
    title: str
    measure: str
    metric: str = COLD_START
    workloads: tuple[str, ...] | None = None
    limits: SloLimits = field(default_factory=SloLimits)
    own_slo: bool = False
    max_load: float | None = None
    require: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    across: tuple[str, ...] = ()

    @property
    def lower_is_better(self) -> bool:
        """Whether a small score is a good one."""
        return self.metric == COLD_START or _BETTER.get(self.metric) == "lower"

    @property
    def unit(self) -> str:
        """The unit of the score."""
        return "s" if self.metric == COLD_START else _UNITS.get(self.metric, "")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All rules; the margins are shares."""

    use_cases: tuple[UseCase, ...]
    margin: float = 0.05
    once_margin: float = 0.25


class _Slo(Strict):
    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    e2e_ms: Positive | None = None
    attainment: Annotated[float, Field(gt=0, le=1)] = 0.99


class _Range(Strict):
    min: float | None = None
    max: float | None = None


class _Rule(Strict):
    title: str | None = None
    workloads: tuple[str, ...] | None = None
    measure: Literal["best", "within_slo", "lowest_load", "cold_start"]
    metric: str | None = None
    slo: _Slo | None = None
    own_slo: bool = False
    max_load: Positive | None = None
    require: dict[str, _Range] | None = None
    across: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.measure != "cold_start" and not self.metric:
            raise ValueError("metric must name a column of points.csv")
        slo = self.slo or _Slo()
        if self.measure == "within_slo" and (slo.ttft_ms, slo.tpot_ms, slo.e2e_ms) == (None, None, None):
            raise ValueError("measure=within_slo needs a limit in slo")
        return self


class _Rules(Strict):
    margin: Share = 0.05
    once_margin: Share = 0.25
    use_cases: dict[str, _Rule]


def rules_text() -> str:
    """Return the default rules as YAML."""
    return (resources.files("servebench.analysis.recommendation") / "recommend.yaml").read_text(encoding="utf-8")


def load_rules(path: Path | None = None) -> Rules:
    """Return the rules of a file, or the default ones. Raises ConfigError with everything that is wrong."""
    import yaml

    where = f"--rules {path}" if path else "recommend.yaml"
    try:
        text = read_bytes(path, STATE_BYTES_MAX).decode() if path else rules_text()
        data = load_yaml(text)
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {reason_of(error)}") from error
    except ValueError as error:
        raise ConfigError(f"{where} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict) or not isinstance(data.get("use_cases"), dict):
        raise ConfigError(f"{where} has no use_cases; 'servebench recommend --show-rules' prints an example")
    rules = parse_strict(_Rules, data, where)
    return Rules(
        use_cases=tuple(_use_case(name, rule) for name, rule in rules.use_cases.items()),
        margin=rules.margin,
        once_margin=rules.once_margin,
    )


def _use_case(name: str, rule: _Rule) -> UseCase:
    return UseCase(
        name=name,
        title=rule.title or name,
        measure=rule.measure,
        metric=rule.metric or COLD_START,
        workloads=rule.workloads or None,
        limits=SloLimits(**(rule.slo or _Slo()).model_dump()),
        own_slo=rule.own_slo,
        max_load=rule.max_load,
        require={column: limits.model_dump(exclude_none=True) for column, limits in (rule.require or {}).items()},
        across=rule.across or (),
    )
