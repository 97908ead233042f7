"""The rules of `recommend.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from servebench.analysis.slo import SloLimits
from servebench.util.bounded_file import STATE_BYTES_MAX, load_yaml, read_bytes
from servebench.util.errors import ConfigError, reason_of

LOWER_IS_BETTER = ("_ms", "cost_", "energy_", "cold_start")
UNITS = {
    "_tok_s": "tok/s",
    "_ms": "ms",
    "_req_s": "req/s",
    "usd_per_mtok": "$/M tokens",
    "usd_per_mgood": "$/M requests within the SLO",
    "j_per_token": "J/token",
    "s_per_w": "tok/s/W",
    "cold_start": "s",
}
MEASURES = ("best", "within_slo", "lowest_load", "cold_start")
KEYS = ("title", "workloads", "measure", "metric", "slo", "own_slo", "max_load", "require", "across")
SLO_KEYS = ("ttft_ms", "tpot_ms", "e2e_ms", "attainment")


@dataclass(frozen=True, kw_only=True)
class UseCase:
    """A rule, with the fields of recommend.yaml."""

    name: str
    title: str
    measure: str
    metric: str = "cold_start"
    workloads: tuple[str, ...] | None = None
    limits: SloLimits = field(default_factory=SloLimits)
    own_slo: bool = False
    max_load: float | None = None
    require: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    across: tuple[str, ...] = ()

    @property
    def lower_is_better(self) -> bool:
        """Whether a small score is a good one."""
        return any(part in self.metric for part in LOWER_IS_BETTER)

    @property
    def unit(self) -> str:
        """The unit of the score."""
        return next((unit for part, unit in UNITS.items() if part in self.metric), "")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All rules; the margins are shares."""

    use_cases: tuple[UseCase, ...]
    margin: float = 0.05
    once_margin: float = 0.25


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
    errors: list[str] = []
    cases = [_use_case(name, rule, f"{where}: use_cases.{name}", errors) for name, rule in data["use_cases"].items()]
    margins = {key: data[key] for key in ("margin", "once_margin") if key in data}
    errors += [
        f"{where}: {key} must be between 0 and 1 (got {value})"
        for key, value in margins.items()
        if not isinstance(value, (int, float)) or not 0 <= value < 1
    ]
    if errors:
        raise ConfigError(errors)
    return Rules(use_cases=tuple(case for case in cases if case is not None), **margins)


def _use_case(name: str, rule: Any, where: str, errors: list[str]) -> UseCase | None:
    if not isinstance(rule, dict):
        errors.append(f"{where} must be a mapping")
        return None
    measure, slo = rule.get("measure"), rule.get("slo") or {}
    wrong = [f"{where}: unknown key '{key}'; known keys are {', '.join(KEYS)}" for key in rule if key not in KEYS]
    if measure not in MEASURES:
        wrong.append(f"{where}: measure must be one of {', '.join(MEASURES)} (got {measure})")
    if measure != "cold_start" and not isinstance(rule.get("metric"), str):
        wrong.append(f"{where}: metric must name a column of points.csv")
    if not isinstance(slo, dict) or any(k not in SLO_KEYS or not isinstance(v, (int, float)) for k, v in slo.items()):
        wrong.append(f"{where}: slo must have numbers for {', '.join(SLO_KEYS)}")
    elif measure == "within_slo" and not any(key in slo for key in SLO_KEYS[:3]):
        wrong.append(f"{where}: measure=within_slo needs a limit in slo")
    errors += wrong
    if wrong:
        return None
    return UseCase(
        name=str(name),
        title=str(rule.get("title") or name),
        measure=rule["measure"],
        metric="cold_start" if measure == "cold_start" else rule["metric"],
        workloads=tuple(rule["workloads"]) if rule.get("workloads") else None,
        limits=SloLimits(**slo),
        own_slo=bool(rule.get("own_slo")),
        max_load=rule.get("max_load"),
        require=rule.get("require") or {},
        across=tuple(rule.get("across") or ()),
    )
