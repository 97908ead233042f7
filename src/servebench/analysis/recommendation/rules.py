"""The rules of `recommend.yaml`."""

import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from servebench.config.strict import Strict, parse_strict, read_yaml
from servebench.contracts.point_row import POINT_COLUMNS
from servebench.contracts.settings import SloSettings
from servebench.util.bounded_file import load_yaml
from servebench.util.errors import ConfigError

COLD_START = "cold_start"
"""The metric that no column holds: the seconds of a cold start."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Range(Strict):
    """What the mean of a column has to be at least and at most."""

    min: float = -math.inf
    max: float = math.inf


class UseCase(Strict):
    """A rule, with the keys of recommend.yaml."""

    title: str = ""
    workloads: tuple[str, ...] | None = None
    measure: Literal["best", "within_slo", "lowest_load", "cold_start"]
    metric: str = COLD_START
    slo: SloSettings = SloSettings()
    own_slo: bool = False
    max_load: Positive | None = None
    require: Mapping[str, Range] = Field(default_factory=dict)
    across: tuple[str, ...] = ()
    _name: str = PrivateAttr(default="")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.measure != "cold_start" and self.metric == COLD_START:
            raise ValueError("metric must name a column of points.csv")
        if self.measure == "within_slo" and not self.slo.limited:
            raise ValueError("measure=within_slo needs a limit in slo")
        return self

    def named(self, name: str) -> Self:
        """Return the rule with its name, which is its title, too, if it has none."""
        found = self.model_copy(update={"title": self.title or name})
        found._name = name
        return found

    @property
    def name(self) -> str:
        """Its key in the file."""
        return self._name

    @property
    def lower_is_better(self) -> bool:
        """Whether a small score is a good one."""
        known = POINT_COLUMNS.get(self.metric)
        return self.metric == COLD_START or (known is not None and known.better == "lower")

    @property
    def unit(self) -> str:
        """The unit of the score."""
        known = POINT_COLUMNS.get(self.metric)
        return "s" if self.metric == COLD_START else "" if known is None else known.unit


class Rules(Strict):
    """All rules by name; the margins are shares."""

    margin: Share = 0.05
    once_margin: Share = 0.25
    use_cases: dict[str, UseCase]


def rules_text() -> str:
    """Return the default rules as YAML."""
    return (resources.files("servebench.analysis.recommendation") / "recommend.yaml").read_text(encoding="utf-8")


def load_rules(path: Path | None = None) -> Rules:
    """Return the rules of a file, or the default ones. Raises ConfigError with everything that is wrong."""
    where = f"--rules {path}" if path else "recommend.yaml"
    data = read_yaml(path, where) if path else load_yaml(rules_text())
    if not isinstance(data, dict) or not isinstance(data.get("use_cases"), dict):
        raise ConfigError(f"{where} has no use_cases; 'servebench recommend --show-rules' prints an example")
    rules = parse_strict(Rules, data, where)
    return rules.model_copy(update={"use_cases": {name: one.named(name) for name, one in rules.use_cases.items()}})
