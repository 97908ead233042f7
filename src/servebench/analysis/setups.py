"""By how much starts of one set-up differ, from the newest runs of it that are stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from servebench.analysis.fairness import same_settings
from servebench.analysis.verdict.model import METRICS, StartSpread
from servebench.analysis.verdict.starts import spread_of
from servebench.contracts.level import Level
from servebench.contracts.stored import FACTS, RunData, mapping

LEVEL_KEYS = ("name", "concurrency", "rate", "order", "workers", "self_check", "trace_headers")
"""Keys of `load` that do not change what a point at a level is."""
EARLIER_MAX = 50
"""The standard error of a standard deviation from 50 starts is a tenth of it; thousands would take minutes to read."""
Spreads = Mapping[tuple[Level, str], StartSpread]
"""The spread of a set-up's starts by (level, metric)."""


def start_spreads(run: RunData, earlier: Iterable[RunData], *, own: bool = True) -> Spreads:
    """Return by how much the starts of a run's set-up differ: its own starts, if `own`, and those of its newest earlier runs."""
    newest = sorted(earlier, key=lambda one: one.started_s or 0.0, reverse=True)
    alike = (other for other in newest if other.run_id != run.run_id and same_setup(run, other))
    others = list(islice(alike, EARLIER_MAX))
    values: dict[tuple[Level, str], list[float]] = {}
    for one in (run, *others) if own else others:
        for key, logs in _start_logs(one).items():
            values.setdefault(key, []).extend(logs)
    spreads = {key: spread_of(np.array(logs)) for key, logs in values.items()}
    return {key: spread for key, spread in spreads.items() if spread is not None}


def same_setup(a: RunData, b: RunData) -> bool:
    """Return whether two runs measured the same engine, in the same version, with the same settings that matter."""
    return all(a.fact(name) == b.fact(name) for name in FACTS) and _load(a) == _load(b) and same_settings(a, b)


def _load(run: RunData) -> dict[str, object]:
    """Return the settings of a run's load apart from its levels: values of longer points differ less from start to start."""
    return {key: value for key, value in mapping(run.config.get("load")).items() if key not in LEVEL_KEYS}


def _start_logs(run: RunData) -> dict[tuple[Level, str], list[float]]:
    """Return the logarithm of each metric in each start of a run, by (level, metric); points that are not valid are left out."""
    starts: dict[tuple[Level, str, str | None], list[float]] = {}
    for row in run.point_rows:
        for metric in METRICS:
            value = row.get(metric.name)
            if row.verdict == "valid" and value is not None and 0 < value < float("inf"):
                starts.setdefault((row.level, metric.name, row.start_id), []).append(float(np.log(value)))
    found: dict[tuple[Level, str], list[float]] = {}
    for (level, name, _), logs in starts.items():
        found.setdefault((level, name), []).append(float(np.mean(logs)))
    return found


def spreads_of_pairs(pairs: Sequence[tuple[RunData, RunData]], earlier: Iterable[RunData]) -> dict[str, Spreads]:
    """Return the spreads of the set-up of each run in some pairs, by run id.

    A run of an engine whose own set-up has no known spread at a level, such as a new build, is taken to vary as the run of
    the same engine that it is compared with.
    """
    known = list(earlier)
    own = {run.run_id: start_spreads(run, known) for pair in pairs for run in pair}
    found: dict[str, Spreads] = dict(own)
    for a, b in pairs:
        if a.fact("engine") == b.fact("engine"):
            found[a.run_id] = _larger(own[a.run_id], own[b.run_id])
            found[b.run_id] = _larger(own[b.run_id], own[a.run_id])
    return found


def _larger(own: Spreads, other: Spreads) -> Spreads:
    """Return each spread from the set-up with more starts."""
    return {key: max((s for s in (own.get(key), other.get(key)) if s), key=lambda s: s.count) for key in {*own, *other}}
