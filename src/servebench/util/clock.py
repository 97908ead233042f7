"""Time as integer nanoseconds. Stored stamps are CLOCK_REALTIME, because the kernel's receive stamps are."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from servebench.util.units import NS_PER_MS, NS_PER_S

STEP_TOLERANCE_NS = NS_PER_MS
"""CLOCK_REALTIME and CLOCK_MONOTONIC are slewed alike by NTP, so their difference moves only when the wall clock is
stepped. Reading the pair takes microseconds; a millisecond is far above that noise and under what matters."""


@dataclass(frozen=True)
class Anchor:
    """The two clocks read together. `realtime_ns` since the epoch, `monotonic_ns` since an arbitrary start."""

    realtime_ns: int
    monotonic_ns: int

    @property
    def offset_ns(self) -> int:
        """Return what to add to a monotonic stamp to get a realtime one."""
        return self.realtime_ns - self.monotonic_ns


def take_anchor() -> Anchor:
    """Read both clocks as closely together as user space can: the tightest of five tries."""
    tries = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(5)]
    before, realtime, after = min(tries, key=lambda one: one[2] - one[0])
    return Anchor(realtime, (before + after) // 2)


def step_ns(start: Anchor, end: Anchor) -> int:
    """Return how far the wall clock was stepped between two anchors, in nanoseconds; 0 when within the tolerance."""
    moved = end.offset_ns - start.offset_ns
    return moved if abs(moved) > STEP_TOLERANCE_NS else 0


def utc_time(stamp_ns: int) -> str:
    """Return a stamp since the epoch as UTC text with milliseconds, such as `2026-01-31T12:00:00.000+00:00`."""
    return datetime.fromtimestamp(stamp_ns / NS_PER_S, UTC).isoformat(timespec="milliseconds")
