"""The spool: an append-only log of what the wire saw, so that a kill -9 keeps every finished request.

A file is a row of frames, little-endian: kind (u8), index of the request in the plan (u32), length (u32), payload.

    META  once, first: JSON {"requests": [[request_id, session_id], ...]}
    SENT  scheduled_ns, connect_started_ns, connected_ns, sent_ns (i64 each; 0 for "did not happen")
    READS some reads of one request: how many (u32), how long each is (u32 each), the kernel's timespec of each (i64 seconds,
          i64 nanoseconds, as it gave them), then their bytes
    USER  the same with stamps taken in user space
    END   ended_ns (i64), outcome (u8), then an error as UTF-8

Stamps stay as the kernel gave them and bytes stay unparsed: both can wait until the load is over.
A second SENT for an index means that the request was sent again on a new connection; what came before is void.
"""

from __future__ import annotations

import mmap
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from operator import add, mul
from pathlib import Path
from typing import get_args

import orjson

from servebench.contracts.exchange import Exchange, Reads, WireOutcome
from servebench.util.errors import StoreError
from servebench.util.units import NS_PER_S

META, SENT, READS, USER, END = range(5)
HEAD = struct.Struct("<BII")
STAMPS = struct.Struct("<qqqq")
TIMESPEC = struct.Struct("<qq")
COUNT = struct.Struct("<I")
CLOSE = struct.Struct("<qB")
OUTCOMES: tuple[WireOutcome, ...] = get_args(WireOutcome)
OUTCOME_CODE = {outcome: code for code, outcome in enumerate(OUTCOMES)}

LENGTH_MIN = {SENT: STAMPS.size, READS: COUNT.size, USER: COUNT.size, END: CLOSE.size}
"""Of each kind of frame that may follow the first; a frame of another kind is none."""

RELEASE_BYTES = 8 << 20
"""After so much of a spool was read, its pages are given back: the file may be larger than the memory."""

NOT_ENDED = "the client ended before the request did"


def meta_frame(requests: Sequence[tuple[str, str | None]]) -> bytes:
    """The first frame: who the indexes of the others are."""
    payload = orjson.dumps({"requests": requests})
    return HEAD.pack(META, 0, len(payload)) + payload


def sent_frame(index: int, scheduled_ns: int, connect_started_ns: int, connected_ns: int, sent_ns: int) -> bytes:
    """A request was handed to the kernel. Stamps in CLOCK_REALTIME nanoseconds, 0 where there is none."""
    return HEAD.pack(SENT, index, STAMPS.size) + STAMPS.pack(scheduled_ns, connect_started_ns, connected_ns, sent_ns)


def reads_frame(index: int, stamps: Sequence[bytes], parts: Sequence[bytes], *, user: bool = False) -> bytes:
    """Some reads of a request: each one's timespec, as the kernel packs it (or `user_stamp` does), and its bytes."""
    lengths = array("I", map(len, parts))
    if sys.byteorder == "big":
        lengths.byteswap()
    payload = b"".join((COUNT.pack(len(parts)), lengths.tobytes(), *stamps, *parts))
    return HEAD.pack(USER if user else READS, index, len(payload)) + payload


def end_frame(index: int, ended_ns: int, outcome: WireOutcome, error: str = "") -> bytes:
    """A request ended, well or not."""
    text = error.encode()[:2000]
    return HEAD.pack(END, index, CLOSE.size + len(text)) + CLOSE.pack(ended_ns, OUTCOME_CODE[outcome]) + text


class _Open:
    """A request that was sent and has not ended, while the spool is read: where its reads are, not what is in them.

    Thousands of them are open at once, and what they read would be most of a client's memory.
    """

    __slots__ = ("frames", "stamps", "user")

    def __init__(self, stamps: tuple[int, ...]) -> None:
        self.stamps = stamps
        self.frames: list[tuple[int, int]] = []
        self.user = False

    def close(
        self,
        who: tuple[str, str | None],
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
            request_id=who[0],
            session_id=who[1],
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
    """What is in the frames of one request, whose payloads lie between these bounds."""
    stamps: list[int] = []
    bounds = [0]
    parts = []
    for start, stop in frames:
        (count,) = COUNT.unpack_from(data, start)
        told = struct.unpack_from(f"<{count}I{2 * count}q", data, start + COUNT.size)
        stamps += map(add, map(mul, told[count::2], repeat(NS_PER_S)), told[count + 1 :: 2])
        bounds += accumulate(told[:count], initial=bounds.pop())
        parts.append(data[start + COUNT.size + (COUNT.size + TIMESPEC.size) * count : stop])
    return Reads(stamps, bounds, b"".join(parts))


def read_spool(path: Path) -> Iterator[Exchange]:
    """The exchanges of a spool in the order in which they ended; those that never ended come last, as cancelled.

    A last frame that was cut (the client was killed while writing it) is left out, and so is all from a frame on that
    makes no sense (the disk spoiled it). Raises StoreError when the file is no spool, or cannot be read.
    """
    try:
        if path.stat().st_size == 0:
            return
        file = path.open("rb")
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    with file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield from _exchanges(data, path)


def shifted(data: bytearray, offset_ns: int) -> bytes:
    """The whole frames at the front of `data`, with `offset_ns` taken from every stamp; they are taken out of `data`.

    A spool that another machine wrote is told in this one's time so. Stamps that say "did not happen" (0) stay 0.
    """
    taken = bytearray()
    position = 0
    with memoryview(data) as view:
        for kind, index, start, stop in _frames(view):
            payload = bytearray(view[start:stop])
            if kind in (READS, USER):
                (count,) = COUNT.unpack_from(payload)
                at = COUNT.size * (1 + count)
                for place in range(at, at + TIMESPEC.size * count, TIMESPEC.size):
                    seconds, nanoseconds = TIMESPEC.unpack_from(payload, place)
                    TIMESPEC.pack_into(payload, place, *divmod(seconds * NS_PER_S + nanoseconds - offset_ns, NS_PER_S))
            elif kind == SENT:
                STAMPS.pack_into(payload, 0, *(stamp and stamp - offset_ns for stamp in STAMPS.unpack_from(payload)))
            elif kind == END:
                ended_ns, code = CLOSE.unpack_from(payload)
                CLOSE.pack_into(payload, 0, ended_ns - offset_ns, code)
            taken += HEAD.pack(kind, index, stop - start) + payload
            position = stop
    del data[:position]
    return bytes(taken)


def _frames(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    position, size = 0, len(data)
    while position + HEAD.size <= size:
        kind, index, length = HEAD.unpack_from(data, position)
        start = position + HEAD.size
        position = start + length
        if position > size:
            return
        yield kind, index, start, position


def _who(data: mmap.mmap, path: Path) -> tuple[list[tuple[str, str | None]], int]:
    """The requests that the first frame names, and where it ends. Raises StoreError when it names none."""
    size = len(data)
    kind, _, length = HEAD.unpack_from(data) if size >= HEAD.size else (META, 0, size)
    stop = HEAD.size + length
    if kind == META and stop > size:
        # killed, or out of disk, while the names were written: nothing was sent yet
        return [], size
    try:
        names = orjson.loads(data[HEAD.size : stop]) if kind == META else {}
        return [(str(name), session) for name, session in names["requests"]], stop
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} is no spool of requests: it does not begin with their names") from error


def _exchanges(data: mmap.mmap, path: Path) -> Iterator[Exchange]:
    size = len(data)
    who, position = _who(data, path)
    live: dict[int, _Open] = {}
    release_at = RELEASE_BYTES
    while position + HEAD.size <= size:
        kind, index, length = HEAD.unpack_from(data, position)
        start = position + HEAD.size
        position = start + length
        if position > size or index >= len(who) or length < LENGTH_MIN.get(kind, size):
            break
        if kind == SENT:
            live[index] = _Open(STAMPS.unpack_from(data, start))
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
            yield live.pop(index).close(who[index], ended_ns, OUTCOMES[code], error, data)
        if position > release_at and hasattr(data, "madvise"):
            data.madvise(mmap.MADV_DONTNEED)
            release_at = position + RELEASE_BYTES
    for index, request in live.items():
        yield request.close(who[index], None, "cancelled", NOT_ENDED, data)
