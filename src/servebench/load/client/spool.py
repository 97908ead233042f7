"""The spool: an append-only log of what the connections saw, so that a `kill -9` keeps every finished request.

A file is a sequence of frames, little-endian: kind (u8), index of the request in the plan (u32), length (u32), payload.

    META  once, first: JSON {"requests": [[request_id, session_id], ...]}
    SENT  scheduled_ns, connect_started_ns, connected_ns, sent_ns (i64 each; 0 for "did not happen")
    READS some reads of one request: count (u32), length of each (u32 each), the kernel's timespec of each (i64 seconds,
          i64 nanoseconds), then their bytes
    USER  the same with stamps taken in user space
    END   ended_ns (i64), outcome (u8), then an error as UTF-8

Stamps stay as the kernel gave them and bytes stay unparsed: both can wait until the load is over.
A second SENT for an index means that the request was sent again on a new connection; what came before does not count.
"""

import mmap
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from operator import add, mul
from pathlib import Path
from typing import BinaryIO, get_args

import orjson

from servebench.contracts.exchange import Exchange, Reads, WireOutcome
from servebench.load.client.connection import TIMESPEC, ClientConnection
from servebench.util.errors import StoreError, reason_of
from servebench.util.units import NS_PER_S

META, SENT, READS, USER, END = range(5)
HEAD = struct.Struct("<BII")
STAMPS = struct.Struct("<qqqq")
COUNT = struct.Struct("<I")
CLOSE = struct.Struct("<qB")
OUTCOMES: tuple[WireOutcome, ...] = get_args(WireOutcome)
OUTCOME_CODE = {outcome: code for code, outcome in enumerate(OUTCOMES)}
ERROR_BYTES_MAX = 2000
LENGTH_MIN = {SENT: STAMPS.size, READS: COUNT.size, USER: COUNT.size, END: CLOSE.size}
"""The shortest payload of each kind of frame after the first; other kinds are invalid."""
RELEASE_BYTES = 8 << 20
"""After this many bytes the pages read so far are released: the file may be larger than memory."""
NOT_ENDED = "the client ended before the request did"


def meta_frame(requests: Sequence[tuple[str, str | None]]) -> bytes:
    """Return the first frame: the request id and session id of each index."""
    payload = orjson.dumps({"requests": requests})
    return HEAD.pack(META, 0, len(payload)) + payload


def sent_frame(index: int, scheduled_ns: int, connect_started_ns: int, connected_ns: int, sent_ns: int) -> bytes:
    """Return the frame of a sent request. Stamps are CLOCK_REALTIME nanoseconds, 0 where there is none."""
    return HEAD.pack(SENT, index, STAMPS.size) + STAMPS.pack(scheduled_ns, connect_started_ns, connected_ns, sent_ns)


def reads_frame(index: int, stamps: Sequence[bytes], parts: Sequence[bytes], *, user: bool = False) -> bytes:
    """Return the frame of some reads of a request: the packed timespec and the bytes of each."""
    lengths = array("I", map(len, parts))
    if sys.byteorder == "big":
        lengths.byteswap()
    payload = b"".join((COUNT.pack(len(parts)), lengths.tobytes(), *stamps, *parts))
    return HEAD.pack(USER if user else READS, index, len(payload)) + payload


def end_frame(index: int, ended_ns: int, outcome: WireOutcome, error: str = "") -> bytes:
    """Return the frame of the end of a request, whatever its outcome."""
    text = error.encode()[:ERROR_BYTES_MAX]
    return HEAD.pack(END, index, CLOSE.size + len(text)) + CLOSE.pack(ended_ns, OUTCOME_CODE[outcome]) + text


class SpoolWriter:
    """Collects frames in `buffer` and appends them to the spool. `urgent` says that the buffer must not wait any longer."""

    __slots__ = ("_file", "buffer", "urgent")

    def __init__(self, file: BinaryIO) -> None:
        """Write to an unbuffered file."""
        self._file = file
        self.buffer = bytearray()
        self.urgent = False

    def write_held(self, connection: ClientConnection) -> None:
        """Write the reads that a connection holds."""
        held = connection.held
        if held:
            parts = held[1::2]
            self.buffer += reads_frame(connection.index, held[::2], parts)
            connection.received += sum(map(len, parts))
            held.clear()

    def write_user_read(self, connection: ClientConnection, stamp: bytes, data: bytes) -> None:
        """Write a read whose stamp was taken in user space."""
        self.buffer += reads_frame(connection.index, [stamp], [data], user=True)
        connection.received += len(data)

    def write_end(self, index: int, ended_ns: int, outcome: WireOutcome, error: str) -> None:
        """Write that a request ended."""
        self.buffer += end_frame(index, ended_ns, outcome, error)
        self.urgent = True

    def flush(self) -> None:
        """Append the buffer to the file. Raises OSError."""
        rest = memoryview(self.buffer)
        while rest:
            rest = rest[self._file.write(rest) :]
        rest.release()
        self.buffer.clear()
        self.urgent = False


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
