"""Earlier starts of a set-up, from the newest runs of it that are stored: they show by how much its starts differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from statistics import fmean

import numpy as np

from servebench.analysis.estimate import error_of
from servebench.analysis.fairness import same_settings
from servebench.analysis.start_model import Starts
from servebench.analysis.verdict.model import METRICS
from servebench.contracts.level import Level
from servebench.contracts.stored import FACTS, RunData, mapping

LEVEL_KEYS = ("name", "concurrency", "rate", "order", "workers", "self_check", "trace_headers")
"""Keys of `load` that do not change what a point at a level is."""
EARLIER_MAX = 50
"""The standard error of a standard deviation from 50 starts is a tenth of it; thousands would take minutes to read."""
Earlier = Mapping[str, Starts]
"""The starts of a set-up by metric."""


def earlier_starts(run: RunData, earlier: Iterable[RunData], without: Collection[str] = ()) -> Earlier:
    """Return the starts of the newest earlier runs with the set-up of a run, by metric, but for the runs of the ids `without`.
    Points that are not valid are left out."""
    newest = sorted(earlier, key=lambda one: one.started_s or 0.0, reverse=True)
    alike = (one for one in newest if one.run_id not in (run.run_id, *without) and same_setup(run, one))
    values: dict[str, dict[tuple[str, str | None], dict[Level, list[float]]]] = {}
    errors: dict[str, dict[Level, list[float]]] = {}
    for one in islice(alike, EARLIER_MAX):
        for row in one.point_rows:
            for metric in METRICS:
                value = row.get(metric.name)
                if row.verdict == "valid" and value is not None and 0 < value < float("inf"):
                    start = values.setdefault(metric.name, {}).setdefault((one.run_id, row.start_id), {})
                    start.setdefault(row.level, []).append(float(np.log(value)))
                    error = error_of([row], metric.name)
                    errors.setdefault(metric.name, {}).setdefault(row.level, []).append(error)
    return {name: _table(own, errors[name]) for name, own in values.items() if len(own) > 1}


def _table(
    starts: Mapping[tuple[str, str | None], Mapping[Level, list[float]]], errors: Mapping[Level, list[float]]
) -> Starts:
    levels = tuple(dict.fromkeys(level for own in starts.values() for level in own))
    values = [[fmean(own[level]) if level in own else np.nan for level in levels] for own in starts.values()]
    return Starts(levels, np.array(values), np.array([fmean(errors[level]) for level in levels]))


def same_setup(a: RunData, b: RunData) -> bool:
    """Return whether two runs measured the same engine, in the same version, with the same settings that matter."""
    return all(a.fact(name) == b.fact(name) for name in FACTS) and _load(a) == _load(b) and same_settings(a, b)


def _load(run: RunData) -> dict[str, object]:
    """Return the settings of a run's load apart from its levels: values of longer points differ less from start to start."""
    return {key: value for key, value in mapping(run.config.get("load")).items() if key not in LEVEL_KEYS}
