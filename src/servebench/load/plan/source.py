"""Where a run's next level comes from: a list made before the run, or a search that looks at the points so far."""

from __future__ import annotations

from typing import Protocol

from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Point
from servebench.contracts.settings import LoadSettings, SloSettings
from servebench.load.plan.levels import Level, level_at, levels, replayed
from servebench.load.plan.search import Probe, Search, SearchAnswer, requests_to_decide
from servebench.load.plan.traces import read_arrivals

UNUSABLE = frozenset({"clock_stepped", "interrupted", "engine_died", "worker_died", "no_progress"})
"""Doubts with which a point says nothing about its level. A level with errors, or one that was never there, is missed."""


class LevelSource(Protocol):
    """Names the levels of a run, one after another."""

    def following(self) -> Level | None:
        """The next level; None when there is none."""
        ...

    def tell(self, level: Level, point: Point) -> None:
        """What came of a level."""
        ...

    def answer(self, *, interrupted: bool) -> SearchAnswer | None:
        """What was searched for, if anything was."""
        ...


def level_source(load: LoadSettings, slo: SloSettings, seed: int) -> LevelSource:
    """The source that these settings ask for. Raises ConfigError for a trace that cannot be read."""
    return _Listed(load, seed) if load.search is None else _Searched(load, slo)


class _Listed:
    """Levels known before the run."""

    def __init__(self, load: LoadSettings, seed: int) -> None:
        listed = levels(load, seed)
        if load.trace is not None and load.trace.path is not None:
            times = read_arrivals(load.trace.path, load.trace.point)
            listed = tuple(replayed(level, load, times) for level in listed)
        self._levels = iter(listed)

    def following(self) -> Level | None:
        return next(self._levels, None)

    def tell(self, level: Level, point: Point) -> None:
        """Nothing depends on it."""

    def answer(self, *, interrupted: bool) -> None:
        """Nothing was asked."""


class _Searched:
    """Levels that follow from the points before them."""

    def __init__(self, load: LoadSettings, slo: SloSettings) -> None:
        assert load.search is not None
        self._load = load
        self._settings = load.search
        self._search = Search(load.search, slo.attainment)
        slo_searched = load.search.goal == "slo"
        self._least = requests_to_decide(slo.attainment, load.search.confidence) if slo_searched else 0

    def following(self) -> Level | None:
        found = self._search.next_level()
        if found is None:
            return None
        value, repeat = found
        level = level_at(self._load, value, repeat, of=self._settings.of)
        if level.requests is None or self._load.requests != "auto" or not self._least:
            return level
        # what the window leaves out at its two ends (a level's streams, twice) must not leave it short
        return level_at(self._load, value, repeat, of=self._settings.of, requests_least=self._least + _edges(level))

    def tell(self, level: Level, point: Point) -> None:
        self._search.tell(probe_of(point.row, [doubt.code for doubt in point.doubts]))

    def answer(self, *, interrupted: bool) -> SearchAnswer:
        return self._search.answer(interrupted)


def _edges(level: Level) -> int:
    return 2 * level.concurrency if level.concurrency is not None else 2


def probe_of(row: PointRow, doubts: list[str]) -> Probe:
    """What a point's row says to a search."""
    value = row.concurrency if row.rate is None else row.rate
    assert value is not None
    return Probe(
        point=row.point,
        level=float(value),
        good=row.slo_good or 0,
        judged=row.slo_requests or 0,
        throughput_tok_s=row.output_throughput_tok_s,
        kept_up=row.kept_up,
        usable=not UNUSABLE.intersection(doubts),
        doubts=tuple(doubts),
    )
