"""Where the time of requests goes: the mean of each part, for each load level and its slowest requests.

The parts of a request and their sum are defined in `servebench.measure.timings`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servebench.contracts.stored import RunData
from servebench.measure.columns import in_window, request_metrics
from servebench.util.units import NS_PER_MS

if TYPE_CHECKING:
    import pandas as pd

BEFORE = ("client", "network", "queue", "prefill", "KV transfer")
"""The parts of TTFT from the schedule, in their order."""
PARTS = (*BEFORE, "decode", "delivery")
COLUMNS = {
    "network": "network_ms",
    "queue": "server_queue_ms",
    "prefill": "server_prefill_ms",
    "KV transfer": "server_kv_transfer_ms",
    "decode": "server_decode_ms",
    "delivery": "delivery_ms",
}
SLOW_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class TimeParts:
    """The mean parts of some requests of a level, in milliseconds; those that the engine does not report are missing."""

    level: str
    group: str
    n: int
    parts: Mapping[str, float]

    @property
    def total_ms(self) -> float:
        """From the schedule to the end of the answer."""
        return math.fsum(self.parts.values())

    @property
    def ttft_ms(self) -> float:
        """From the schedule to the first content event."""
        return math.fsum(value for name, value in self.parts.items() if name in BEFORE)

    @property
    def largest_of_ttft(self) -> tuple[str, float]:
        """The largest part of TTFT, and its share."""
        name = max((one for one in self.parts if one in BEFORE), key=lambda one: self.parts[one])
        return name, self.parts[name] / self.ttft_ms if self.ttft_ms else 0.0


def request_parts(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of each request as columns PARTS, in milliseconds; without those that have no complete engine times."""
    parts = requests[list(COLUMNS.values())].set_axis(list(COLUMNS), axis=1)
    parts.insert(0, "client", (requests["sent_ns"] - requests["scheduled_ns"]) / NS_PER_MS)
    return parts[parts["network"].notna() & parts["delivery"].notna()].astype(float)


def time_parts(run: RunData) -> list[TimeParts]:
    """Return the parts of each level, of all its requests and of the slowest 1% (at least one). Empty where the engine reports no
    times. Ok requests sent inside the measurement windows count. Raises StoreError."""
    rows = [row for row in run.point_rows if row.window_ns is not None]
    requests = run.requests if rows else None
    if requests is None or not {*COLUMNS.values()} <= set(requests.columns) or requests["network_ms"].isna().all():
        return []
    metrics = request_metrics(requests)
    inside: dict[str, list[pd.Index]] = {}
    for row in rows:
        assert row.window_ns is not None
        of_point = in_window(metrics[metrics["point"] == row.point], *row.window_ns, row.left_out)
        ids = set(of_point[of_point["ok"]]["request_id"])
        here = (requests["point"] == row.point) & requests["request_id"].isin(ids)
        inside.setdefault(row.level_label, []).append(requests.index[here])
    found = []
    for level, indexes in inside.items():
        parts = request_parts(requests.loc[[label for index in indexes for label in index]])
        if parts.empty:
            continue
        slow = parts.loc[parts.sum(axis=1).nlargest(math.ceil(SLOW_SHARE * len(parts))).index]
        found += [_mean(level, "all", parts), _mean(level, "slowest 1%", slow)]
    return found


def _mean(level: str, group: str, parts: pd.DataFrame) -> TimeParts:
    known = {str(name): float(mean) for name, mean in parts.fillna(0.0).mean().items() if parts[name].notna().any()}
    return TimeParts(level=level, group=group, n=len(parts), parts=known)
