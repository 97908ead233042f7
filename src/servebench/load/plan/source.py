"""The source of a run's levels: a list made before the run, or a search that depends on the points so far."""

from servebench.contracts.results import Point
from servebench.contracts.settings import LoadSettings, SloSettings
from servebench.load.plan.levels import PlannedPoint, level_at, plan_levels, with_trace_times
from servebench.load.plan.search import Probe, Search, SearchAnswer
from servebench.load.plan.traces import read_arrivals

GROWTH = 1.05
"""Throughput grows where a level has so much more than the best before it."""


class _ListedLevels:
    """Levels known before the run."""

    def __init__(self, load: LoadSettings, seed: int, starts: int) -> None:
        listed = plan_levels(load, seed, starts)
        if load.replay is not None and load.replay.path is not None:
            times = read_arrivals(load.replay.path, load.replay.point)
            listed = tuple(with_trace_times(level, load, times) for level in listed)
        self._levels = iter(listed)
        self._while_growing = load.while_growing and load.order == "ascending" and starts == load.repeats == 1
        self._best = 0.0

    def next_level(self) -> PlannedPoint | None:
        """Return the next level; None when there is none."""
        return next(self._levels, None)

    def add_point(self, level: PlannedPoint, point: Point, *, usable: bool) -> None:
        """Add the point that was measured at a level, which is the last with `load.while_growing` unless throughput grew. One
        that is not `usable` says nothing about it."""
        throughput = point.row.output_throughput_tok_s
        if not self._while_growing or not usable or throughput is None:
            return
        if throughput < self._best * GROWTH:
            self._levels = iter(())
        self._best = max(self._best, throughput)

    def answer(self, *, interrupted: bool) -> None:
        """Return None: there was no search."""


class _SearchedLevels:
    """Levels that depend on the points before them."""

    def __init__(self, load: LoadSettings, slo: SloSettings) -> None:
        assert load.search is not None
        self._load = load
        self._settings = load.search
        self._search = Search(load.search, slo.attainment)

    def next_level(self) -> PlannedPoint | None:
        """Return the next level; None when there is none."""
        chosen = self._search.next_probe()
        if chosen is None:
            return None
        level = level_at(self._load, chosen.level, chosen.repeat, of=self._settings.of)
        if level.requests is None or self._load.requests != "auto" or not chosen.requests:
            return level
        # the window leaves out both ends of the point: add as many requests
        least = chosen.requests + 2 * (level.concurrency or 1)
        return level_at(self._load, chosen.level, chosen.repeat, of=self._settings.of, requests_least=least)

    def add_point(self, level: PlannedPoint, point: Point, *, usable: bool) -> None:
        """Add the point that was measured at a level; one that is not `usable` says nothing about it. A level with errors, or one
        not reached, counts as missed."""
        self._search.probes.append(probe_of(point, usable=usable))

    def answer(self, *, interrupted: bool) -> SearchAnswer:
        """Return the result of the search."""
        return self._search.answer(interrupted)


LevelSource = _ListedLevels | _SearchedLevels
"""Gives the levels of a run, one after another: `next_level`, then `add_point`, and at the end `answer`."""


def level_source(load: LoadSettings, slo: SloSettings, seed: int, starts: int = 1) -> LevelSource:
    """Return the source for these settings. Raises ConfigError for a trace that cannot be read."""
    return _ListedLevels(load, seed, starts) if load.search is None else _SearchedLevels(load, slo)


def probe_of(point: Point, *, usable: bool) -> Probe:
    """Return the part of a point that a search uses."""
    row = point.row
    value = row.concurrency if row.rate is None else row.rate
    assert value is not None
    return Probe(
        point=row.point,
        level=float(value),
        good=row.slo_good or 0,
        judged=row.slo_requests or 0,
        design_effect=row.slo_design_effect,
        seconds=row.window_s or 0.0,
        usable=usable,
        doubts=point.codes,
    )
