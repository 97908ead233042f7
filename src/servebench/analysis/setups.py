"""Earlier starts, from the newest runs that are stored: they show by how much starts of a set-up differ, and by how much those do
that took turns on a machine."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations, islice
from math import inf
from statistics import fmean
from typing import Any

import numpy as np

from servebench.analysis.estimate import error_of
from servebench.analysis.fairness import same_settings
from servebench.analysis.start_model import Starts
from servebench.analysis.verdict.model import METRICS
from servebench.analysis.verdict.slices import enough_starts, freedom_of, slice_differences, values_and_errors
from servebench.contracts.stored import FACTS, RunData, mapping
from servebench.util.groups import grouped

LEVEL_KEYS = ("name", "concurrency", "rate", "order", "workers", "self_check", "span_headers")
"""Keys of `load` that do not change what a point at a level is."""
EARLIER_MAX = 50
"""The standard error of a standard deviation from 50 starts is a tenth of it; thousands would take minutes to read."""
Earlier = Mapping[str, Starts]
"""The starts of a set-up by metric."""


def newest_alike(run: RunData, earlier: Iterable[RunData], without: Collection[str] = ()) -> list[RunData]:
    """Return the newest earlier runs with the set-up of a run, but for itself and the runs of the ids `without`."""
    return _newest(earlier, lambda one: one.run_id not in (run.run_id, *without) and same_setup(run, one))


def starts_of(runs: Iterable[RunData]) -> Earlier:
    """Return the starts of runs of one set-up, by metric. Points that are not valid are left out."""
    valid = [(one.run_id, row) for one in runs for row in one.point_rows if row.verdict == "valid"]
    found = {}
    for name in (metric.name for metric in METRICS):
        known = [(run, row) for run, row in valid if 0 < (row.get(name) or 0) < inf]
        starts = grouped(known, lambda pair: (pair[0], pair[1].start_id)).values()
        by_level = [grouped((row for _, row in own), lambda row: row.level) for own in starts]
        levels = tuple(dict.fromkeys(level for own in by_level for level in own))
        logs = [
            [fmean(np.log([row[name] for row in own[level]])) if level in own else np.nan for level in levels]
            for own in by_level
        ]
        errors = [fmean(error_of([row], name) for _, row in known if row.level == level) for level in levels]
        if len(starts) > 1:
            found[name] = Starts(levels, np.array(logs), np.array(errors))
    return found


def same_setup(a: RunData, b: RunData) -> bool:
    """Return whether two runs measured the same engine, in the same version, with the same settings that matter."""
    # values of longer points differ less from start to start
    a_load, b_load = (
        {key: value for key, value in mapping(run.config.get("load")).items() if key not in LEVEL_KEYS}
        for run in (a, b)
    )
    return all(a.fact(name) == b.fact(name) for name in FACTS) and a_load == b_load and same_settings(a, b)


PLACE_KEYS = ("cpu_model", "cpu_threads_usable")
"""What of the machine, beside its GPU, is the same where starts differ alike."""


def circumstances(
    config: Mapping[str, Any], machine: object, but: Collection[str] = ("name", "order", "workers")
) -> str:
    """Return, as a text to compare, what starts have in common that differ alike, whatever the engine's version and settings: the
    names of engine, launch, model and GPU, the workload, the load (`but` for these keys of it) and the machine."""
    names = [mapping(config.get(key)).get("name") for key in ("engine", "launch", "model", "gpu")]
    load = {key: value for key, value in mapping(config.get("load")).items() if key not in but}
    place = [mapping(machine).get(key) for key in PLACE_KEYS]
    return json.dumps([names, mapping(config.get("workload")), load, place], sort_keys=True, default=str)


def runs_alike(known: Collection[str], earlier: Iterable[RunData], without: Collection[str] = ()) -> list[RunData]:
    """Return the newest earlier runs with one of these circumstances, but for those of the ids `without`."""

    def alike(one: RunData) -> bool:
        return one.run_id not in without and circumstances(one.config, one.manifest.get("machine")) in known

    return _newest(earlier, alike)


def each_starts(runs: Iterable[RunData]) -> Mapping[str, Sequence[Starts]]:
    """Return the starts of each run that has several, by metric: a group for each run."""
    every = [starts_of([run]) for run in runs]
    return {name: [one[name] for one in every if name in one] for own in every for name in own}


def in_turns_before(
    a: RunData, b: RunData, earlier: Iterable[RunData], without: Collection[str] = ()
) -> Mapping[str, Sequence[Starts]]:
    """Return the differences of earlier starts that took turns in the circumstances of two runs that did."""
    if not all(any(row.slice_group for row in run.point_rows) for run in (a, b)):
        return {}
    known = {circumstances(run.config, run.manifest.get("machine")) for run in (a, b)}
    return pairs_in_turns(runs_alike(known, earlier, (a.run_id, b.run_id, *without)))


def pairs_in_turns(runs: Iterable[RunData]) -> Mapping[str, Sequence[Starts]]:
    """Return the differences of starts that took turns slice by slice, by metric: a group for each two runs of a study."""
    found: dict[str, list[Starts]] = {}
    studies = grouped(runs, lambda run: run.study_id).values()
    for a, b in (pair for own in studies for pair in combinations(own, 2)):
        ours, theirs = (
            {row.slice_group: row for row in run.point_rows if row.slice_group and row.verdict != "void"}
            for run in (a, b)
        )
        shared = [name for name in ours if name in theirs]
        for metric in METRICS if shared else ():
            rows = {name: ([[ours[name]]], [[theirs[name]]]) for name in shared}
            own = {name: slice_differences(*pair, metric.name) for name, pair in rows.items()}
            known = {name: one[0] for name, one in own.items() if one and one[0] is not None}
            starts = list(dict.fromkeys(name.rpartition("/")[0] for name in known))
            levels = tuple(dict.fromkeys(ours[name].level for name in known))
            values, errors = (np.full((len(starts), len(levels)), one) for one in (np.nan, 0.0))
            at = {level: {name: one for name, one in known.items() if ours[name].level == level} for level in levels}
            for column, level in enumerate(levels):
                mine = tuple(at[level].values())
                elsewhere = [each for other, own in at.items() if other != level for each in own.values()]
                places = [starts.index(name.rpartition("/")[0]) for name in at[level]], column
                values[places], errors[places] = values_and_errors(mine, np.zeros(len(mine)), 0.0, elsewhere)
            if len(starts) > 1 and enough_starts(tuple(one.values()) for one in at.values()):
                one = Starts(levels, values, errors, differences=True, freedom=freedom_of(known.values()))
                found.setdefault(metric.name, []).append(one)
    return found


def _newest(runs: Iterable[RunData], alike: Callable[[RunData], bool]) -> list[RunData]:
    return list(islice(filter(alike, sorted(runs, key=lambda one: one.started_s or 0.0, reverse=True)), EARLIER_MAX))
