"""What the repeats of a level show together: their mean with an interval, those that every screen shows (`estimate`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from servebench.analysis.estimate import estimate_level, levels_of
from servebench.contracts.estimate import LevelEstimate
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow

METRICS = ("output_throughput_tok_s", "ttft_ms_p50", "tpot_ms_p50")
FROM_SCHEDULE = {"ttft_ms_p50": "ttft_from_schedule_ms_p50"}
"""The column of a metric in an open loop, where users wait from the schedule on."""


@dataclass(frozen=True, kw_only=True)
class RepeatedMetric:
    """One metric at one level over its repeats; `spread` is the standard deviation of one repeat, as a share."""

    estimate: LevelEstimate
    spread: float


RepeatSummary = Mapping[Level, Mapping[str, RepeatedMetric]]
"""The METRICS of each level that has repeats."""


def summarize_repeats(points: Sequence[PointRow]) -> RepeatSummary:
    """Return what the repeats of a run show; void points are left out. Pure."""
    found: dict[Level, dict[str, RepeatedMetric]] = {}
    for level, rows in levels_of(row for row in points if row.verdict != "void").items():
        for name in METRICS:
            column = FROM_SCHEDULE.get(name, name) if level.rate is not None else name
            known = [row for row in rows if 0 < (row.get(column) or 0.0) < inf]
            estimate = estimate_level(known, column)
            if estimate is None or len(known) < 2:
                continue
            spread = float(np.expm1(np.log([row[column] for row in known]).std(ddof=1)))
            found.setdefault(level, {})[name] = RepeatedMetric(estimate=estimate, spread=spread)
    return found
