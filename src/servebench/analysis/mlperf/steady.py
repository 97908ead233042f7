"""The steady-state window of a point as MLPerf Endpoints finds it (rules 4.4), and the metrics of its rules (4.1).

Requests in the order of issue are cut into super-passes, one for each pass over the data set. Those of the beginning whose TPOT
is off the later level are left out; the others are divided into plateaus, which grow as long as the p50 and p90 of TPOT stay flat
and within a band; the first that is long enough is the window. Its time is that from the first issue to the last. This follows
`steady_state_diagnostics.py` of the reference client (mlcommons/endpoints 5606359) but for two things: the tokens after the first
chunk are those of the stored events, and system_tps has all output tokens, as the rules say, where the client has only those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from servebench.measure.columns import measured_rows
from servebench.util.arrays import Floats
from servebench.util.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

TIMES = ("sent_ns", "connect_started_ns", "first_event_ns", "ended_ns", "output_tokens")
COLUMNS = (*TIMES, "point", "session_id", "outcome", "warmup", "filler", "event_tokens")
GATING = (0.50, 0.90)
"""The percentiles of TPOT that decide whether a window is steady."""
VARIATION_MAX = 0.08
CHANGE_MIN = 0.05
"""A trend of less ends no plateau, and plateaus nearer to each other are one level."""
VALUES_MIN = 4
"""The fewest super-passes that are tested (`MIN_TREND_N` of the rules)."""
ALPHA = 0.05
"""The level of the tests by which a steady series is distinguished from one that drifts or steps."""
CROPPED_MAX, PRECISION, LATENCIES, FLOOR_S = 0.5, 0.05, 5.0, 600.0


@dataclass(frozen=True, kw_only=True)
class MlperfMetrics:
    """Metrics by the names of the rules; None where undefined."""

    system_tps: float | None
    tps_per_user: float | None
    ttft_p90_ms: float | None
    tpot_p90_ms: float | None


@dataclass(frozen=True, kw_only=True)
class SteadyState:
    """What is found in a point that was cut into `passes` super-passes of `pass_size` requests; `cropped` are left out. It is a
    window from super-pass `first` up to `end` (0 if there is none), with `span_s` from its first issue to its last, and the time
    that it needs; `status` and `verdict` in the words of the rules; by which share TPOT is higher after a step (`shift`)."""

    pass_size: int
    passes: int
    cropped: int
    status: str
    verdict: str = "not found"
    first: int = 0
    end: int = 0
    span_s: float = 0.0
    needed_s: float = 0.0
    shift: float | None = None
    metrics: MlperfMetrics | None = None


def by_issue(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the measured ones of a point's stored COLUMNS in the order of issue, which is before a connection is opened:
    session_id, issued_s, ended_s, tokens, and ttft_ms, tpot_ms and e2e_ms up to the end of the stream, NaN (tokens 0) where a
    request did not succeed."""
    frame = measured_rows(requests)
    frame = frame[frame["sent_ns"].notna()]
    sent, connect, first, ended, tokens = (frame[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in TIMES)
    issued = np.where(np.isnan(connect), sent, connect)
    ok = (frame["outcome"] == "ok").to_numpy()
    later = tokens - frame["event_tokens"].str[0].astype(float).fillna(1.0).clip(lower=1.0).to_numpy()
    found = frame[["session_id"]].assign(
        issued_s=issued / NS_PER_S,
        ended_s=ended / NS_PER_S,
        tokens=np.nan_to_num(np.where(ok, tokens, 0.0)),
        ttft_ms=np.where(ok, first - issued, np.nan) / NS_PER_MS,
        tpot_ms=np.where(ok & (later > 0), ended - first, np.nan) / NS_PER_MS / np.maximum(later, 1.0),
        e2e_ms=np.where(ok, ended - issued, np.nan) / NS_PER_MS,
    )
    return found.sort_values("issued_s", kind="stable")


def metrics_of(issued: pd.DataFrame, seconds: float) -> MlperfMetrics:
    """Return the metrics of requests over so many seconds; percentiles are values at the rounded-down rank."""
    tpot, ttft = (_quantile(issued[name], 0.90) for name in ("tpot_ms", "ttft_ms"))
    return MlperfMetrics(
        system_tps=float(issued["tokens"].sum()) / seconds if seconds > 0 else None,
        tps_per_user=1000 / tpot if tpot > 0 else None,
        ttft_p90_ms=None if math.isnan(ttft) else ttft,
        tpot_p90_ms=None if math.isnan(tpot) else tpot,
    )


def _quantile(values: pd.Series[float], share: float) -> float:
    return float(values.quantile(share, interpolation="lower"))


def steady_state(issued: pd.DataFrame, size: int, minimum_s: float, floor_s: float = FLOOR_S) -> SteadyState:
    """Return the steady state of a point of super-passes of `size` requests, which the rules want to last `minimum_s`; a plateau
    of less than `floor_s` is passed over for a longer one. Pure."""
    parts = [issued.iloc[at : at + size] for at in range(0, len(issued), size)]
    gating = np.array([[_quantile(one["tpot_ms"], share) for one in parts] for share in GATING])
    cropped = _ramp(gating[0][~np.isnan(gating[0])])
    plateaus = list(_plateaus(gating, cropped))
    windows = [issued.iloc[first * size : end * size] for first, end in plateaus]
    spans = [_span_s(one) for one in windows]
    needs = [_needed_s(parts[first:end], gating[0][first:end], floor_s) for first, end in plateaus]
    enough = (at for at in range(len(plateaus)) if spans[at] >= needs[at])
    at = next(enough, max(range(len(plateaus)), key=spans.__getitem__, default=-1))
    begin = plateaus[at][0] if plateaus else cropped
    directions = [trend(known[~np.isnan(known)]) for known in gating[:, begin:]]
    status = "partial_dataset" if len(issued) < size else "insufficient_passes"
    found = SteadyState(pass_size=size, passes=len(parts), cropped=cropped, status=status)
    if not plateaus:
        return found
    levels = [float(one["tpot_ms"].mean()) / float(windows[at]["tpot_ms"].mean()) - 1 for one in windows[at:]]
    moved = [change for change in levels if abs(change) > CHANGE_MIN]
    stepped = bool(moved) and steps(np.nan_to_num([one["tpot_ms"].mean() for one in parts[cropped:]]))
    drift = next((one for one in ("up", "down") if one in directions), None)
    return replace(
        found,
        status="windowable" if spans[at] >= max(minimum_s, needs[at]) else "insufficient_duration",
        verdict="anomaly" if stepped else f"drifting_{drift}" if drift else "STEADY STATE",
        first=begin,
        end=plateaus[at][1],
        span_s=spans[at],
        needed_s=needs[at],
        shift=moved[0] if stepped else None,
        metrics=metrics_of(windows[at], spans[at]),
    )


def _span_s(issued: pd.DataFrame) -> float:
    return float(issued["issued_s"].iloc[-1] - issued["issued_s"].iloc[0])


def _ramp(known: Floats) -> int:
    """Return how many super-passes of the beginning to leave out: at least one, at most half."""
    if known.size < VALUES_MIN:
        return 1
    level = float(np.median(known[known.size // 2 :]))
    off = np.abs(known - level) > CHANGE_MIN * level
    return max(1, min(int(known.size * CROPPED_MAX), int(np.append(off, False).argmin())))


def _plateaus(gating: Floats, begin: int) -> Iterator[tuple[int, int]]:
    """Yield the longest windows that stay steady as they grow from the left, one after another."""
    last = gating.shape[1]
    while begin <= last - VALUES_MIN:
        end = begin + VALUES_MIN - 1
        while end < last and all(_steady(known[begin : end + 1]) for known in gating):
            end += 1
        if end - begin >= VALUES_MIN:
            yield begin, end
            begin = end
        else:
            begin += 1


def _steady(values: Floats) -> bool:
    if np.isnan(values).any() or values.std() > VARIATION_MAX * values.mean():
        return False
    change = float(np.polyfit(np.arange(values.size), values, 1)[0]) * (values.size - 1) / float(np.median(values))
    return abs(change) < CHANGE_MIN or trend(values) == "flat"


def _needed_s(parts: Sequence[pd.DataFrame], tpot: Floats, floor_s: float) -> float:
    """Return the time that a plateau needs: of so many super-passes as the mean of TPOT p50 takes to be known within 5%, where
    they are more than a trend needs; of five long answers; and `floor_s`."""
    passes = math.ceil((1.96 * float(tpot.std() / tpot.mean()) / PRECISION) ** 2)
    pass_s = float(np.median([_span_s(one) for one in parts]))
    answer_ms = float(np.nanquantile(np.concatenate([one["e2e_ms"] for one in parts]), 0.90, method="lower"))
    return max(passes * pass_s if passes > VALUES_MIN else 0.0, LATENCIES * answer_ms / 1000, floor_s)


def trend(values: Floats) -> str:
    """Return where a series goes (up, down or flat) by the test of Mann and Kendall with the variance of Hamed and Rao (1998, J.
    Hydrology 204), which grows by the significant autocorrelations of the ranks. Fewer than VALUES_MIN values are flat."""
    n = values.size
    score = float(np.triu(np.sign(values[None, :] - values[:, None]), 1).sum())
    if n < VALUES_MIN or score == 0:
        return "flat"
    _, ties = np.unique(values, return_counts=True)
    variance = float(n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
    ranks = values.argsort(kind="stable").argsort(kind="stable") - (n - 1) / 2
    lags = np.arange(1, n)
    correlation = np.array([ranks[lag:] @ ranks[:-lag] for lag in lags]) / (ranks @ ranks)
    weights = (n - lags) * (n - lags - 1) * (n - lags - 2) * (np.abs(correlation) > 1.96 / math.sqrt(n))
    factor = 1 + 2 / (n * (n - 1) * (n - 2)) * float(weights @ correlation)
    z = (abs(score) - 1) / math.sqrt(variance * (factor if factor > 0 else 1.0))
    if math.erfc(z / math.sqrt(2)) >= ALPHA:
        return "flat"
    return "up" if score > 0 else "down"


def steps(values: Floats) -> bool:
    """Return whether a series steps to another level by Pettitt's test (1979, J. R. Stat. Soc. C 28)."""
    n = values.size
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (sizes.cumsum() - (sizes - 1) / 2)[group]
    largest = float(np.abs(2 * ranks.cumsum()[:-1] - np.arange(1, n) * (n + 1)).max())
    return 2 * math.exp(-6 * largest**2 / (n**3 + n**2)) < ALPHA
