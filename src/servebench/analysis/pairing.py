"""Decides which stored runs are compared with which, and compares them by speed."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import combinations, pairwise
from statistics import fmean

from servebench.analysis.estimate import best_level
from servebench.analysis.fairness import unequal_settings
from servebench.analysis.setups import in_turns_before, newest_alike, starts_of
from servebench.analysis.stored_runs import samples_of
from servebench.analysis.verdict.compare import MARGIN, compare
from servebench.analysis.verdict.model import Comparison, Side
from servebench.contracts.labels import RunLabel, run_labels
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData, StudyData, mapping
from servebench.store.studies import runs_of
from servebench.util.errors import ConfigError
from servebench.util.groups import grouped
from servebench.util.units import NS_PER_S

RunPair = tuple[RunData, RunData]
"""Baseline and candidate."""
PAIRED_MAX = 6
"""With more runs of a workload, not all pairs are compared: the best with the rest."""


def pair_runs(
    found: Sequence[RunData | StudyData], baseline: RunData | StudyData | None, *, to_first: bool = False
) -> list[RunPair]:
    """Return (baseline, candidate) for each comparison, within one workload wherever it has several runs.

    Two studies of several runs are compared run by run, and every run with the baseline if one is given; otherwise all runs
    with each other. With `to_first` the first run of each workload is the baseline of the others. Raises ConfigError when
    nothing can be paired.
    """
    if baseline is None and len(found) == 2 and all(isinstance(one, StudyData) and len(one.runs) > 1 for one in found):
        baseline, found = found[0], found[1:]
    if isinstance(baseline, StudyData) and len(baseline.runs) > 1:
        return [pair for other in found for pair in _pair_by_name(baseline, other)]
    runs = [run for one in found for run in runs_of(one)]
    first = runs_of(baseline)[0] if baseline is not None else (runs[0] if runs else None)
    rest = [run for run in runs if first is not None and run.run_id != first.run_id]
    if first is None or not rest:
        raise ConfigError("compare needs two runs or more, or a study of several; 'servebench ls' lists them")
    if baseline is not None:
        alike = [run for run in rest if run.fact("workload") == first.fact("workload")]
        return [(first, run) for run in alike or rest]
    pairs = pairs_within(runs, to_first=to_first)
    return pairs or [(first, run) for run in rest]


def pairs_within(runs: Sequence[RunData], *, to_first: bool = False) -> list[RunPair]:
    """Return all pairs of runs of one workload, the earlier run as the baseline.

    Of a workload with more runs than PAIRED_MAX, the one with the highest throughput is compared with each other one.
    """
    pairs: list[RunPair] = []
    for group in grouped(runs, lambda run: run.fact("workload")).values():
        if to_first:
            pairs += [(group[0], run) for run in group[1:]]
        elif len(group) <= PAIRED_MAX:
            pairs += combinations(group, 2)
        else:
            best = max(group, key=lambda run: one.value if (one := best_level(run.point_rows)) else 0.0)
            pairs += [(run, best) for run in group if run is not best]
    return pairs


def _pair_by_name(baseline: StudyData, other: RunData | StudyData) -> list[RunPair]:
    """Pair the runs of two studies by name without its number. Raises ConfigError when none match."""
    known = {run.name.partition("_")[2]: run for run in baseline.runs}
    if len(known) < len(baseline.runs):
        known = {run.name: run for run in baseline.runs}
    twins = ((known.get(run.name.partition("_")[2]) or known.get(run.name), run) for run in runs_of(other))
    pairs = [(twin, run) for twin, run in twins if twin is not None]
    if not pairs:
        raise ConfigError(
            f"no run of {other.study_id} matches a run of the baseline {baseline.study_id}; name two runs"
        )
    return pairs


def compare_speed(
    pairs: Sequence[RunPair],
    *,
    margin: float = MARGIN,
    with_doubtful: bool = False,
    varying: str | None = None,
    earlier: Sequence[RunData] = (),
    labels: Mapping[str, RunLabel] | None = None,
) -> list[Comparison]:
    """Compare the metrics of each pair of runs; `labels` are those of a larger view. Raises StoreError."""
    labels = labels or run_labels(run for pair in pairs for run in pair)
    sides = sides_of(pairs, earlier, labels, {run.run_id for pair in pairs for run in pair})
    # a run that never started has no settings of its machine that could differ
    absent = [[run for run in pair if run.status == "missing"] for pair in pairs]
    unequal = [() if never else unequal_settings(*pair, varying) for pair, never in zip(pairs, absent, strict=True)]
    asked = [(*both, apart) for both, apart in zip(sides, unequal, strict=True)]
    found = compare(asked, margin=margin, with_doubtful=with_doubtful)
    return [
        replace(one, not_started=tuple(labels[run.run_id].text for run in never))
        for one, never in zip(found, absent, strict=True)
    ]


def sides_of(
    pairs: Sequence[RunPair],
    earlier: Sequence[RunData],
    labels: Mapping[str, RunLabel],
    without: Collection[str] = (),
) -> list[tuple[Side, Side]]:
    """Return the two sides of each pair of runs, with the `earlier` starts of their set-ups but for runs of the ids `without`.
    Raises StoreError."""
    sides = {
        run.run_id: Side(
            name=labels[run.run_id].text,
            run_id=run.run_id,
            samples=samples_of(run),
            earlier=starts_of(newest_alike(run, earlier, without)),
            start_seconds=seconds_per_start(run),
        )
        for run in {run.run_id: run for pair in pairs for run in pair}.values()
    }
    turns = [in_turns_before(*pair, earlier, without) for pair in pairs]
    return [(replace(sides[a.run_id], in_turns=own), sides[b.run_id]) for (a, b), own in zip(pairs, turns, strict=True)]


def seconds_per_start(run: RunData) -> float | None:
    """Return how long one start of a run's engine was measured, the start itself included; None if unknown.

    Where runs took turns the last turn alone has a beginning, so their points say it; those in slices share it with another."""
    if mapping(run.config.get("study")).get("until") and mapping(run.config.get("launch")).get("name") != "simulated":
        (each,) = engine_seconds([run.point_rows])
        sharing = 2 if any(row.slice_group for row in run.point_rows) else 1
        return fmean(each) / sharing if each else None
    ended_s = run.state.get("ended_s")
    if run.started_s is None or not isinstance(ended_s, (int, float)):
        return None
    starts = len({row.start_id for row in run.point_rows})
    return (ended_s - run.started_s) / max(starts, 1)


def engine_seconds(runs: Sequence[Sequence[PointRow]], *, apart: bool = False) -> list[list[float]]:
    """For how long each start of some runs ran, in order: from its beginning to the end of its last window, where its id is a
    time. Engines that are alive at the same time share that, unless each has a machine, or a clock, of its own (`apart`)."""
    lives = [engine_lives(rows) for rows in runs]
    edges = sorted({edge for own in lives for life in own for edge in life})
    shares = []
    for low, high in pairwise(edges):
        alive = sum(begins <= low and high <= ends for own in lives for begins, ends in own)
        shares.append((low, high, (high - low) / max(1 if apart else alive, 1)))
    return [
        [sum(share for low, high, share in shares if begins <= low and high <= ends) for begins, ends in own]
        for own in lives
    ]


def engine_lives(rows: Sequence[PointRow]) -> list[tuple[float, float]]:
    """When each start of a run began, and when its last window ended, in seconds since the epoch."""
    ends: dict[float, float] = {}
    for row in rows:
        if row.start_id is not None and row.window_end_ns is not None:
            with suppress(ValueError):
                began_s = datetime.fromisoformat(row.start_id).timestamp()
                ends[began_s] = max(ends.get(began_s, began_s), row.window_end_ns / NS_PER_S)
    return sorted(ends.items())
