"""Find the part of a point in which its load level was reached, from the records themselves, leave disturbed parts out, and say
what a point that is measured in slices shows in each of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import orjson

from servebench.contracts.exchange import PhaseReport
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.results import Record
from servebench.measure import derive
from servebench.measure.in_flight import in_flight_at, in_flight_curve, sent_and_ended
from servebench.util.arrays import Floats, Ints
from servebench.util.stretches import Spans, between, compressed, expanded, length, merged, outside, touched_sends
from servebench.util.units import NS_PER_S

FRONT_SHARE, BACK_SHARE = 1 / 2, 1 / 4
"""The largest shares of the arrivals of an open loop that are cut in front and behind: an engine that is still filling up biases
everything, one that empties only the latencies of the last answers."""
FILLING = 1.5
"""How many times the longest answer the engine of an open loop takes to fill up: answers grow longer while it does."""
KEPT_TIME_MIN = 1 / 3
"""Disturbed parts are left out if this share of the window remains: where a program in bursts disturbed real llama.cpp for
half of the time, its rate in what remained was that of a quiet machine (12 points of 4 users)."""
KEPT_SHARE_MIN = 0.5
KEPT_REQUESTS_MIN = 12
"""If this share of the requests, and so many, remain, latencies are those of the rest, too."""

Arrived = tuple[Floats, Floats | None]
"""The events inside a window in seconds from its start, without what is left out, and the tokens of each."""
KEPT_OF_SLICE_MIN = 0.5
"""A slice of which less is left says nothing."""
MEDIANS: Mapping[str, Callable[[Record], float | None]] = {
    "ttft_ms_p50": derive.ttft_ms,
    "tpot_ms_p50": derive.tpot_ms,
    "e2e_ms_p50": derive.e2e_ms,
}
"""The compared columns that are medians of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The measurement window, in CLOCK_REALTIME nanoseconds. `share` is `average_in_flight` over the level.

    If the level was never `reached`, the window is the whole point. The stretches `left_out` do not count, and no request
    that was sent in `not_counted`, which contains them.
    """

    start_ns: int
    end_ns: int
    reached: bool
    average_in_flight: float | None
    share: float | None
    left_out: Spans = ()
    not_counted: Spans = ()

    @property
    def seconds(self) -> float:
        """Length of the window in seconds, without what is left out."""
        return (self.end_ns - self.start_ns - length(self.left_out)) / NS_PER_S

    @property
    def sending_seconds(self) -> float:
        """The seconds in which the requests were sent that count."""
        return (self.end_ns - self.start_ns - length(self.not_counted)) / NS_PER_S

    def counts(self, sent_ns: int | None) -> bool:
        """Return whether a request that was sent then counts; None: it was not sent."""
        if sent_ns is None or not self.start_ns <= sent_ns <= self.end_ns:
            return False
        return not any(low <= sent_ns <= high for low, high in self.not_counted)

    def ends(self) -> tuple[int, int]:
        """Return start and end on the clock that stands still in what is left out."""
        low, high = compressed(np.array([self.start_ns, self.end_ns]), self.left_out)
        return int(low), int(high)


def steady_slices(facts: PhaseFacts, report: PhaseReport) -> list[tuple[int, int]]:
    """Return the stretches in which the load of a point in slices is steady: each slice but for its lead. Empty for an ordinary
    point."""
    return [
        (
            report.started_ns + round((opens + facts.slice_lead_s) * NS_PER_S),
            report.started_ns + round(closes * NS_PER_S),
        )
        for opens, closes in facts.slices
    ]


def pauses_of(facts: PhaseFacts, report: PhaseReport) -> list[tuple[int, int]]:
    """Return the stretches of a point in slices that do not count: all but `steady_slices`. Empty for an ordinary point."""
    steady = steady_slices(facts, report)
    return between(steady, report.started_ns, max(report.ended_ns, steady[-1][1])) if steady else []


def not_counted_sends(pauses: Spans, records: Sequence[Record]) -> list[tuple[int, int]]:
    """Return the stretches of a point in slices in which requests were sent that do not count: its `pauses`, and before each the
    time of a mean answer to a request of the steady parts.

    What is sent later ends mostly where the load already falls, and is answered sooner. What was sent before counts however
    long it took: to drop what ends after its slice would drop more long answers than short ones.
    """
    if not pauses:
        return []
    sent, ended = sent_and_ended(record for record in records if record.measured and record.outcome == "ok")
    steady = outside(sent, pauses)
    tail = round(float((ended - sent)[steady].mean())) if steady.any() else 0
    return merged([(low - tail, high) for low, high in pauses], min(low for low, _ in pauses) - tail, pauses[-1][1])


def given_up(pauses: Spans, records: Sequence[Record]) -> list[Record]:
    """Return the requests of a point in slices that had not ended long after their slice, and so were given up: what they
    streamed while the load was steady counts, as far as its tokens are known."""
    return [
        record
        for record in records
        if record.outcome == "abandoned"
        and record.output_tokens is not None
        and any(low <= record.ended_ns <= high for low, high in pauses)
    ]


def slice_values(steady: Spans, inside: Sequence[Record], window: Window, arrived: Arrived, crowded: Spans) -> str:
    """Return the column `slice_values`: what a point shows in each of its steady slices, by the requests that count and the
    tokens inside the window. The slices `crowded` have no values."""
    found: dict[str, list[float | None]] = {name: [] for name in ("output_throughput_tok_s", *MEDIANS)}
    arrival_s, weights = arrived
    sent = np.array([record.sent_ns for record in inside], dtype=np.int64)
    medians = {
        name: np.array([np.nan if (value := metric(record)) is None else value for record in inside])
        for name, metric in MEDIANS.items()
    }
    for low, high in steady:
        pieces = between(window.left_out, max(low, window.start_ns), min(high, window.end_ns))
        enough = length(pieces) >= KEPT_OF_SLICE_MIN * (high - low) and (low, high) not in crowded
        begin, end = (compressed(np.array([low, high]), window.left_out) - window.start_ns) / NS_PER_S
        within = (arrival_s > begin) & (arrival_s <= end)
        tokens = None if weights is None else float(weights[within].sum())
        rate = tokens / (length(pieces) / NS_PER_S) if enough and tokens is not None else None
        found["output_throughput_tok_s"].append(_rounded(rate))
        own = (sent >= low) & (sent <= high)
        for name, values in medians.items():
            known = values[own & ~np.isnan(values)]
            found[name].append(_rounded(float(np.median(known)) if enough and known.size else None))
    return orjson.dumps(found).decode()


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def find_window(
    records: Sequence[Record],
    concurrency: int | None,
    warmup_s: float = 0.0,
    *,
    cooldown_s: float = 0.0,
    cooldown_requests: int = 0,
    pauses: Spans = (),
) -> Window | None:
    """Return the window of a point: the time after `concurrency` requests are first in flight to when they last are.

    `warmup_s` is cut from its front; `cooldown_s` and the time from the sending of the last `cooldown_requests` on from
    its back. A request is in flight from sent to ended; warm-up records and fillers do not count. The `pauses` of a point in
    slices are left out, what follows its last slice, too, so that all slices end alike.

    Without a concurrency (a load given as a rate) the window is from the first request sent to the last one sent, less the
    time of FILLING of the longest answers in front (at most FRONT_SHARE of it) and one behind (at most BACK_SHARE): until then
    the engine is still filling up, and what is sent later ends while nothing more arrives. None when nothing was sent.
    """
    measured = [r for r in records if r.measured and r.sent_ns is not None]
    if not measured:
        return None
    sent, ended = sent_and_ended(measured)
    times, level = in_flight_curve(sent, ended)
    start, end, reached = int(times[0]), int(times[-1]), True
    if concurrency is None:
        longest = max(
            (r.ended_ns - r.sent_ns for r in measured if r.outcome == "ok" and r.sent_ns is not None), default=0
        )
        last = int(sent.max())
        front, back = round((last - start) * FRONT_SHARE), round((last - start) * BACK_SHARE)
        start, end = start + min(round(FILLING * longest), front), last - min(longest, back)
    else:
        at_level = np.flatnonzero(level >= concurrency)
        reached = at_level.size > 0
        if reached:
            # the last entry of `level` is 0, so there is always a moment at which the level is left
            start, end = int(times[at_level[0]]), int(times[at_level[-1] + 1])
            # the request that completes the opening wave waits for all of that wave: it belongs to what is before
            start += concurrency > 1
    if pauses:
        end = int(times[-1])
        start = next((low for low, _ in between(pauses, start, end)), end)
    if reached:
        if cooldown_requests:
            last = np.sort(sent)[-min(cooldown_requests, sent.size)]
            end = max(start, min(end, int(last) - 1))
        end = max(start, end - round(cooldown_s * NS_PER_S))
        start = min(int(expanded(start + round(warmup_s * NS_PER_S), merged(pauses, start, end))), end)
    left_out = merged(pauses, start, end)
    average = _average(times, level, between(left_out, start, end))
    share = average / concurrency if average is not None and concurrency is not None else None
    found = Window(start_ns=start, end_ns=end, reached=reached, average_in_flight=average, share=share)
    not_counted = merged(not_counted_sends(pauses, measured), start, end)
    return replace(found, left_out=tuple(left_out), not_counted=tuple(not_counted))


def leave_out(
    window: Window, disturbed: Spans, records: Sequence[Record], *, open_loop: bool, limited: bool = False
) -> Window:
    """Return the window without its disturbed stretches, or the window as it is where too little of it would remain. What it
    leaves out already stays left out. Where few requests remain (`few_remain`) a closed loop still has its rates, unless its
    requests are `limited` by an SLO.

    In an open loop requests pile up in a stretch: it ends when no more are in flight than usual.
    """
    sent, ended = sent_and_ended(r for r in records if r.measured)
    spans = merged(disturbed, window.start_ns, window.end_ns)
    if not spans or not sent.size:
        return window
    if open_loop:
        spans = merged(_settled(spans, sent, ended, window), window.start_ns, window.end_ns)
    times, level = in_flight_curve(sent, ended)
    touched = merged([*touched_sends(spans, sent, ended), *window.not_counted], window.start_ns, window.end_ns)
    spans = merged([*spans, *window.left_out], window.start_ns, window.end_ns)
    found = replace(window, left_out=tuple(spans), not_counted=tuple(touched))
    whole = sum(window.counts(int(one)) for one in sent)
    kept = sum(found.counts(int(one)) for one in sent)
    if found.seconds < KEPT_TIME_MIN * window.seconds or ((open_loop or limited) and few_remain(kept, whole)):
        return window
    average = _average(times, level, between(spans, window.start_ns, window.end_ns))
    share = window.share
    if share and average is not None and window.average_in_flight:
        share *= average / window.average_in_flight
    return replace(found, average_in_flight=average, share=share)


def few_remain(kept: int, whole: int) -> bool:
    """Return whether too few requests of a window are outside of what others disturbed to tell latencies by them."""
    return kept < max(KEPT_REQUESTS_MIN, KEPT_SHARE_MIN * whole)


def _settled(spans: Spans, sent: Ints, ended: Ints, window: Window) -> Spans:
    """Return stretches that last until what piled up in them is done."""
    times, level = in_flight_curve(sent, ended)
    pieces = between(spans, window.start_ns, window.end_ns)
    if not pieces:
        return spans
    usual = float(np.median(np.concatenate([in_flight_at(np.linspace(*piece, 50), sent, ended) for piece in pieces])))
    found = []
    for low, high in spans:
        calm = times[(times >= high) & (level <= usual)]
        found.append(
            (low, int(calm[0]) if calm.size and in_flight_at(np.array([high]), sent, ended)[0] > usual else high)
        )
    return found


def _average(times: Ints, level: Ints, pieces: Spans) -> float | None:
    """Return the mean number in flight over stretches of time; None without any."""
    if not pieces:
        return None
    held = sum(float(np.sum(np.diff(np.clip(times, low, high)) * level[:-1])) for low, high in pieces)
    return held / length(pieces)
