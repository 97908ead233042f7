"""The checks of whether the machine was free for load and engine."""

import json
from collections.abc import Iterable, Sequence

from servebench.analysis.disturbance import Disturbance, Taker
from servebench.analysis.evidence import PointEvidence
from servebench.analysis.warnings import catalog
from servebench.analysis.warnings.bounds import DISTURBED_SHARE_MAX, disturbed_share
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt
from servebench.contracts.telemetry import CLIENT_ONLY
from servebench.util.figures import short_number
from servebench.util.units import NS_PER_S

NAMED_MAX = 4


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
