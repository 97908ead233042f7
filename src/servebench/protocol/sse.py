"""Reads server-sent events from body bytes: leniently, on bytes, each event with the stamp of the read that ended it.

WHATWG HTML part 9.2.6, with two liberties that engines need: the last event counts without its blank line, and so does
a last line without its line end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
_KNOWN_FIELDS = (b"data", b"event", b"id", b"retry")


class SseEvent(NamedTuple):
    """One event. `stamp_ns` is of the read in which the line end of its last data line came; `read_index` numbers that
    read among those with body bytes. `event` is the name, null for an unnamed one.
    """

    stamp_ns: int
    data: bytes
    event: str | None
    read_index: int


@dataclass(slots=True)
class SseStream:
    """All events of a body. `unknown_lines` counts lines that are no field of an event (bare JSON lines, say)."""

    events: list[SseEvent] = field(default_factory=list)
    unknown_lines: int = 0


def events(pieces: Sequence[tuple[int, bytes]]) -> list[SseEvent]:
    """The events in `pieces`, (stamp, bytes) in order, at most one piece a read."""
    return parse(pieces).events


def parse(pieces: Sequence[tuple[int, bytes]]) -> SseStream:
    """The events in `pieces`, (stamp, bytes) in order, cut anywhere, and what was none. Pure; never raises."""
    stream = SseStream()
    lines = Lines(stream)
    for index, (stamp, data) in enumerate(pieces):
        lines.take(stamp, data, index)
    lines.finish()
    return stream


class Lines:
    """Puts lines and events together from pieces cut anywhere. `idle`: nothing is begun, neither line nor event."""

    __slots__ = ("_begun", "_data", "_index", "_name", "_skip_lf", "_stamp", "_stamped", "_start", "_stream", "idle")

    def __init__(self, stream: SseStream) -> None:
        self._stream = stream
        self._begun: list[bytes] = []
        self._data: list[bytes] = []
        self._name: str | None = None
        self._stamped = (0, 0)
        self._stamp = 0
        self._index = 0
        self._skip_lf = False
        self._start = True
        self.idle = True

    def take(self, stamp: int, data: bytes, index: int) -> None:
        """Take the bytes of one read; the usual one is exactly one unnamed event of one line, or a few of them."""
        if self.idle and data.startswith(b"data: ") and data.endswith(b"\n\n") and b"\r" not in data:
            whole = data[:-2].split(b"\n\n")
            if data.count(b"\n") == 2 * len(whole) and all(event.startswith(b"data: ") for event in whole):
                self._stream.events.extend([SseEvent(stamp, event[6:], None, index) for event in whole])
                return
        if data:
            self.feed(stamp, data, index)

    def feed(self, stamp: int, data: bytes, index: int) -> None:
        """Take the bytes of one read, however they are cut."""
        if self._skip_lf:
            self._skip_lf = False
            data = data.removeprefix(b"\n")
        if data:
            self._stamp, self._index = stamp, index
            self._split(data)
        self.idle = not (self._begun or self._data or self._name or self._skip_lf or self._start)

    def _split(self, data: bytes) -> None:
        if b"\n" not in data and b"\r" not in data:
            # joined only when the line ends: a long line that comes byte by byte must not cost its square
            self._begun.append(data)
            return
        if self._begun:
            self._begun.append(data)
            data = b"".join(self._begun)
            self._begun.clear()
        self._skip_lf = data.endswith(b"\r")
        for line in data.splitlines(keepends=True):
            bare = line.rstrip(b"\r\n")
            if len(bare) == len(line):
                self._begun.append(line)
            else:
                self._take(bare)

    def finish(self) -> None:
        """The body ended: what is begun counts as ended."""
        if self._begun:
            self._take(b"".join(self._begun))
            self._begun.clear()
        self._dispatch()

    def _take(self, line: bytes) -> None:
        if self._start:
            self._start = False
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch()
            return
        if line.startswith(b":"):
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._stamped = (self._stamp, self._index)
        elif name == b"event":
            self._name = value.strip().decode("utf-8", errors="replace") or None
        elif name not in _KNOWN_FIELDS:
            self._stream.unknown_lines += 1

    def _dispatch(self) -> None:
        if self._data:
            stamp, index = self._stamped
            self._stream.events.append(SseEvent(stamp, b"\n".join(self._data), self._name, index))
            self._data.clear()
        self._name = None
