"""Where the time of requests goes: the mean of each part, for each load level and its slowest requests.

The parts of a request and their sum are defined in `servebench.measure.derive`. What the engine does not report is what the
client's own stamps say: the time until the first content, and the time from there to the end of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import numpy as np

from servebench.contracts.level import Level
from servebench.contracts.stored import RunData, mapping
from servebench.measure.columns import in_window, measured_rows
from servebench.measure.in_flight import in_flight_at
from servebench.util.addresses import is_loopback
from servebench.util.units import NS_PER_MS

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "network": "network_ms",
    "queue": "server_queue_ms",
    "prefill": "server_prefill_ms",
    "KV transfer": "server_kv_transfer_ms",
    "decode": "server_decode_ms",
    "delivery": "delivery_ms",
}
FIRST, REST = "until first token", "after first token"
"""The parts where the engine reports none: by the client's stamps."""
BEFORE = ("client", "network", "queue", "prefill", "KV transfer", FIRST)
"""The parts of TTFT from the schedule, in their order."""
PARTS = (*BEFORE, "decode", "delivery", REST)
Metric = Literal["TTFT", "E2E"]
METRICS: Mapping[Metric, Sequence[str]] = {"TTFT": BEFORE, "E2E": PARTS}
STAMPS = ("point", "request_id", "outcome", "warmup", "filler", "scheduled_ns", "sent_ns", "first_event_ns", "ended_ns")
"""The columns that say when a request was what."""
ABSURD_MS = 1e12
"""Thirty years: what a damaged file says."""
LENGTHS = ("prompt_tokens", "cached_tokens")
SLOW_SHARE, SLOW_MIN = 0.01, 5
SLOW_FROM = 10 * SLOW_MIN
"""Of fewer requests the slowest are too many to be a tail."""


@dataclass(frozen=True, kw_only=True)
class TimeParts:
    """The mean parts of TTFT or E2E, from the schedule, of some requests of a level, in milliseconds: of all `of`, or of the `n`
    that are the slowest by this metric."""

    level: Level
    metric: Metric
    n: int
    of: int
    parts: Mapping[str, float]
    here: bool = False
    """Whether there is no network between server and client."""

    @property
    def group(self) -> Literal["all", "slowest"]:
        """Which requests of the level these are."""
        return "all" if self.n == self.of else "slowest"

    @property
    def total_ms(self) -> float:
        """The mean of the metric."""
        return math.fsum(self.parts.values())

    @property
    def ttft_ms(self) -> float:
        """The mean TTFT of these requests."""
        return math.fsum(value for name, value in self.parts.items() if name in BEFORE)

    @property
    def reported(self) -> bool:
        """Whether the engine reported times."""
        return not {FIRST, REST} & set(self.parts)

    @property
    def largest(self) -> tuple[str, float]:
        """The largest part, and its share."""
        name = max(self.parts, key=lambda one: self.parts[one])
        return name, self.parts[name] / self.total_ms if self.total_ms > 0 else 0.0

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        mean_ms = dict(self.parts)
        return {"level": str(self.level), "metric": self.metric, "n": self.n, "of": self.of, "mean_ms": mean_ms}


def server_is_here(run: RunData) -> bool:
    """Return whether a run's server was reached without a network, and none was simulated."""
    launch = mapping(run.config.get("launch"))
    try:
        return not launch.get("network_ms") and is_loopback(urlsplit(str(launch.get("base_url") or "")).hostname)
    except ValueError:
        return False


def slow_count(n: int) -> int:
    """Return how many of a level's requests are its slowest ones: 1%, at least SLOW_MIN; 0 where there are too few requests."""
    return max(SLOW_MIN, math.ceil(SLOW_SHARE * n)) if n >= SLOW_FROM else 0


def request_parts(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of each request that had content as columns PARTS, in milliseconds, NaN where they are unknown.

    They always add up to the time from the schedule to the end of the answer.
    """
    requests = requests[requests["first_event_ns"].notna()]
    parts = requests[list(COLUMNS.values())].set_axis(list(COLUMNS), axis=1).astype(float)
    parts = parts.where(parts.abs() < ABSURD_MS)
    # without its prefill an engine's queue says nothing of the rest
    parts.loc[parts["network"].isna(), [name for name in BEFORE if name in parts]] = np.nan
    parts.loc[parts["delivery"].isna(), "decode"] = np.nan
    parts["client"] = _ms(requests, "scheduled_ns", "sent_ns")
    parts[FIRST] = _ms(requests, "sent_ns", "first_event_ns").where(parts["network"].isna())
    parts[REST] = _ms(requests, "first_event_ns", "ended_ns").where(parts["delivery"].isna())
    return parts[list(PARTS)]


def _ms(requests: pd.DataFrame, start: str, end: str) -> pd.Series:
    return (requests[end].astype(float) - requests[start].astype(float)) / NS_PER_MS


def requests_by_level(run: RunData, columns: Sequence[str]) -> dict[Level, pd.DataFrame]:
    """Return the ok requests that were sent inside the measurement windows of each level, in the order sent, repeats one after
    the other: STAMPS and `columns`, and what each met when it was sent, by the client's stamps: how many other requests were
    `in_flight`, how many of them were without a first token (`prefilling`), and how many tokens their prompts had that
    were not cached (`prefill_tokens`, NaN if unknown). Raises StoreError."""
    import pandas as pd

    rows = [row for row in run.point_rows if row.window_ns is not None]
    if not rows:
        return {}
    every = run.requests_with(list(dict.fromkeys((*STAMPS, *LENGTHS, *columns))))
    every = every.assign(sent_ns=every["sent_ns"].fillna(every["scheduled_ns"])).dropna(subset=["sent_ns", "ended_ns"])
    every = every.sort_values("sent_ns", kind="stable")
    by_point = dict(iter(every.astype({"sent_ns": np.int64, "ended_ns": np.int64}).groupby("point")))
    found: dict[Level, list[pd.DataFrame]] = {}
    for row in rows:
        if row.point not in by_point or row.window_ns is None:
            continue
        inside = in_window(measured_rows(_with_company(by_point[row.point])), row)
        found.setdefault(row.level, []).append(inside[inside["outcome"] == "ok"])
    return {level: pd.concat(frames, ignore_index=True) for level, frames in found.items()}


def _with_company(requests: pd.DataFrame) -> pd.DataFrame:
    sent, ended = requests["sent_ns"].to_numpy(), requests["ended_ns"].to_numpy()
    first = requests["first_event_ns"].fillna(requests["ended_ns"]).to_numpy(dtype=np.int64)
    prompt, cached = (requests[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in LENGTHS)
    tokens = prompt - np.nan_to_num(cached)
    by_first = np.argsort(first, kind="stable")
    begun = np.cumsum(tokens)[np.searchsorted(sent, sent, side="right") - 1]
    done = np.append(0.0, np.cumsum(tokens[by_first]))[np.searchsorted(first[by_first], sent, side="right")]
    return requests.assign(
        in_flight=in_flight_at(sent, sent, ended) - 1,
        prefilling=in_flight_at(sent, sent, first) - 1,
        prefill_tokens=begun - done - tokens,
    )


def time_parts(run: RunData, by_level: Mapping[Level, pd.DataFrame] | None = None) -> list[TimeParts]:
    """Return the parts of TTFT and E2E of each level: of all its requests, and of its slowest ones where it has enough requests.

    Where the engine reports times for some requests, only these count. `by_level` are its requests, if they are read already.
    Raises StoreError.
    """
    found = []
    by_level = requests_by_level(run, list(COLUMNS.values())) if by_level is None else by_level
    for level, requests in by_level.items():
        parts = request_parts(requests)
        for metric, names in METRICS.items():
            found += _of_metric(level, metric, parts[list(names)], here=server_is_here(run))
    return found


def _of_metric(level: Level, metric: Metric, parts: pd.DataFrame, *, here: bool) -> list[TimeParts]:
    for unknown in (FIRST, REST):
        if unknown in parts and parts[unknown].isna().any():
            parts = parts[parts[unknown].isna()]
    parts = parts.dropna(axis=1, how="all").fillna(0.0)
    if parts.empty:
        return []
    slow = parts.loc[parts.sum(axis=1).nlargest(slow_count(len(parts))).index]
    means = [(len(some), {str(name): float(mean) for name, mean in some.mean().items()}) for some in (parts, slow)]
    return [TimeParts(level=level, metric=metric, n=n, of=len(parts), parts=own, here=here) for n, own in means if n]
