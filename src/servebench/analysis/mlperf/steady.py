"""The steady-state window of a point as MLPerf Endpoints finds it (rules 4.4), and the metrics of its rules (4.1).

Requests in the order of issue are cut into super-passes, one for each pass over the data set. Those of the beginning whose TPOT
is off the later level are left out; the others are divided into plateaus, which grow as long as the p50 and p90 of TPOT stay flat
and within a band. The first plateau that is long enough is the window. Its time is that from the first issue to the last, so the
end, when requests only drain, is in no rate. This follows the rules (see `rules`) and the reference client's
`steady_state_diagnostics.py` (mlcommons/endpoints 5606359), with two differences: the tokens after the first chunk are those of
the stored events, not counted by a tokenizer, and system_tps has all output tokens, as the rules say, where the client leaves out
those of the first chunk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from servebench.analysis.mlperf.trend import (
    ALPHA,
    VALUES_MIN,
    Direction,
    level_step,
    relative_change,
    trend,
    variation,
)
from servebench.measure.columns import measured_rows
from servebench.measure.dialects import ToolDefinition, aligned_latencies
from servebench.util.arrays import Floats
from servebench.util.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

DEFINITION = ToolDefinition(
    name="mlperf", title="MLPerf Endpoints", starts="connect", stops="stream", tpot="after_chunk", itl="none"
)
GATING = {"tpot_p50": 0.50, "tpot_p90": 0.90}
"""The percentiles of TPOT that decide whether a window is steady."""
VARIATION_MAX = 0.08
CHANGE_MIN = 0.05
"""A trend of less ends no plateau, and plateaus nearer to each other are one level."""
CROPPED_MAX = 0.5
PRECISION = 0.05
LATENCIES = 5.0
FLOOR_S = 600.0
PASSES_UNKNOWN = 20
"""Into so many super-passes a point is cut whose data set has no known size; each has at least one request a user."""
STATES: Mapping[Direction, str] = {"flat": "Plateau", "up": "Drifting Up", "down": "Drifting Down"}


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """A point's metrics by the rules; None where undefined."""

    system_tps: float | None
    tps_per_user: float | None
    ttft_p90_ms: float | None
    tpot_p90_ms: float | None
    e2e_avg_interactivity: float | None


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The measured requests of a point in the order of issue; latencies are NaN, and tokens 0, where they did not succeed."""

    issued_ns: Floats
    ended_ns: Floats
    ttft_ms: Floats
    tpot_ms: Floats
    e2e_ms: Floats
    tokens: Floats
    agentic: bool = False

    @classmethod
    def of(cls, requests: pd.DataFrame) -> Samples:
        """Return those of a point's stored requests."""
        frame = measured_rows(requests)
        frame = frame[frame["sent_ns"].notna()]
        ok = (frame["outcome"] == "ok").to_numpy()
        issued = frame["connect_started_ns"].fillna(frame["sent_ns"]).to_numpy(dtype=np.float64)
        order = np.argsort(issued, kind="stable")
        latencies = aligned_latencies(frame, DEFINITION)
        found = {name: np.where(ok, latencies[name], np.nan)[order] for name in ("ttft_ms", "tpot_ms", "e2e_ms")}
        tokens = np.nan_to_num(frame["output_tokens"].to_numpy(dtype=np.float64, na_value=0.0))
        return cls(
            **found,
            issued_ns=issued[order],
            ended_ns=frame["ended_ns"].to_numpy(dtype=np.float64)[order],
            tokens=np.where(ok, tokens, 0.0)[order],
            agentic=bool(frame["session_id"].notna().any()),
        )

    @property
    def count(self) -> int:
        """How many were issued."""
        return int(self.issued_ns.size)

    @property
    def completed(self) -> int:
        """How many succeeded."""
        return int(np.isfinite(self.e2e_ms).sum())

    @property
    def run_s(self) -> float:
        """From the first issue to the end of the last answer."""
        return float(self.ended_ns.max() - self.issued_ns[0]) / NS_PER_S if self.count else 0.0

    def part(self, begin: int, end: int) -> Samples:
        """Return the requests with these places."""
        names = ("issued_ns", "ended_ns", "ttft_ms", "tpot_ms", "e2e_ms", "tokens")
        return replace(self, **{name: getattr(self, name)[begin:end] for name in names})

    @property
    def issue_s(self) -> float:
        """From the first issue to the last."""
        return float(self.issued_ns[-1] - self.issued_ns[0]) / NS_PER_S if self.count else 0.0

    def metrics(self, seconds: float) -> Metrics:
        """Return their metrics over so many seconds."""
        tpot, ttft = lower_percentile(self.tpot_ms, 0.90), lower_percentile(self.ttft_ms, 0.90)
        answering_s = float(np.nansum(self.e2e_ms)) * NS_PER_MS / NS_PER_S
        return Metrics(
            system_tps=float(self.tokens.sum()) / seconds if seconds > 0 else None,
            tps_per_user=1000 / tpot if tpot else None,
            ttft_p90_ms=ttft,
            tpot_p90_ms=tpot,
            e2e_avg_interactivity=float(self.tokens.sum()) / answering_s if self.agentic and answering_s > 0 else None,
        )


def lower_percentile(values: Floats, share: float) -> float | None:
    """Return the percentile of the values that are not NaN: the one at the rounded-down rank; None for none."""
    known = np.sort(values[~np.isnan(values)])
    return float(known[int(share * (known.size - 1))]) if known.size else None


@dataclass(frozen=True, kw_only=True)
class SteadyWindow:
    """The super-passes from `first` up to `end` (not included), with the time from their first issue to their last, and the
    time that they need to be enough."""

    first: int
    end: int
    samples: Samples
    span_s: float
    needed_s: float


@dataclass(frozen=True, kw_only=True)
class SteadyState:
    """What is found in a point that was cut into `passes` super-passes of `pass_size` requests, of which the first `cropped` are
    left out. `status`, `verdict` and `states` are words of the rules; `shift` is the relative change of TPOT at a step."""

    pass_size: int
    passes: int
    cropped: int
    window: SteadyWindow | None
    status: str
    verdict: str
    states: Mapping[str, str]
    shift: float | None = None

    @property
    def official(self) -> bool:
        """Whether the rules take the metrics of the window in place of those of the whole run."""
        return self.status == "windowable"

    @property
    def accepted(self) -> bool:
        """Whether the window is the result without a flag: a later step is told and accepted, a drift is not."""
        return self.official and self.verdict in ("STEADY STATE", "anomaly")

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, without its samples."""
        window = self.window
        return {
            **{name: getattr(self, name) for name in ("pass_size", "passes", "cropped", "status", "verdict", "shift")},
            "states": dict(self.states),
            "window": window
            and {
                **{name: getattr(window, name) for name in ("first", "end", "span_s", "needed_s")},
                "requests": window.samples.count,
            },
        }


def pass_size(samples: Samples, users: int, data_set: int | None = None) -> int:
    """Return how many requests a super-pass has: those of the data set, or a share of those issued where it has no known size."""
    return data_set or max(users, math.ceil(samples.count / PASSES_UNKNOWN), 1)


def steady_state(samples: Samples, size: int, minimum_s: float, floor_s: float = FLOOR_S) -> SteadyState:
    """Return the steady state of a point: super-passes of `size` requests, of which the rules want `minimum_s` seconds; a plateau
    of less than `floor_s` is none. Pure."""
    series = _Series(samples, size)
    cropped = series.ramp()
    plateaus = list(series.plateaus(cropped))
    windows = [series.window(first, end, floor_s) for first, end in plateaus]
    long = (at for at, one in enumerate(windows) if one.span_s >= one.needed_s)
    longest = max(range(len(windows)), key=lambda at: windows[at].span_s, default=None)
    at = next(long, longest)
    window = None if at is None else windows[at]
    begin = cropped if window is None else window.first
    directions = {name: trend(known[begin:][~np.isnan(known[begin:])]) for name, known in series.gating.items()}
    shift = None if at is None else series.shift(cropped, plateaus[at:])
    found = SteadyState(
        pass_size=size,
        passes=len(series.parts),
        cropped=cropped,
        window=window,
        status="insufficient_passes",
        verdict="not found",
        states={name: STATES[direction] for name, direction in directions.items()},
        shift=shift,
    )
    if samples.count < size:
        return replace(found, status="partial_dataset")
    if window is None:
        return found
    enough = window.span_s >= max(minimum_s, window.needed_s)
    verdict = "STEADY STATE"
    if shift is not None:
        verdict = "anomaly"
    elif "up" in directions.values():
        verdict = "drifting_up"
    elif "down" in directions.values():
        verdict = "drifting_down"
    return replace(found, status="windowable" if enough else "insufficient_duration", verdict=verdict)


class _Series:
    """A point's super-passes and the percentiles of each, NaN where it has none."""

    def __init__(self, samples: Samples, size: int) -> None:
        self.samples = samples
        self.size = size
        self.parts = [samples.part(at, at + size) for at in range(0, samples.count, size)]
        self.gating = {
            name: np.array([_or_nan(lower_percentile(one.tpot_ms, share)) for one in self.parts])
            for name, share in GATING.items()
        }

    def ramp(self) -> int:
        """Return how many super-passes of the beginning to leave out: at least one, at most half."""
        known = self.gating["tpot_p50"]
        known = known[~np.isnan(known)]
        if known.size < VALUES_MIN:
            return 1
        level = float(np.median(known[known.size // 2 :]))
        off = np.abs(known - level) > CHANGE_MIN * level
        most = max(1, int(known.size * CROPPED_MAX))
        return max(1, min(most, int(off.argmin()) if not off.all() else most))

    def plateaus(self, begin: int) -> list[tuple[int, int]]:
        """Return the longest windows that stay steady as they grow from the left, one after another."""
        found: list[tuple[int, int]] = []
        last = len(self.parts)
        while begin <= last - VALUES_MIN:
            end = begin + VALUES_MIN - 1
            while end < last and self._steady(begin, end + 1):
                end += 1
            if end - begin >= VALUES_MIN:
                found.append((begin, end))
                begin = end
            else:
                begin += 1
        return found

    def _steady(self, first: int, end: int) -> bool:
        for known in self.gating.values():
            values = known[first:end]
            if np.isnan(values).any() or variation(values) > VARIATION_MAX:
                return False
            if abs(relative_change(values)) >= CHANGE_MIN and trend(values) != "flat":
                return False
        return True

    def window(self, first: int, end: int, floor_s: float) -> SteadyWindow:
        """Return a plateau with the time that it needs: of so many super-passes as the mean of TPOT p50 takes to be known within
        5%, where they are more than a trend needs; of five long answers; and `floor_s`."""
        samples = self.samples.part(first * self.size, end * self.size)
        spread = variation(self.gating["tpot_p50"][first:end])
        passes = math.ceil((1.96 * spread / PRECISION) ** 2)
        pass_s = float(np.median([one.issue_s for one in self.parts[first:end]]))
        answer_s = (lower_percentile(samples.e2e_ms, 0.90) or 0.0) / 1000
        needed = max(passes * pass_s if passes > VALUES_MIN else 0.0, LATENCIES * answer_s, floor_s)
        return SteadyWindow(first=first, end=end, samples=samples, span_s=samples.issue_s, needed_s=needed)

    def shift(self, cropped: int, plateaus: Sequence[tuple[int, int]]) -> float | None:
        """Return by which share TPOT is higher in the first later plateau that is on another level than the first one here; None
        without such a plateau or a step that is certain."""
        own, *later = [self._mean(first, end) for first, end in plateaus]
        means = np.array([self._mean(at, at + 1) for at in range(cropped, len(self.parts))])
        changes = [mean / own - 1 for mean in later if abs(mean / own - 1) > CHANGE_MIN]
        return changes[0] if changes and level_step(np.nan_to_num(means)).p < ALPHA else None

    def _mean(self, first: int, end: int) -> float:
        values = self.samples.tpot_ms[first * self.size : end * self.size]
        known = values[~np.isnan(values)]
        return float(known.mean()) if known.size else math.nan


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
