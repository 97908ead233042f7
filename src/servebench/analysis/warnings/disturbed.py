"""The checks of whether the machine was free for load and engine, whether a point stayed the same while it was measured, and what
speaks for a cause of a change."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from servebench.analysis.disturbance import Disturbance, Taker
from servebench.analysis.drift import Drift
from servebench.analysis.evidence import PointEvidence
from servebench.analysis.warnings import catalog
from servebench.analysis.warnings.bounds import DISTURBED_SHARE_MAX, disturbed_share
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt
from servebench.contracts.telemetry import CLIENT_ONLY, Reading
from servebench.measure.in_flight import in_flight_at
from servebench.util.figures import short_number, short_percent
from servebench.util.stretches import expanded, length, merged
from servebench.util.units import NS_PER_S

NAMED_MAX = 4
KEPT_UP_MIN = 0.95
"""If more of the arrivals stay in flight, the queue grows by what a search for the highest rate does not accept either."""
QUEUE_SD_MIN = 3.0
"""Random arrivals alone fill the queue of a short point: it must grow by more than this many roots of the number of requests."""
CAUSE_MIN = 0.05
"""A reading that changed by less explains no such change."""
MOMENTS = 50
DISTURBED_MIN = 0.1
"""If others took the machine for so much more of the time before a change, or after it, that is its cause."""
TITLES = {"throughput": ("output throughput", "tok/s"), "itl": ("ITL", "ms"), "ttft": ("TTFT", "ms")}


def machine_busy(point: PointEvidence) -> Doubt | None:
    """Warn about disturbances inside the window whose time counts, or which few requests escape. If others took the machine for
    more than a small part of what counts, the point of a real engine is void: one late thread can stop all, so nobody knows how
    much slower it was."""
    few = point.disturbed_latencies
    counted = _inside(point) if few else counted_disturbances(point)
    if not counted or point.row.disturbed_s is None:
        return None
    seconds = point.row.disturbed_s
    total = sum(one.amount for one in counted)
    mean = f", on average by {total / seconds:.1f} cores" if total and seconds else ""
    message = f"{words_of(point, counted)}{_where(point)}; {short_number(seconds)} s of the window are disturbed{mean}"
    if few:
        message += f", and only {point.row.e2e_ms_n or 0} requests ran outside of that: throughput is that of the rest"
    taken = point.row.disturbed_by is not None and disturbed_share(point.row) > DISTURBED_SHARE_MAX and not few
    return catalog.MACHINE_BUSY.issue(message, void=taken and not point.emulated)


def taker_of(rows: Iterable[PointRow]) -> Taker | None:
    """Return who took most of the machine in those of these points that are void for that; None where none is."""
    return _largest_taker(row for row in rows if row.verdict == "void" and catalog.MACHINE_BUSY.code in row.doubts)


def shared_with(rows: Iterable[PointRow]) -> Taker | None:
    """Return who took most of the machine in those of these points that are not void, although others took it for more than a
    small part; None where that is so in none."""
    shared = (row for row in rows if row.verdict != "void" and disturbed_share(row) > DISTURBED_SHARE_MAX)
    return _largest_taker(shared)


def _largest_taker(rows: Iterable[PointRow]) -> Taker | None:
    known = [Taker(**json.loads(row.disturbed_by)) for row in rows if row.disturbed_by is not None]
    return max(known, key=lambda one: one.seconds, default=None)


def machine_shared(point: PointEvidence) -> Doubt | None:
    """Report disturbances whose time is left out."""
    left_out_ns = point.disturbed_out_ns
    if not left_out_ns:
        return None
    gone = [one for one in _inside(point) if not one.inherent]
    text = (
        f"{words_of(point, gone)}{_where(point)}; {short_number(left_out_ns / NS_PER_S)} s of the window are left out"
    )
    return catalog.MACHINE_SHARED.issue(text)


def counted_disturbances(point: PointEvidence) -> list[Disturbance]:
    """Return the disturbances inside the window that were not left out."""
    return [one for one in _inside(point) if one.inherent or not point.disturbed_out_ns]


def words_of(point: PointEvidence, disturbances: Sequence[Disturbance]) -> str:
    """Return who took what when, the largest disturbances first."""
    listed = sorted(disturbances, key=lambda one: (-one.amount, one.start_ns))
    more = f"; and {len(listed) - NAMED_MAX} more" if len(listed) > NAMED_MAX else ""
    return "; ".join(one.words(point.began_ns) for one in listed[:NAMED_MAX]) + more


def _inside(point: PointEvidence) -> list[Disturbance]:
    start, end = point.row.window_ns or (0, 0)
    return [one for one in point.disturbances if one.start_ns < end and one.end_ns > start]


def _where(point: PointEvidence) -> str:
    remote = any(one.name == "machine_cores" and one.labels == CLIENT_ONLY for one in point.readings)
    return " (on the client's machine: the engine's is another)" if remote else ""


class Gauge(NamedTuple):
    """A reading that may explain a change. `slows`: whether an engine is slower when it rises."""

    name: str
    title: str
    slows: bool
    remedy: str


GAUGES = (
    Gauge("gpu_sm_clock_mhz", "the GPU's clock (MHz)", slows=False, remedy="fix the GPU's clock, or cool it"),
    Gauge("kv_cache_usage", "the KV cache's use", slows=True, remedy="measure until the cache's use is level"),
    Gauge("requests_running", "the engine's running requests", slows=True, remedy="measure until the load is level"),
)


def not_stationary(point: PointEvidence) -> Doubt | None:
    """Warn when a metric changed for good in the window, or when an open loop's queue grew."""
    shown = {name: drift for name, drift in point.drifts.items() if drift.certain}
    parts = [_changed(name, drift, point.row) for name, drift in shown.items()]
    kept_up = point.row.kept_up
    grown_min = max(1 - KEPT_UP_MIN, QUEUE_SD_MIN / max(len(point.measured), 1) ** 0.5)
    if kept_up is not None and 1 - kept_up > grown_min:
        parts.append(f"the queue grew: {short_percent(1 - kept_up)} of the arrivals stayed in flight or failed")
        remedy = "lower load.rate: the engine does not keep up, and latencies grow with the length of the point"
        return catalog.NOT_STATIONARY.issue("; ".join(parts), remedy=remedy)
    if not shown:
        return None
    name = min(shown, key=lambda one: shown[one].p)
    causes = list(_causes(point, name, shown[name]))
    cause = " and ".join(text for text, _ in causes) if causes else "cause not known"
    remedies = dict.fromkeys(remedy for _, remedy in causes)
    return catalog.NOT_STATIONARY.issue(f"{'; '.join(parts)}; {cause}", remedy="; ".join(remedies) or None)


def _changed(name: str, drift: Drift, row: PointRow) -> str:
    title, unit = TITLES[name]
    start, end_ns = row.window_ns or (0, 0)
    begin, end = (f"{short_number((_moment(row, share) - start) / NS_PER_S)} s" for share in (drift.begin, drift.end))
    when = f"at about {begin}" if drift.course == "at once" else f"between {begin} and {end}"
    return (
        f"{title} {'rose' if drift.change > 0 else 'fell'} by {short_percent(abs(drift.change))} {drift.course} {when} of a "
        f"window of {short_number((end_ns - start) / NS_PER_S)} s, "
        f"from {short_number(drift.before)} to {short_number(drift.after)} {unit}"
    )


def _moment(row: PointRow, share: float) -> int:
    """Return when so much of the window had passed, not counting what is left out (ns)."""
    start, end = row.window_ns or (0, 0)
    # a float cannot hold such a moment to the nanosecond
    return round(expanded(start + round(share * (end - start - length(row.left_out))), row.left_out))


def _causes(point: PointEvidence, name: str, drift: Drift) -> Iterator[tuple[str, str]]:
    """What speaks for a cause of a change, and what to do about it; nothing without evidence."""
    slower = (drift.change > 0) != (name == "throughput")
    window = point.row.window_ns
    if window is None:
        return
    # before and after a change; where it has no level part, the halves of its time
    middle = (drift.begin + drift.end) / 2
    ends = drift.begin or middle, drift.end if drift.end < 1 else middle
    cut_ns = [_moment(point.row, share) for share in ends]
    spans = (window[0], cut_ns[0]), (cut_ns[1], window[1])
    for gauge in GAUGES:
        values = [_mean(point.readings, gauge.name, *span) for span in spans]
        if _explains(values, slower=slower == gauge.slows):
            yield f"{gauge.title} went from {short_number(values[0])} to {short_number(values[1])}", gauge.remedy
    culprits = _disturbers(point, spans, slower=slower)
    if culprits:
        yield words_of(point, culprits), catalog.MACHINE_BUSY.remedy
    cores = [_cores(point.readings, *span) for span in spans]
    if slower and not culprits and _explains(cores, slower=False):
        text = f"the engine had {short_number(cores[1])} CPU cores after {short_number(cores[0])}"
        yield text, "look for other processes on the engine's machine (top), and measure again without them"
    flying = [_in_flight(point, *span) for span in spans]
    if point.row.rate is not None and _explains(flying, slower=slower):
        text = f"requests in flight went from {short_number(flying[0])} to {short_number(flying[1])}"
        yield text, "measure longer (load.duration_s), so that the arrivals even out"
    if not slower and drift.course == "early" and not culprits:
        warmup_s = math.ceil(point.settings.load.warmup_s + (cut_ns[1] - window[0]) / NS_PER_S)
        yield "it was level from then on, as after a warm-up", f"exclude the beginning: load.warmup_s={warmup_s}"


def _disturbers(point: PointEvidence, spans: Sequence[tuple[int, int]], *, slower: bool) -> list[Disturbance]:
    """Return the disturbances that count and took more of the time on the slower side of a change than on the other."""
    counted = counted_disturbances(point)
    before, after = (
        length(merged([(one.start_ns, one.end_ns) for one in counted], *span)) / max(span[1] - span[0], 1)
        for span in spans
    )
    at = spans[1] if slower else spans[0]
    grew = after - before if slower else before - after
    return [one for one in counted if one.start_ns < at[1] and one.end_ns > at[0]] if grew >= DISTURBED_MIN else []


def _explains(values: Sequence[float | None], *, slower: bool) -> bool:
    """Whether a value rose (`slower`) or fell by CAUSE_MIN or more."""
    before, after = values
    if before is None or after is None:
        return False
    return (after - before if slower else before - after) >= CAUSE_MIN * max(abs(before), abs(after)) > 0


def _mean(readings: Sequence[Reading], name: str, start_ns: int, end_ns: int) -> float | None:
    """Return the mean of a gauge, over all its lines."""
    values = [one.value for one in readings if one.name == name and start_ns <= one.t_ns <= end_ns]
    return float(np.mean(values)) if values else None


def _cores(readings: Sequence[Reading], start_ns: int, end_ns: int) -> float | None:
    seen = [(one.t_ns, one.value) for one in readings if one.name == "engine_cpu_s" and start_ns <= one.t_ns <= end_ns]
    if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
        return None
    return (seen[-1][1] - seen[0][1]) / ((seen[-1][0] - seen[0][0]) / NS_PER_S)


def _in_flight(point: PointEvidence, start_ns: int, end_ns: int) -> float | None:
    pairs = [(r.sent_ns, r.ended_ns) for r in (*point.measured, *point.fillers) if r.sent_ns is not None]
    if not pairs or end_ns <= start_ns:
        return None
    spans = np.array(pairs, dtype=np.int64)
    return float(in_flight_at(np.linspace(start_ns, end_ns, MOMENTS), spans[:, 0], spans[:, 1]).mean())
