"""Decisions of a stored study with `study.until=decided`, from what is on disk: while it runs, and afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations
from typing import Any

import numpy as np

from servebench.analysis.comparison.compare import with_rows
from servebench.analysis.comparison.decisions import Decision, PairDecision, decide
from servebench.analysis.comparison.model import Comparison, ComparisonRow, Result
from servebench.analysis.setups import start_spreads
from servebench.analysis.stored_runs import side_of
from servebench.contracts.labels import run_labels
from servebench.contracts.point_row import PointRow
from servebench.contracts.precision import seconds_of, share_of
from servebench.contracts.settings import StudySettings
from servebench.contracts.stored import RunData, StudyData, mapping
from servebench.util.units import NS_PER_S


@dataclass(frozen=True, kw_only=True)
class RunSpread:
    """By how much the starts of a run differ in output throughput, and points of one start beyond that, as standard deviations
    and shares. None for fewer than two starts, or two levels."""

    starts: int
    between: float | None = None
    within: float | None = None


@dataclass(frozen=True, kw_only=True)
class StudyDecision:
    """What a study has decided so far, and the seconds for which engines ran.

    `start_seconds` are those of the latest start of each run, by run id, `spreads` how much its starts differ, `labels` how the
    runs of the study are called.
    """

    pairs: tuple[PairDecision, ...]
    settings: StudySettings
    engine_s: float
    start_seconds: Mapping[str, float]
    spreads: Mapping[str, RunSpread]
    labels: Mapping[str, str]

    @property
    def budget_s(self) -> float:
        """For how many seconds engines may run."""
        return seconds_of("study.budget", self.settings.budget)

    def open_levels(self, run: str, others: Iterable[str]) -> set[str]:
        """Return the levels of a run that are still open against one of these others."""
        partners = set(others)
        return {
            level
            for pair in self.pairs
            if run in (pair.baseline, pair.candidate) and partners & ({pair.baseline, pair.candidate} - {run})
            for level in pair.open_levels
        }


RESULTS: Mapping[str, tuple[Result, float]] = {
    "faster": ("faster", 0.0),
    "slower": ("slower", 0.0),
    "equal": ("no difference", 1.0),
}
"""The result of a comparison's row and its corrected p-value, for each verdict that is one."""


def study_settings(run: RunData) -> StudySettings | None:
    """Return how a stored run's study decides; None if it has no `study.until`."""
    stored = mapping(run.config.get("study"))
    known = {name: stored[name] for name in ("starts", "until", "margin", "budget") if stored.get(name) is not None}
    return StudySettings(**known) if known.get("until") == "decided" else None


def same_question(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two configs have one model and one workload, so that their engines are compared."""
    return mapping(a.get("model")).get("name") == mapping(b.get("model")).get("name") and mapping(
        a.get("workload")
    ) == mapping(b.get("workload"))


def decide_study(study: StudyData, earlier: Iterable[RunData] = ()) -> StudyDecision | None:
    """Return what a study with `study.until=decided` has decided; None for another study.

    `earlier` are other stored runs: of those that began before the study, starts of the same set-ups show by how much starts
    differ. Raises StoreError for a damaged table.
    """
    settings = next((one for run in study.runs if (one := study_settings(run)) is not None), None)
    measured = [run for run in study.runs if run.point_rows]
    if settings is None or not measured:
        return None
    began_s = float(study.state.get("started_s") or 0.0)
    before = [one for one in earlier if one.study_id != study.study_id and (one.started_s or began_s) < began_s]
    sides = {run.run_id: replace(side_of(run), spreads=start_spreads(run, before, own=False)) for run in measured}
    pairs = [
        (sides[a.run_id], sides[b.run_id]) for a, b in combinations(measured, 2) if same_question(a.config, b.config)
    ]
    seconds = {run.run_id: _engine_seconds(run.point_rows) for run in measured}
    return StudyDecision(
        pairs=tuple(decide(pairs, margin=share_of("study.margin", settings.margin), most=settings.most_starts)),
        settings=settings,
        engine_s=sum(sum(one) for one in seconds.values()),
        start_seconds={name: one[-1] for name, one in seconds.items() if one},
        spreads={run.run_id: _spread(run.point_rows) for run in measured},
        labels={key: one.text for key, one in run_labels(study.runs).items()},
    )


def as_decided(comparison: Comparison, found: StudyDecision) -> Comparison:
    """Return a comparison of two runs with the rows, and the result, that the study has decided."""
    for pair in found.pairs:
        if set(comparison.ids) == {pair.baseline, pair.candidate}:
            turn = comparison.ids == (pair.candidate, pair.baseline)
            decided = {(one.level, one.row.metric.name): _decided_row(one, turn) for one in pair.rows if one.starts}
            rows = tuple(decided.get((row.level, row.metric.name), row) for row in comparison.rows)
            return with_rows(comparison, rows)
    return comparison


def _decided_row(one: Decision, turn: bool) -> ComparisonRow:
    """The row with the decision as its result; its p-value only says on which side of the error it is."""
    result, p = RESULTS.get(one.verdict, ("not enough data", 1.0))
    row = replace(one.row, result=result, p_corrected=p, bound=max(abs(one.row.low or 0), abs(one.row.high or 0)))
    return row.turned() if turn else row


def _engine_seconds(rows: Sequence[PointRow]) -> list[float]:
    """For how long each start ran, in order: from its beginning to the end of its last window."""
    ends: dict[str, int] = {}
    for row in rows:
        if row.start_id is not None and row.window_end_ns is not None:
            ends[row.start_id] = max(ends.get(row.start_id, 0), int(row.window_end_ns))
    return [max(0.0, ends[name] / NS_PER_S - datetime.fromisoformat(name).timestamp()) for name in sorted(ends)]


def _spread(rows: Sequence[PointRow]) -> RunSpread:
    """How much the starts of a run differ: what all levels of a start share is between starts, the rest is within one.

    Analysis of variance of the logarithms by start and level, one value each (Searle, Casella and McCulloch 1992, "Variance
    Components", chapter 4), over the starts that measured all levels.
    """
    levels: dict[str, dict[str | None, list[float]]] = {}
    for row in rows:
        if row.output_throughput_tok_s:
            own = levels.setdefault(row.level_label, {})
            own.setdefault(row.start_id, []).append(float(np.log(row.output_throughput_tok_s)))
    starts = list(dict.fromkeys(name for found in levels.values() for name in found))
    whole = [name for name in starts if all(name in found for found in levels.values())]
    if len(whole) < 2 or len(levels) < 2:
        return RunSpread(starts=len(starts))
    values = np.array([[np.mean(found[name]) for name in whole] for found in levels.values()])
    centred = values - values.mean(axis=1, keepdims=True)
    of_starts = centred.mean(axis=0)
    within = float(((centred - of_starts) ** 2).sum() / ((len(levels) - 1) * (len(whole) - 1)))
    between = float(of_starts.var(ddof=1)) - within / len(levels)
    return RunSpread(starts=len(starts), between=max(0.0, between) ** 0.5, within=within**0.5)
