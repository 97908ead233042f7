"""The metrics of stored requests, computed on whole columns without a loop over events.

`derive` defines each metric for one record; this module applies the same definitions to requests.parquet. A test compares
both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from servebench.contracts.point_row import PointRow
from servebench.contracts.results import OURS
from servebench.measure import derive
from servebench.util.arrays import Floats, Ints
from servebench.util.stretches import Spans, compressed, length, outside, touched_sends
from servebench.util.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    import pandas as pd


SLICES = 60
"""Number of equal slices of a window for throughput over time."""


@dataclass(frozen=True, kw_only=True)
class EventColumns:
    """All content events of some requests, request after request: their stamps and tokens, and how many each request has.

    `tokens` is None if the length of an answer is unknown.
    """

    stamp_ns: Ints
    counts: Ints
    tokens: Floats | None

    @property
    def gaps_ms(self) -> Floats:
        """The gaps between consecutive events of each request (ITL)."""
        owner = np.repeat(np.arange(self.counts.size), self.counts)
        found: Floats = np.diff(self.stamp_ns)[owner[1:] == owner[:-1]] / NS_PER_MS
        return found


def events_of(event_ns: Iterable[Any], event_tokens: Iterable[Any], output_tokens: Floats) -> EventColumns:
    """Return the events of requests, from the stamps and tokens of each (null, NaN or a sequence) and their output tokens (NaN if
    unknown).

    The tokens of an event are those in the stream, else an equal share of the request's output tokens. The end token and text
    that was withheld come without a content event: they belong to the last one.
    """
    null = (type(None), float)
    stamps, streamed = ([() if isinstance(one, null) else one for one in some] for some in (event_ns, event_tokens))
    counts, known = (np.array([len(one) for one in some], dtype=np.int64) for some in (stamps, streamed))
    complete = known == counts
    stamp_ns = _flat(stamps).astype(np.int64)
    if np.isnan(output_tokens[~complete]).any():
        return EventColumns(stamp_ns=stamp_ns, counts=counts, tokens=None)
    tokens = np.repeat(output_tokens / np.maximum(counts, 1), counts)
    owner = np.repeat(np.arange(counts.size), counts)
    tokens[complete[owner]] = _flat([one for one, whole in zip(streamed, complete, strict=True) if whole])
    has = (counts > 0) & complete & ~np.isnan(output_tokens)
    sums = np.bincount(owner, weights=tokens, minlength=counts.size)
    tokens[(np.cumsum(counts) - 1)[has]] += np.maximum(output_tokens[has] - sums[has], 0.0)
    return EventColumns(stamp_ns=stamp_ns, counts=counts, tokens=tokens)


def _flat(lists: Iterable[Any]) -> Any:
    kept = [one for one in lists if len(one)]
    return np.concatenate(kept) if kept else np.empty(0)


def measured_rows(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the stored requests without those of the warm-up and those that only kept the level (`filler`)."""
    return requests[~(requests["warmup"] | requests["filler"]).astype(bool)]


def request_metrics(requests: pd.DataFrame) -> pd.DataFrame:
    """Return one row a measured request in the order sent, with its latencies in ms.

    Columns: point, request_id, ok, sent_ns, ended_ns, ttft_ms, ttft_from_schedule_ms, ttfo_ms, tpot_ms, e2e_ms,
    lateness_ms, output_tokens, prompt_tokens, planned_prompt_tokens, outcome, error. A latency is NaN where it is
    undefined. A request that was never sent counts from when it was scheduled.
    """
    import pandas as pd

    if requests.empty:
        return pd.DataFrame(columns=[*_KEPT, *_SPANS, "tpot_ms", "ok"])
    frame = measured_rows(requests)
    count = frame["event_ns"].str.len().fillna(0).astype(np.int64).to_numpy()
    tokens = frame["output_tokens"].to_numpy(dtype=np.float64, na_value=np.nan)
    found = frame[list(_KEPT)].copy()
    found["ok"] = (frame["outcome"] == "ok").to_numpy()
    for name in _SPANS:
        # the definitions for one record hold for columns, too
        found[name] = getattr(derive, name)(frame).to_numpy(dtype=np.float64, na_value=np.nan)
    first = frame["event_tokens"].str[0].astype(float).fillna(1.0).clip(lower=1.0).to_numpy(dtype=np.float64)
    streamed = frame["event_tokens"].map(np.sum, na_action="ignore").to_numpy(dtype=np.float64, na_value=np.nan)
    later = np.where(np.isnan(streamed), tokens, streamed) - first
    with np.errstate(divide="ignore", invalid="ignore"):
        decode_ms = (frame["last_event_ns"] - frame["first_event_ns"]) / NS_PER_MS
        tpot = decode_ms.to_numpy(dtype=np.float64, na_value=np.nan) / later
    found["tpot_ms"] = np.where((tokens >= 2) & (later > 0) & (count >= 2), tpot, np.nan)
    found["sent_ns"] = frame["sent_ns"].fillna(frame["scheduled_ns"]).astype(np.int64)
    return found.sort_values("sent_ns", kind="stable").reset_index(drop=True)


_KEPT = (
    *("point", "request_id", "sent_ns", "scheduled_ns", "ended_ns", "output_tokens", "asked_output_tokens"),
    *("prompt_tokens", "planned_prompt_tokens", "outcome", "error"),
)
_SPANS = ("ttft_ms", "ttft_from_schedule_ms", "ttfo_ms", "e2e_ms", "lateness_ms")


def in_window(metrics: pd.DataFrame, row: PointRow) -> pd.DataFrame:
    """Return the requests of a point that count, of all that were sent: none without a window."""
    start_ns, end_ns = row.window_ns or (1, 0)
    sent, ended = metrics["sent_ns"].to_numpy(dtype=np.int64), metrics["ended_ns"].to_numpy(dtype=np.int64)
    # a row that was stored before it had these stretches only says what they come from
    uncounted = row.not_counted or touched_sends(row.left_out, sent, ended)
    return metrics[(sent >= start_ns) & (sent <= end_ns) & outside(sent, uncounted)]


def of_engine(metrics: pd.DataFrame) -> pd.DataFrame:
    """Return the requests that the client itself did not end: only these succeeded or failed because of the engine."""
    return metrics[~metrics["outcome"].isin(OURS)]


def events(requests: pd.DataFrame) -> EventColumns:
    """Return the content events of the requests in the frame, in order."""
    output = requests["output_tokens"].to_numpy(dtype=np.float64, na_value=np.nan)
    return events_of(requests["event_ns"], requests["event_tokens"], output)


def token_slices(
    requests: pd.DataFrame, start_ns: int, end_ns: int, *, left_out: Spans = (), in_slices: bool = False
) -> Floats | None:
    """Return output tokens a second of ok requests in each of SLICES equal slices of the window, without the stretches
    left out; None if unknown. Of a point `in_slices` also of those that were given up after their slice."""
    counted = requests["outcome"] == "ok"
    if in_slices:
        ended = requests["ended_ns"].to_numpy(dtype=np.int64)
        after = ~outside(ended, left_out) | (ended > end_ns)
        counted |= (requests["outcome"] == "abandoned") & requests["output_tokens"].notna() & after
    streamed = measured_rows(requests[counted])
    if streamed.empty or end_ns <= start_ns:
        return None
    every = events(streamed)
    if every.tokens is None:
        return None
    inside = (every.stamp_ns > start_ns) & (every.stamp_ns <= end_ns) & outside(every.stamp_ns, left_out)
    width_ns = (end_ns - start_ns - length(left_out)) / SLICES
    where = np.minimum(
        ((compressed(every.stamp_ns[inside], left_out) - start_ns) / width_ns).astype(np.int64), SLICES - 1
    )
    sums = np.bincount(where, weights=every.tokens[inside], minlength=SLICES)
    found: Floats = sums / (width_ns / NS_PER_S)
    return found


def gaps_ms(requests: pd.DataFrame) -> Floats:
    """Return all gaps between consecutive content events of each request, pooled (ITL)."""
    return events(requests.assign(event_tokens=None, output_tokens=0)).gaps_ms
