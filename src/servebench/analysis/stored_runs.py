"""Converts stored runs to what the analyses work on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from servebench.analysis.recommendation.model import Entrant
from servebench.analysis.verdict.levels import RankedLevel
from servebench.analysis.verdict.model import ComparedPoint
from servebench.contracts.level import Level
from servebench.contracts.settings import SloSettings
from servebench.contracts.stored import RunData, is_number, mapping
from servebench.measure.columns import in_window, of_engine, request_metrics, token_slices
from servebench.util.errors import StoreError
from servebench.util.groups import grouped

Found = TypeVar("Found")


def of_quality(read: Callable[..., list[Found]], *runs: RunData) -> list[Found]:
    """Return what `read` (`summaries`, `agreements`, `parities`) finds in the quality tables of runs; nothing where one is
    missing or unreadable."""
    try:
        return read(*(run.quality for run in runs))
    except (StoreError, KeyError, ValueError):
        return []


def without_damaged(run: RunData) -> RunData:
    """Return the run; where its requests cannot be read, with that fault instead of its points."""
    try:
        _ = run.requests
    except StoreError as error:
        return replace(run, rows=tuple, noted=(*run.noted, str(error)))
    return run


def samples_of(run: RunData) -> tuple[ComparedPoint, ...]:
    """Return the points of a run with the values of their requests, in the order of its rows. Raises StoreError."""
    if "samples" not in run.derived:
        run.derived["samples"] = tuple(_read_samples(run)) if run.point_rows else ()
    found: tuple[ComparedPoint, ...] = run.derived["samples"]
    return found


def _read_samples(run: RunData) -> Iterator[ComparedPoint]:
    metrics = request_metrics(run.requests)
    for row in run.point_rows:
        of_point = metrics[metrics["point"] == row.point]
        start, end = row.window_start_ns, row.window_end_ns
        if start is None or end is None or of_point.empty:
            yield ComparedPoint(row=row)
            continue
        inside = of_engine(in_window(of_point, row))
        failed = ~inside["ok"].to_numpy(dtype=bool)
        stored = run.requests[run.requests["point"] == row.point]
        sizes = inside["planned_prompt_tokens"].to_numpy(dtype=np.float64, na_value=np.nan)
        # in an open loop a user waits from the schedule on, whatever kept the client from sending
        late = np.nan_to_num(inside["lateness_ms"].to_numpy(dtype=np.float64)) if row.rate is not None else 0.0
        # of what comes in one piece the point has no TTFT
        latencies: dict[str, Any] = {
            name: np.where(failed, np.inf, inside[name].to_numpy(dtype=np.float64) + since)
            if row.get(f"{name}_n") is not None
            else np.full(failed.size, np.nan)
            for name, since in (("ttft_ms", late), ("tpot_ms", 0.0), ("e2e_ms", late))
        }
        yield ComparedPoint(
            row=row,
            **latencies,
            request_ids=tuple(inside["request_id"]),
            sizes=np.nan_to_num(sizes, nan=-1),
            failed=failed,
            throughput_tok_s=token_slices(
                stored, int(start), int(end), left_out=row.left_out, in_slices=bool(row.slices)
            ),
        )


def entrant_of(run: RunData, label: str | None = None) -> Entrant:
    """Return a run, by its label, as an entrant of a recommendation: its levels, repeats pooled. Its requests are read when a
    level's `samples` are."""
    levels = grouped(run.point_rows, lambda row: row.level)

    def read(level: Level) -> tuple[ComparedPoint, ...]:
        return tuple(one for one in samples_of(run) if one.row.level == level)

    ranked = tuple(RankedLevel(tuple(rows), partial(read, level)) for level, rows in levels.items())
    load = mapping(run.config.get("load"))
    users, rates = (one if isinstance(one := load.get(name), list) else [] for name in ("concurrency", "rate"))
    planned = {Level(int(one)) for one in users if is_number(one)}
    planned |= {Level(rate=one) for one in rates if is_number(one)}
    void = {one.level for one in ranked if one.verdict == "void"}
    return Entrant(label or run.run_id, run, ranked, tuple(sorted(void | (planned - levels.keys()))))


def own_limits(run: RunData) -> SloSettings | None:
    """Return the SLO that a run was configured with; None when it set no limit."""
    known = _slo_of(run)
    return SloSettings(**known) if known.keys() - {"attainment"} else None


def shared_limits(runs: Sequence[RunData]) -> dict[str, float]:
    """Return the SLO limits that all runs share."""
    first, *others = [_slo_of(run) for run in runs if run.config] or [{}]
    shared = {name: limit for name, limit in first.items() if all(one.get(name) == limit for one in others)}
    return {name: limit for name, limit in shared.items() if name != "attainment"}


def _slo_of(run: RunData) -> dict[str, float]:
    slo = mapping(run.config.get("slo"))
    known = {name: slo.get(name) for name in ("ttft_ms", "tpot_ms", "e2e_ms", "attainment")}
    return {name: float(value) for name, value in known.items() if isinstance(value, (int, float))}
