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

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import get_args

import orjson

from servebench.contracts.exchange import WireOutcome

META, SENT, READS, USER, END = range(5)
HEAD = struct.Struct("<BII")
STAMPS = struct.Struct("<qqqq")
TIMESPEC = struct.Struct("<qq")
COUNT = struct.Struct("<I")
CLOSE = struct.Struct("<qB")
OUTCOMES: tuple[WireOutcome, ...] = get_args(WireOutcome)
OUTCOME_CODE = {outcome: code for code, outcome in enumerate(OUTCOMES)}
ERROR_BYTES_MAX = 2000


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
