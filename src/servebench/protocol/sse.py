"""Read server-sent events from body bytes: leniently, on bytes, each event with the stamp of the read that ended it.

WHATWG HTML part 9.2.6, with two liberties that engines need: the last event counts without its blank line, and so does
a last line without its line end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
LINE_BYTES_KEPT = 4096
"""How much is kept of a line that is no field: an error in it should be whole."""
_KNOWN_FIELDS = (b"data", b"event", b"id", b"retry")


class SseEvent(NamedTuple):
    """One event. `event` is its name, null for an unnamed one. `stamp_ns` belongs to the read that brought the line end
    of its last data line; `read_index` is the number of that read among those with body bytes.
    """

    stamp_ns: int
    data: bytes
    event: str | None
    read_index: int


@dataclass(slots=True)
class SseStream:
    """The events of a body. `unknown_lines` counts lines that are no field of an event, such as bare JSON; `unknown_line` is the
    beginning of the first."""

    events: list[SseEvent] = field(default_factory=list)
    unknown_lines: int = 0
    unknown_line: bytes = b""


def parse(pieces: Sequence[tuple[int, bytes]]) -> SseStream:
    """Parse the events in `pieces`: (stamp, bytes) in order, cut anywhere, at most one piece a read. Pure; never raises."""
    stream = SseStream()
    parser = SseParser(stream)
    for index, (stamp, data) in enumerate(pieces):
        parser.feed(stamp, data, index)
    parser.finish()
    return stream


class SseParser:
    """Appends the events in bytes that are cut anywhere to a stream. `idle`: no line and no event is incomplete."""

    __slots__ = ("_data", "_index", "_name", "_partial", "_skip_lf", "_stamp", "_stamped", "_start", "_stream", "idle")

    def __init__(self, stream: SseStream) -> None:
        self._stream = stream
        self._partial: list[bytes] = []
        self._data: list[bytes] = []
        self._name: str | None = None
        self._stamped = (0, 0)
        self._stamp = 0
        self._index = 0
        self._skip_lf = False
        self._start = True
        self.idle = True

    def feed(self, stamp: int, data: bytes, index: int) -> None:
        """Take the bytes of read number `index`."""
        # the usual read is exactly one unnamed event of one line, or a few of them
        if self.idle and data.startswith(b"data: ") and data.endswith(b"\n\n") and b"\r" not in data:
            whole = data[:-2].split(b"\n\n")
            if data.count(b"\n") == 2 * len(whole) and all(event.startswith(b"data: ") for event in whole):
                self._stream.events.extend([SseEvent(stamp, event[6:], None, index) for event in whole])
                return
        if self._skip_lf and data:
            self._skip_lf = False
            data = data.removeprefix(b"\n")
        if data:
            self._stamp, self._index = stamp, index
            self._split(data)
        self.idle = not (self._partial or self._data or self._name or self._skip_lf or self._start)

    def _split(self, data: bytes) -> None:
        if b"\n" not in data and b"\r" not in data:
            # joined only when the line ends: a long line that comes byte by byte must not take quadratic time
            self._partial.append(data)
            return
        if self._partial:
            self._partial.append(data)
            data = b"".join(self._partial)
            self._partial.clear()
        self._skip_lf = data.endswith(b"\r")
        for line in data.splitlines(keepends=True):
            bare = line.rstrip(b"\r\n")
            if len(bare) == len(line):
                self._partial.append(line)
            else:
                self._take_line(bare)

    def finish(self) -> None:
        """End the body: an incomplete line or event counts as complete."""
        if self._partial:
            self._take_line(b"".join(self._partial))
            self._partial.clear()
        self._dispatch()

    def _take_line(self, line: bytes) -> None:
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
            self._stream.unknown_line = self._stream.unknown_line or line[:LINE_BYTES_KEPT]

    def _dispatch(self) -> None:
        if self._data:
            stamp, index = self._stamped
            self._stream.events.append(SseEvent(stamp, b"\n".join(self._data), self._name, index))
            self._data.clear()
        self._name = None
