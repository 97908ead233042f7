"""Comparisons of stored runs by speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from servebench.analysis.fairness import unequal_settings
from servebench.analysis.setups import spreads_of_pairs
from servebench.analysis.stored_runs import side_of
from servebench.analysis.verdict.compare import MARGIN, compare
from servebench.analysis.verdict.model import Comparison
from servebench.contracts.labels import RunLabel, run_labels
from servebench.contracts.stored import RunData

RunPair = tuple[RunData, RunData]
"""Baseline and candidate."""


def compare_speed(
    pairs: Sequence[RunPair],
    *,
    margin: float = MARGIN,
    with_doubtful: bool = False,
    varying: str | None = None,
    earlier: Sequence[RunData] = (),
    labels: Mapping[str, RunLabel] | None = None,
) -> list[Comparison]:
    """Compare the metrics of each pair of runs; `labels` are those of a larger view."""
    labels = labels or run_labels(run for pair in pairs for run in pair)
    spreads = spreads_of_pairs(pairs, earlier)
    runs = {run.run_id: run for pair in pairs for run in pair}
    sides = {
        key: replace(side_of(run, labels[key].text), spreads=spreads[key], start_seconds=seconds_per_start(run))
        for key, run in runs.items()
    }
    # a run that never started has no settings of its machine that could differ
    absent = [[run for run in pair if run.status == "missing"] for pair in pairs]
    found = compare(
        [
            (sides[a.run_id], sides[b.run_id], () if never else unequal_settings(a, b, varying))
            for (a, b), never in zip(pairs, absent, strict=True)
        ],
        margin=margin,
        with_doubtful=with_doubtful,
    )
    return [
        replace(one, not_started=tuple(labels[run.run_id].text for run in never))
        for one, never in zip(found, absent, strict=True)
    ]


def seconds_per_start(run: RunData) -> float | None:
    """Return how long one start of a run's engine was measured, the start itself included; None if unknown."""
    ended_s = run.state.get("ended_s")
    if run.started_s is None or not isinstance(ended_s, (int, float)):
        return None
    starts = len({row.start_id for row in run.point_rows})
    return (ended_s - run.started_s) / max(starts, 1)
