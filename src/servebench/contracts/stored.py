"""Stored runs and studies as the analysis and reports read them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from servebench.contracts.emulation import EMULATING
from servebench.contracts.point_row import PointRow
from servebench.util.errors import StoreError

if TYPE_CHECKING:
    import pandas as pd

FOREIGN_KEY = "foreign"
"""Manifest key of an imported run, which another tool measured."""

FACTS = ("engine", "engine_version", "launch", "model", "gpu", "workload")
"""What identifies a run in points and filters."""

Tables = Callable[..., "pd.DataFrame"]
"""Reads a large table of a run by name (requests, answers, telemetry, quality); empty if the run has none. Of requests it may be
given the columns that are needed, and the id of the only request."""


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """What a run or a study says of itself: in its state, else in its manifest."""

    state: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def said(self, name: str) -> Any:
        """Return what is stored under a name; None if nothing is."""
        return self.state.get(name) or self.manifest.get(name)

    @property
    def status(self) -> str:
        """finished, failed, interrupted, running, or missing."""
        return str(self.said("status") or "missing")

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments of the command that made it."""
        return _words(self.said("words"))

    @property
    def command(self) -> str:
        """The command that made it; empty if that is unknown."""
        # `servebench` alone is a command, too
        known = any(isinstance(one.get("words"), list | tuple) for one in (self.state, self.manifest))
        return shlex.join(["servebench", *self.words]) if known else ""


@dataclass(frozen=True, kw_only=True)
class RunData(_Stored):
    """A stored run. `rows` reads its points and `tables` its large tables, both on first use; `noted` are faults known before."""

    study_id: str
    name: str
    path: Path
    rows: Callable[[], Sequence[PointRow]]
    tables: Tables
    engine_log: Path | None = None
    noted: tuple[str, ...] = ()

    @property
    def run_id(self) -> str:
        """`study/run`."""
        return f"{self.study_id}/{self.name}"

    @property
    def title(self) -> str:
        """The title of the run."""
        return str(self.said("title") or self.name)

    @property
    def engine(self) -> str:
        """The engine as selected: the user's own config file, else the engine's name; the run's name if unknown."""
        name = self.fact("engine")
        return self.name if name is None else chosen(_words(self.manifest.get("overrides")), "engine", name)

    @property
    def standing(self) -> str:
        """Its status as people say it."""
        return "not started" if self.status == "missing" else self.status

    @property
    def error(self) -> str | None:
        """The error message of a failed run."""
        return str(error) if (error := self.said("error")) else None

    @property
    def failure(self) -> str | None:
        """The kind of failure of a failed run."""
        kind = self.state.get("failure")
        return kind if isinstance(kind, str) else None

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved config; empty if unknown."""
        return mapping(self.manifest.get("config"))

    @property
    def started_s(self) -> float | None:
        """When it started, in seconds since the epoch."""
        value = self.said("started_s")
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def foreign(self) -> str | None:
        """The tool that measured it; None for servebench."""
        return mapping(self.manifest.get(FOREIGN_KEY)).get("tool")

    @property
    def emulated(self) -> bool:
        """Whether its engine was emulated."""
        return self.fact("launch") in EMULATING

    def fact(self, name: str) -> str | None:
        """Return one of FACTS from the manifest, else from the points."""
        value = self.manifest.get(name) if name == "engine_version" else mapping(self.config.get(name)).get("name")
        if value is None and self.point_rows:
            value = self.point_rows[0].get(name)
        # JSON may hold halves of characters, which no file or hash takes
        return None if value is None else str(value).encode(errors="replace").decode()

    @cached_property
    def point_rows(self) -> Sequence[PointRow]:
        """Its points; none where they cannot be read."""
        return self._points[0]

    @property
    def faults(self) -> tuple[str, ...]:
        """What could not be read, one line each."""
        return (*self.noted, *self._points[1])

    @cached_property
    def _points(self) -> tuple[Sequence[PointRow], tuple[str, ...]]:
        try:
            return self.rows(), ()
        except StoreError as error:
            return (), (str(error),)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, including the warm-up; empty without such a table. Raises StoreError for a damaged one."""
        return self.tables("requests")

    def requests_with(self, columns: Sequence[str], request_id: str | None = None) -> pd.DataFrame:
        """Return these columns of all requests, or of the one with this id, without reading the others; null where a file has no
        such column. Raises StoreError."""
        whole = self.requests if "requests" in vars(self) else self.tables("requests", columns, request_id)
        found = whole.reindex(columns=list(columns))
        return found if request_id is None else found[found["request_id"] == request_id]

    @cached_property
    def answers(self) -> pd.DataFrame:
        """The texts of the answers, one row a request; empty if not stored."""
        return self.tables("answers")

    @cached_property
    def telemetry(self) -> pd.DataFrame:
        """Samples of server, GPU and machine; empty without telemetry."""
        return self.tables("telemetry")

    @cached_property
    def quality(self) -> pd.DataFrame:
        """One row a graded answer; empty without a quality test."""
        return self.tables("quality")

    @cached_property
    def derived(self) -> dict[str, Any]:
        """What an analysis has computed of it, by name, so that it is computed once."""
        return {}


@dataclass(frozen=True, kw_only=True)
class StudyData(_Stored):
    """A study and its runs, in order."""

    study_id: str
    path: Path
    runs: tuple[RunData, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def is_tune(self) -> bool:
        """Whether its runs are the candidates of a tune."""
        return self.words[:1] == ("tune",)


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, list | tuple) else ()


def chosen(overrides: Iterable[str], group: str, name: str) -> str:
    """Return the option that the overrides select in a config group (`engine=vllm_nightly`), else `name`."""
    options = [value for key, _, value in (word.partition("=") for word in overrides) if key.lstrip("+") == group]
    return options[-1] if options else name


def mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """Return what a config has at a dotted key; None if it has nothing. A name in `extra_args` may itself have dots."""
    first, _, rest = key.partition(".")
    if key in config or not rest:
        return config.get(key)
    return value_at(mapping(config.get(first)), rest)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a setting is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
