"""Reads the exchanges of a finished or killed phase from its spool."""

import mmap
import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from operator import add, mul
from pathlib import Path

import orjson

from servebench.contracts.exchange import Exchange, Reads, WireOutcome
from servebench.load.client.spool import CLOSE, COUNT, END, HEAD, META, OUTCOMES, READS, SENT, STAMPS, TIMESPEC, USER
from servebench.util.errors import StoreError, reason_of
from servebench.util.units import NS_PER_S

LENGTH_MIN = {SENT: STAMPS.size, READS: COUNT.size, USER: COUNT.size, END: CLOSE.size}
"""The shortest payload of each kind of frame after the first; other kinds are invalid."""

RELEASE_BYTES = 8 << 20
"""After this many bytes the pages read so far are released: the file may be larger than memory."""

NOT_ENDED = "the client ended before the request did"


def read_spool(path: Path) -> Iterator[Exchange]:
    """Yield the exchanges of a spool in the order in which they ended; those without an end come last, as cancelled.

    A last frame that was cut (the client was killed while writing it) is ignored, and so is everything from the first
    invalid frame on (the disk corrupted it). Raises StoreError when the file is not a spool or cannot be read.
    """
    try:
        if path.stat().st_size == 0:
            return
        file = path.open("rb")
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {reason_of(error)}") from error
    with file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield from _exchanges(data, path)


class _OpenExchange:
    """A request without an end so far. It keeps the places of its reads and not their bytes: thousands of requests are
    open at once, and their bytes would be most of the client's memory."""

    __slots__ = ("frames", "stamps", "user")

    def __init__(self, stamps: tuple[int, ...]) -> None:
        self.stamps = stamps
        self.frames: list[tuple[int, int]] = []
        self.user = False

    def close(
        self,
        names: tuple[str, str | None],
        ended_ns: int | None,
        outcome: WireOutcome,
        error: str | None,
        data: mmap.mmap,
    ) -> Exchange:
        scheduled, connect_started, connected, sent = self.stamps
        reads = _reads(data, self.frames)
        if ended_ns is None:
            ended_ns = reads.stamps[-1] if reads else sent
        return Exchange(
            request_id=names[0],
            session_id=names[1],
            scheduled_ns=scheduled,
            connect_started_ns=connect_started or None,
            connected_ns=connected or None,
            sent_ns=sent or None,
            ended_ns=ended_ns,
            outcome=outcome,
            error=error,
            stamp_source="user" if self.user else "kernel",
            reads=reads,
        )


def _reads(data: mmap.mmap, frames: Sequence[tuple[int, int]]) -> Reads:
    """Return the reads in the frames of one request, whose payloads lie between these bounds."""
    stamps: list[int] = []
    bounds = [0]
    parts = []
    for start, stop in frames:
        (count,) = COUNT.unpack_from(data, start)
        fields = struct.unpack_from(f"<{count}I{2 * count}q", data, start + COUNT.size)
        stamps += map(add, map(mul, fields[count::2], repeat(NS_PER_S)), fields[count + 1 :: 2])
        bounds += accumulate(fields[:count], initial=bounds.pop())
        parts.append(data[start + COUNT.size + (COUNT.size + TIMESPEC.size) * count : stop])
    return Reads(stamps, bounds, b"".join(parts))


def _names(data: mmap.mmap, path: Path) -> tuple[list[tuple[str, str | None]], int]:
    """Return the ids in the first frame, and where that frame ends. Raises StoreError when it has none."""
    size = len(data)
    kind, _, length = HEAD.unpack_from(data) if size >= HEAD.size else (META, 0, size)
    stop = HEAD.size + length
    if kind == META and stop > size:
        # killed, or the disk was full, while the first frame was written: nothing was sent yet
        return [], size
    try:
        names = orjson.loads(data[HEAD.size : stop]) if kind == META else {}
        return [(str(name), session) for name, session in names["requests"]], stop
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} is not a spool: it does not begin with the ids of its requests") from error


def _exchanges(data: mmap.mmap, path: Path) -> Iterator[Exchange]:
    size = len(data)
    names, position = _names(data, path)
    live: dict[int, _OpenExchange] = {}
    release_at = RELEASE_BYTES
    while position + HEAD.size <= size:
        kind, index, length = HEAD.unpack_from(data, position)
        start = position + HEAD.size
        position = start + length
        if position > size or index >= len(names) or length < LENGTH_MIN.get(kind, size):
            break
        if kind == SENT:
            live[index] = _OpenExchange(STAMPS.unpack_from(data, start))
        elif kind in (READS, USER):
            (count,) = COUNT.unpack_from(data, start)
            if index not in live or COUNT.size + (COUNT.size + TIMESPEC.size) * count > length:
                break
            live[index].frames.append((start, position))
            live[index].user |= kind == USER
        elif kind == END:
            ended_ns, code = CLOSE.unpack_from(data, start)
            if index not in live or code >= len(OUTCOMES):
                break
            error = data[start + CLOSE.size : position].decode(errors="replace") or None
            yield live.pop(index).close(names[index], ended_ns, OUTCOMES[code], error, data)
        if position > release_at and hasattr(data, "madvise"):
            data.madvise(mmap.MADV_DONTNEED)
            release_at = position + RELEASE_BYTES
    for index, request in live.items():
        yield request.close(names[index], None, "cancelled", NOT_ENDED, data)
