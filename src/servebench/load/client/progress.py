"""How far a worker is: counters in shared memory that the worker writes and the coordinator reads."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Counts:
    """How far a phase is. `completed` counts answers that ended, whatever their status; `reads` is close to events; `stalled` is
    how many workers publish nothing at present, so that their counts are old."""

    sent: int = 0
    completed: int = 0
    failed: int = 0
    in_flight: int = 0
    reads: int = 0
    stalled: int = 0


def sum_counts(counts: Iterable[Counts]) -> Counts:
    """Return the sum over all workers of a phase."""
    return Counts(*(sum(column) for column in zip(*(astuple(one) for one in counts), strict=True)))


class WorkerProgress:
    """The five counters in a shared page. A torn read is off by one update. A sixth counts the updates: a worker that hangs, or
    was stopped, makes none."""

    _FORMAT = struct.Struct("<qqqqqq")

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page
        self._written = 0

    @classmethod
    def create(cls, path: Path) -> WorkerProgress:
        """Create the file of the page. Raises OSError."""
        path.write_bytes(bytes(mmap.PAGESIZE))
        return cls.attach(str(path))

    @classmethod
    def attach(cls, path: str) -> WorkerProgress:
        """Open a page that exists. Raises OSError."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            return cls(mmap.mmap(descriptor, mmap.PAGESIZE))
        finally:
            os.close(descriptor)

    def write(self, *, sent: int, completed: int, failed: int, in_flight: int, reads: int) -> None:
        """Publish the counters."""
        self._written += 1
        self._FORMAT.pack_into(self._page, 0, sent, completed, failed, in_flight, reads, self._written)

    def read(self) -> Counts:
        """Return the counters as last published."""
        return Counts(*self._FORMAT.unpack_from(self._page, 0)[:5])

    def updates(self) -> int:
        """Return how often the counters were published."""
        return int(self._FORMAT.unpack_from(self._page, 0)[5])

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()
