"""Decide which stored runs are compared with which."""

from __future__ import annotations

from collections.abc import Sequence

from servebench.contracts.stored import RunData, StudyData
from servebench.store.studies import runs_of
from servebench.util.errors import ConfigError


def pair_runs(
    found: Sequence[RunData | StudyData], baseline: RunData | StudyData | None
) -> list[tuple[RunData, RunData]]:
    """Return (baseline, candidate) for each comparison.

    Two studies of several runs are compared run by run; otherwise every run is compared with the baseline, which is the
    first run unless one is given. Raises ConfigError when nothing can be paired.
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
    return [(first, run) for run in rest]


def _pair_by_name(baseline: StudyData, other: RunData | StudyData) -> list[tuple[RunData, RunData]]:
    """Pair the runs of two studies by name without its number. Raises ConfigError when none match."""
    known = {run.name.partition("_")[2]: run for run in baseline.runs}
    if len(known) < len(baseline.runs):
        known = {run.name: run for run in baseline.runs}
    pairs = []
    for run in runs_of(other):
        twin = known.get(run.name.partition("_")[2]) or known.get(run.name)
        if twin is not None:
            pairs.append((twin, run))
    if not pairs:
        raise ConfigError(
            f"no run of {other.study_id} matches a run of the baseline {baseline.study_id}; name two runs"
        )
    return pairs
