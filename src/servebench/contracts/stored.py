"""A run and a study as they lie on disk: what `read` gives to those that judge and show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servebench.contracts.point_row import PointRow

if TYPE_CHECKING:
    import pandas as pd

FOREIGN_KEY = "foreign"
"""Manifest key of a run that another tool measured: what `import` writes."""

FACTS = ("engine", "engine_version", "launch", "model", "gpu", "workload")
"""What a run is known by, in points and in filters."""

Tables = Callable[[str], "pd.DataFrame"]
"""Reads one of the heavy tables of a run: requests, answers, telemetry, quality. Empty where there is none."""


@dataclass(frozen=True, kw_only=True)
class RunData:
    """A run as it lies on disk. `faults` tell, one line each, what of it could not be read.

    `points` is a frame with one row a point; it is empty for a run without any. The heavy tables are read when asked.
    """

    study_id: str
    name: str
    path: Path
    state: Mapping[str, Any]
    manifest: Mapping[str, Any]
    points: pd.DataFrame
    tables: Tables
    engine_log: Path | None = None
    faults: tuple[str, ...] = ()

    @property
    def run_id(self) -> str:
        """`study/run`."""
        return f"{self.study_id}/{self.name}"

    @property
    def title(self) -> str:
        """What the run is called."""
        return str(self.state.get("title") or self.manifest.get("title") or self.name)

    @property
    def engine(self) -> str:
        """What its engine was chosen as: a file of the user's own, else the engine's name; the run's where none is known."""
        name = self.fact("engine")
        return self.name if name is None else chosen(_words(self.manifest.get("overrides")), "engine", name)

    @property
    def status(self) -> str:
        """finished, failed, interrupted, running, or missing."""
        return str(self.state.get("status") or self.manifest.get("status") or "missing")

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command that made it."""
        return _words(self.manifest.get("words"))

    @property
    def error(self) -> str | None:
        """What the user was told when it failed."""
        said = self.state.get("error") or self.manifest.get("error")
        return str(said) if said else None

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved config; empty when there is none."""
        return mapping(self.manifest.get("config"))

    @property
    def started_s(self) -> float | None:
        """Seconds since the epoch."""
        value = self.state.get("started_s") or self.manifest.get("started_s")
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def foreign(self) -> str | None:
        """The tool that measured it, when that was not servebench."""
        return mapping(self.manifest.get(FOREIGN_KEY)).get("tool")

    @property
    def emulated(self) -> bool:
        """Whether its engine only pretended."""
        return self.fact("launch") == "emulated"

    def fact(self, name: str) -> str | None:
        """One of FACTS: from the points, else from the config."""
        if name in self.points and len(self.points):
            value = self.points[name].iloc[0]
            if isinstance(value, str):
                return value
        value = (
            self.manifest.get("engine_version")
            if name == "engine_version"
            else mapping(self.config.get(name)).get("name")
        )
        return None if value is None else str(value)

    @cached_property
    def point_rows(self) -> list[PointRow]:
        """The points as typed rows."""
        return PointRow.from_frame(self.points)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, warm-up ones too; empty when there is no such table. Raises StoreError for a broken one."""
        return self.tables("requests")

    @cached_property
    def answers(self) -> pd.DataFrame:
        """What was answered, one row a request; empty when it was not kept."""
        return self.tables("answers")

    @cached_property
    def telemetry(self) -> pd.DataFrame:
        """Samples of server, GPU and machine; empty when none were taken."""
        return self.tables("telemetry")

    @cached_property
    def quality(self) -> pd.DataFrame:
        """One row a judged answer; empty when quality was not asked for."""
        return self.tables("quality")


@dataclass(frozen=True, kw_only=True)
class StudyData:
    """A study and its runs, in order."""

    study_id: str
    path: Path
    state: Mapping[str, Any] = field(default_factory=dict)
    runs: tuple[RunData, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """finished, failed, interrupted, running, or missing."""
        return str(self.state.get("status") or "missing")

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command that made it."""
        return _words(self.state.get("words"))


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, list | tuple) else ()


def chosen(overrides: Iterable[str], group: str, name: str) -> str:
    """What was chosen in a config group: a file of the user's own (`engine=vllm_nightly`), else the `name` that it has."""
    options = [value for key, _, value in (word.partition("=") for word in overrides) if key.lstrip("+") == group]
    return options[-1] if options else name


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}
