"""From stored points to what the race sees of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from servebench.analysis.tuning.steps import Result
from servebench.contracts.point_row import PointRow
from servebench.contracts.tuning import Objective
from servebench.util.units import NS_PER_S


def result_of_point(row: PointRow, rows: Sequence[PointRow], objective: Objective, *, per_start: bool) -> Result:
    """Return what a point says; `rows` are all points of its run. With `per_start` the cost counts starts of the engine, else
    seconds."""
    seconds, begins = engine_seconds(row, rows)
    effect = max(1.0, row.slo_design_effect or 1.0)
    failed, answered = row.requests_failed or 0, row.requests_ok or 0
    return Result(
        value=good_share(row) if not objective.column else log_value(row.get(objective.column), objective),
        cost=float(begins) if per_start else seconds,
        good=(row.slo_good or 0) / effect,
        tested=(row.slo_requests or 0) / effect,
        failed=failed,
        sent=failed + answered,
        start_id=row.start_id or "",
        void=row.verdict == "void",
    )


def good_share(row: PointRow) -> float:
    """The share of requests that met the SLO."""
    return (row.slo_good or 0) / row.slo_requests if row.slo_requests else 0.0


def log_value(value: float | None, objective: Objective) -> float:
    """Return the logarithm of an objective's value, higher for better; minus infinity where nothing was achieved."""
    if value is None or not math.isfinite(value) or value <= 0:
        return -math.inf
    return math.log(value) if objective.higher else -math.log(value)


def shown_value(log: float, objective: Objective) -> float:
    """Return an objective's value from its logarithm."""
    return math.exp(log if objective.higher else -log)


def engine_seconds(row: PointRow, rows: Sequence[PointRow]) -> tuple[float, bool]:
    """Return for how long the engine ran for a point: since the point before it in the same start, or since its start. The second
    value says whether it is the first of its start."""
    if row.start_id is None or row.window_end_ns is None:
        return 0.0, True
    earlier = [
        int(one.window_end_ns)
        for one in rows
        if one.start_id == row.start_id and one.window_end_ns is not None and one.window_end_ns < row.window_end_ns
    ]
    began = max(earlier) if earlier else _start_ns(row.start_id)
    return max(0.0, (int(row.window_end_ns) - began) / NS_PER_S), not earlier


def _start_ns(start_id: str) -> float:
    return datetime.fromisoformat(start_id).timestamp() * NS_PER_S
