"""Find the stretches of a point in which the machine was not its own, and who took it. Pure.

The samples of `telemetry.machine` say how many cores each process used since the sample before. Others disturb a point while they
and the hypervisor take more than TAKEN_SHARE of the cores that load and engine need, and these do not have room beside them:
half of the logical CPUs may be the second threads of cores, which slow down their twins. What lasts less than LASTS_S is the
normal life of a machine. A process that does so by itself is named with its own times; for the rest the sum counts.

An edge lies inside a sample: where it must be for the cores that the sample shows, if the rest of the stretch is typical.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Record
from servebench.contracts.telemetry import Reading
from servebench.util.arrays import Floats
from servebench.util.groups import grouped
from servebench.util.stretches import Spans, between, length, merged
from servebench.util.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

TAKEN_SHARE = 0.15
"""The share of the needed cores that others may take: less is within the usual width of an interval."""
TAKEN_CORES_MIN = 0.2
"""Fewer cores are the daemons of any machine."""
ROOM = 0.5
"""Others do not disturb as long as all together use less than this share of the machine's CPUs."""
NEEDED_QUANTILE = 0.75
"""The engine gets less while others take it: what it needs shows in its better samples."""
LASTS_S = 0.9
TAKEN_CORE_S = 0.5
"""What is shorter, or takes fewer core seconds, is not a stretch."""
TOGETHER_LASTS_S = 2.0
"""The same (with twice the core seconds) for many that nobody could name: the bursts of two daemons may meet. A slice of a few
seconds loses more by these than by being left out."""
SLICE_SHARE_MAX = 0.05
"""A slice of a point of which others took a larger share of the needed cores is not compared with that of another engine: with
these the ratios of equal llama.cpp scattered by 9.2% (185 slices of 4 s on 2 cores), without them (5%) by 6.9%."""
AMONG_SHARE = 1 / 3
"""Among others who take too much together, one is named from this share of the limits on."""
AGAIN_S, AGAIN_SHARE = 6.0, 0.1
"""What takes so much of the needed cores in short bursts, on average over so long, disturbs all of that time."""
GAP_S = 1.5
"""Stretches of one cause that are nearer are one."""
GOES_ON = 0.6
"""A stretch goes on while this share of what is typical of it is taken."""
TYPICAL_QUANTILE = 0.75
WHOLE_SHARE = 0.9
"""A first or last sample that is so full says that the edge is in the one beyond."""
GPU_SHARE_MIN = 0.05
"""The share of a GPU's time that others may use."""
NAMED_MAX = 3
LISTED_MAX = 20
"""So many of the largest are in the row of a point."""
GPU_SOURCES = ("gpu", "amd_gpu")
SOURCES = ("machine", *GPU_SOURCES)
"""The telemetry that shows others on the machine."""
READING = ("t_ns", "source", "name", "raw_name", "labels", "value")
CAUSES = {
    "foreign_cores": "small processes",
    "unseen_cores": "processes that came and went or cannot be seen",
    "steal_cores": "other virtual machines (steal time)",
}

Cause = tuple[str, int | None]
"""A program and its pid, if it is one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """A stretch (CLOCK_REALTIME ns) and its cause: `who`, with its `pid` if it is one process, `took` so much.

    `inherent` ones come from the load itself, such as heat: their time is not left out, because the machine is like that.
    """

    start_ns: int
    end_ns: int
    who: str
    took: str
    pid: int | None = None
    amount: float = 0.0
    """The core seconds that it took."""
    inherent: bool = False

    def words(self, origin_ns: int) -> str:
        """Return who took what from when to when, in seconds from a moment."""
        name = self.who if self.pid is None else f"{self.who}, pid {self.pid},"
        start, end = ((moment - origin_ns) / NS_PER_S for moment in (self.start_ns, self.end_ns))
        return f"{name} {self.took} from {max(0.0, start):.3g} s to {max(0.0, end):.3g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """Who took most of the machine inside the window of a point: `took` so much at worst, for `seconds` in all."""

    who: str
    took: str
    seconds: float
    pid: int | None = None


@dataclass(frozen=True)
class _Samples:
    """Samples in order: `ends_ns` has one moment more than there are samples. One series of cores for each cause."""

    ends_ns: Floats
    cores: float
    own: Floats
    causes: Mapping[Cause, Floats]

    @property
    def seconds(self) -> Floats:
        return np.diff(self.ends_ns) / NS_PER_S


def find_disturbances(readings: Iterable[Reading], pauses: Spans = ()) -> tuple[Disturbance, ...]:
    """Return the disturbances of a point by its readings, in order of time; none where the machine was not sampled. What lasts
    LASTS_S only with the `pauses` of a point in slices is none: other engines have the machine in these."""
    listed = [one for one in readings if isfinite(one.value)]
    samples = _samples(listed)
    found = [*_of_gpus(listed)]
    if samples is not None:
        slices = between(pauses, int(samples.ends_ns[0]), int(samples.ends_ns[-1])) if pauses else ()
        if slices:
            # without what others took while another engine, which is one of them, had the load
            share = sum(_weights(samples, *one) for one in slices) / samples.seconds
            samples = replace(samples, causes={cause: taken * share for cause, taken in samples.causes.items()})
        found += _of_cores(samples, slices) + _of_heat(listed, samples)
    found = [
        one for one in found if not pauses or length(between(pauses, one.start_ns, one.end_ns)) >= LASTS_S * NS_PER_S
    ]
    return tuple(sorted(found, key=lambda one: (one.start_ns, one.end_ns)))


def crowded_slices(readings: Iterable[Reading], slices: Spans, left_out: Spans = ()) -> list[tuple[int, int]]:
    """Return those slices of a point of which others took too much outside of what is left out to compare them; none where the
    machine was not sampled."""
    samples = _samples(readings)
    if samples is None or not slices:
        return []
    needed, crowded, total = _needed(samples, slices)
    # what a sample shows of a stretch that is left out lies in that stretch
    known = crowded & ~_touched(samples, left_out)
    found = []
    for one in slices:
        kept = between(left_out, *one)
        taken = sum(float(_weights(samples, *piece) @ np.where(known, total, 0.0)) for piece in kept)
        if taken > SLICE_SHARE_MAX * needed * length(kept) / NS_PER_S:
            found.append(one)
    return found


def stored_disturbances(row: PointRow, requests: pd.DataFrame, telemetry: pd.DataFrame) -> tuple[Disturbance, ...]:
    """Return the disturbances of a stored point by its requests and telemetry, in order of time."""
    if not {"point", *READING} <= set(telemetry.columns):
        return ()
    own = telemetry[(telemetry["point"] == row.point) & telemetry["source"].isin(SOURCES)]
    readings = [Reading(**dict(zip(READING, one, strict=True))) for one in own[list(READING)].itertuples(index=False)]
    pauses: Spans = ()
    if row.slices:
        sent, ended = (requests[name].tolist() for name in ("sent_ns", "ended_ns"))
        # while a point in slices has nothing in flight, other engines have the machine
        pauses = between(list(zip(sent, ended, strict=True)), min(sent), max(ended))
    return find_disturbances(readings, pauses)


def disturbed_spans(disturbances: Iterable[Disturbance], start_ns: int, end_ns: int) -> list[tuple[int, int]]:
    """Return the stretches between two moments that may be left out, in order and apart."""
    return merged([(one.start_ns, one.end_ns) for one in disturbances if not one.inherent], start_ns, end_ns)


def first_sent_ns(records: Iterable[Record]) -> int | None:
    """Return when the first measured request was sent; None if none was."""
    return min((one.sent_ns for one in records if one.measured and one.sent_ns is not None), default=None)


def disturbance_columns(
    row: PointRow,
    disturbances: Sequence[Disturbance],
    records: Iterable[Record],
    readings: Iterable[Reading],
    pauses: Spans = (),
) -> dict[str, Any]:
    """Return the columns of a point that say who took its machine outside its pauses; nothing where that was not sampled."""
    origin_ns = first_sent_ns(records)
    if row.window_ns is None or origin_ns is None or not any(one.name == "own_cores" for one in readings):
        return {}
    start, end = row.window_ns
    inside = [one for one in disturbances if one.start_ns < end and one.end_ns > start]
    spans = [(one.start_ns, one.end_ns) for one in inside]
    most = sorted(sorted(inside, key=lambda one: -one.amount)[:LISTED_MAX], key=lambda one: one.start_ns)
    return {
        "disturbed_s": sum(length(merged(spans, *piece)) for piece in between(pauses, start, end)) / NS_PER_S,
        "disturbances": tuple(one.words(origin_ns) for one in most),
        "disturbed_by": _taker(inside, between(pauses, start, end)),
    }


def _taker(disturbances: Iterable[Disturbance], pieces: Spans) -> str | None:
    """The `Taker` in these pieces of a window, as JSON; heat and the like take nothing."""
    found = grouped((one for one in disturbances if not one.inherent), lambda one: (one.who, one.pid))
    if not found:
        return None
    (who, pid), own = max(found.items(), key=lambda item: sum(one.amount for one in item[1]))
    spans = [(one.start_ns, one.end_ns) for one in own]
    seconds = sum(length(merged(spans, *piece)) for piece in pieces) / NS_PER_S
    return json.dumps({"who": who, "pid": pid, "took": max(own, key=lambda one: one.amount).took, "seconds": seconds})


def _samples(listed: Iterable[Reading]) -> _Samples | None:
    """Return the samples in which all cores were seen; the first of a point is about the time before it."""
    readings = [one for one in listed if isfinite(one.value) and one.source == "machine"]
    moments = sorted({one.t_ns for one in readings if one.name == "machine_cores"})
    places = {moment: place for place, moment in enumerate(moments[1:])}
    if not places:
        return None
    own = np.zeros(len(places))
    cores = max(one.value for one in readings if one.name == "machine_cores")
    causes: dict[Cause, Floats] = {}
    for one in readings:
        if one.t_ns not in places or one.name is None:
            continue
        if one.name == "own_cores":
            own[places[one.t_ns]] = one.value
        if one.name in CAUSES:
            cause = _process_of(one.labels) if one.name == "foreign_cores" and one.labels else (CAUSES[one.name], None)
            causes.setdefault(cause, np.zeros(len(places)))[places[one.t_ns]] += one.value
    return _Samples(np.array(moments, dtype=np.float64), cores, own, causes)


def _process_of(labels: str) -> Cause:
    """Return program and pid of the labels `pid="1",program="x"`."""
    pid, _, program = labels.rpartition('pid="')[2].partition('",program="')
    return program.removesuffix('"'), int(pid) if pid.isdecimal() else None


def _of_cores(samples: _Samples, slices: Spans) -> list[Disturbance]:
    needed, crowded, total = _needed(samples, slices)
    limit = max(TAKEN_SHARE * needed, TAKEN_CORES_MIN)
    whole = int(samples.ends_ns[0]), int(samples.ends_ns[-1])
    lasts_s, times = (LASTS_S, 1.0) if slices else (TOGETHER_LASTS_S, 2.0)
    together = [
        span for span in _stretches(samples, total, limit, crowded, times) if span[1] - span[0] >= lasts_s * NS_PER_S
    ]
    among = crowded & _touched(samples, together)
    found: list[Disturbance] = []
    for cause, taken in samples.causes.items():
        alone = _stretches(samples, taken, limit, crowded)
        spans = [*alone, *_stretches(samples, taken, AMONG_SHARE * limit, among, AMONG_SHARE)]
        rest = np.where(crowded, taken, 0.0), ~_touched(samples, alone)
        spans += _recurring(samples, *rest, max(AGAIN_SHARE * needed, TAKEN_CORES_MIN))
        found += [_taken(samples, span, cause, taken) for span in merged(spans, *whole)]
    named = merged([(one.start_ns, one.end_ns) for one in found], *whole)
    for low, high in together:
        found += [
            _taken(samples, span, (_together(samples, *span), None), total)
            for span in between(named, low, high)
            if span[1] - span[0] >= LASTS_S * NS_PER_S
        ]
    return found


def _needed(samples: _Samples, slices: Spans) -> tuple[float, NDArray[np.bool_], Floats]:
    """Return how many cores load and engine need, by the samples in `slices` if there are some; in which samples others would
    have no room beside that, and what they took in each."""
    total = np.sum(list(samples.causes.values()), axis=0) if samples.causes else np.zeros(samples.own.size)
    loaded = _touched(samples, slices) if slices else np.ones(samples.own.size, dtype=np.bool_)
    needed = float(np.quantile(samples.own[loaded] if loaded.any() else samples.own, NEEDED_QUANTILE))
    return needed, np.maximum(samples.own, needed) + total > ROOM * samples.cores, total


def _taken(samples: _Samples, span: tuple[int, int], cause: Cause, taken: Floats) -> Disturbance:
    (low, high), (who, pid) = span, cause
    share = _weights(samples, low, high)
    mean = float(taken @ share / max(share.sum(), 1e-9))
    took = f"took {mean:.1f} of {samples.cores:g} cores"
    return Disturbance(start_ns=low, end_ns=high, who=who, pid=pid, took=took, amount=float(taken @ share))


def _weights(samples: _Samples, low: int, high: int) -> Floats:
    starts, ends = samples.ends_ns[:-1], samples.ends_ns[1:]
    inside: Floats = np.clip(np.minimum(ends, high) - np.maximum(starts, low), 0.0, None) / NS_PER_S
    return inside


def _touched(samples: _Samples, spans: Spans) -> NDArray[np.bool_]:
    """Which samples have a part in these spans."""
    found = np.zeros(samples.own.size, dtype=np.bool_)
    for span in spans:
        found |= _weights(samples, *span) > 0
    return found


def _together(samples: _Samples, low: int, high: int) -> str:
    """Return the names of the programs that took most of a stretch, each of them too little to be named alone."""
    share = _weights(samples, low, high)
    by_program = grouped(samples.causes.items(), lambda one: one[0][0])
    amounts = {who: sum(float(taken @ share) for _, taken in own) for who, own in by_program.items()}
    first = sorted((who for who in amounts if amounts[who] > 0), key=lambda who: -amounts[who])
    return f"{', '.join(first[:NAMED_MAX])}{', ...' if len(first) > NAMED_MAX else ''} together"


def _stretches(
    samples: _Samples, taken: Floats, limit: float, crowded: NDArray[np.bool_], share: float = 1.0
) -> list[tuple[int, int]]:
    """Return the stretches in which a cause takes more than the limit and this share of TAKEN_CORE_S, with their edges inside
    the samples."""
    found: list[tuple[int, int]] = []
    for first, last in _runs(taken, limit, crowded):
        run = slice(first, last + 1)
        typical = float(np.quantile(taken[run], TYPICAL_QUANTILE))
        start = _edge(samples, taken, first, typical, -1)
        end = _edge(samples, taken, last, typical, 1)
        # a burst on the border of two samples looks like half of it for twice as long
        if end - start < LASTS_S * NS_PER_S or float(taken[run] @ samples.seconds[run]) < share * TAKEN_CORE_S:
            continue
        if found and start - found[-1][1] < GAP_S * NS_PER_S:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found


def _recurring(samples: _Samples, taken: Floats, rest: NDArray[np.bool_], limit: float) -> list[tuple[int, int]]:
    """Return the stretches in which a cause takes more than the limit on average, in bursts too short to be found alone: in the
    `rest` of the samples."""
    window = np.ones(max(1, round(AGAIN_S / float(np.median(samples.seconds)))))
    mean = np.convolve(taken * rest, window, "same") / np.maximum(np.convolve(rest, window, "same"), 1.0)
    found: list[tuple[int, int]] = []
    for first, last in _runs(mean[: taken.size], limit, np.ones(taken.size, dtype=np.bool_)):
        busy = first + np.flatnonzero(taken[first : last + 1] > limit / 2)
        low, high = (int(samples.ends_ns[place]) for place in (busy.min(initial=last), busy.max(initial=first) + 1))
        if high - low >= AGAIN_S * NS_PER_S:
            found.append((low, high))
    return found


def _runs(taken: Floats, limit: float, crowded: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the first and last sample of each run above the limit. Where many compete the share of each goes up and down: a run
    goes on as long as most of what is typical of it is taken."""
    above = np.concatenate(([False], (taken > limit) & crowded, [False]))
    changes = np.flatnonzero(np.diff(above.astype(np.int8)))
    runs: list[tuple[int, int]] = []
    for first, last in zip(changes[::2].tolist(), (changes[1::2] - 1).tolist(), strict=True):
        low, high = first, last
        enough = GOES_ON * float(np.quantile(taken[first : last + 1], TYPICAL_QUANTILE))
        while low > 0 and crowded[low - 1] and taken[low - 1] >= enough:
            low -= 1
        while high + 1 < taken.size and crowded[high + 1] and taken[high + 1] >= enough:
            high += 1
        if runs and low <= runs[-1][1] + 1:
            runs[-1] = min(low, runs[-1][0]), max(high, runs[-1][1])
        else:
            runs.append((low, high))
    return runs


def _edge(samples: _Samples, taken: Floats, place: int, typical: float, way: int) -> int:
    """Return where a stretch begins (`way` -1) or ends (1) if it took `typical` up to there."""
    edges = samples.ends_ns[place : place + 2]
    full = min(1.0, float(taken[place]) / typical)
    moment = float(edges[1] - full * np.diff(edges)[0] if way < 0 else edges[0] + full * np.diff(edges)[0])
    beyond = place + way
    if full >= WHOLE_SHARE and 0 <= beyond < taken.size:
        part = min(1.0, float(taken[beyond]) / typical) * float(samples.seconds[beyond]) * NS_PER_S
        moment = float(edges[0] - part if way < 0 else edges[1] + part)
    return round(moment)


def _of_heat(readings: Sequence[Reading], samples: _Samples) -> list[Disturbance]:
    throttled = {one.t_ns for one in readings if one.name == "cpu_throttles" and one.value > 0}
    hot = np.array([float(moment in throttled) for moment in samples.ends_ns[1:]])
    return _slowed(samples, hot, "the CPU", "was slowed by its temperature")


def _slowed(samples: _Samples, slow: Floats, who: str, took: str) -> list[Disturbance]:
    found = _stretches(samples, slow, 0.0, np.ones(slow.size, dtype=np.bool_))
    return [Disturbance(start_ns=low, end_ns=high, who=who, took=took, inherent=True) for low, high in found]


def _of_gpus(readings: Sequence[Reading]) -> list[Disturbance]:
    moments = sorted({one.t_ns for one in readings if one.source in GPU_SOURCES})
    if len(moments) < 2:
        return []
    places = {moment: place for place, moment in enumerate(moments[1:])}
    series: dict[tuple[str, str], Floats] = {}
    for one in readings:
        if one.name in ("gpu_throttled", "gpu_foreign_utilization") and one.t_ns in places:
            series.setdefault((one.name, one.labels), np.zeros(len(places)))[places[one.t_ns]] = one.value
    samples = _Samples(np.array(moments, dtype=np.float64), 1.0, np.zeros(len(places)), {})
    found: list[Disturbance] = []
    # what is slowed by itself comes before what others used
    for (name, labels), used in sorted(series.items(), key=lambda item: item[0][0] != "gpu_throttled"):
        gpu = "GPU " + labels.partition('gpu="')[2].partition('"')[0]
        if name == "gpu_throttled":
            found += _slowed(samples, used, gpu, "was slowed by heat or power")
            continue
        who, pid = _process_of(labels)
        for low, high in _stretches(samples, used, GPU_SHARE_MIN, np.ones(len(places), dtype=np.bool_)):
            share = used @ _weights(samples, low, high) / ((high - low) / NS_PER_S)
            took = f"used {100 * share:.0f}% of {gpu}"
            found.append(Disturbance(start_ns=low, end_ns=high, who=who, pid=pid, took=took))
    return found
