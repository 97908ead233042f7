"""Reads the stored bytes of one HTTP response: status, headers, and the body without its framing, stamps kept.

RFC 9112 parts 4, 6 and 7, as far as a server that we asked for no encoding may use them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

HEADER_BYTES_MAX = 65_536
LINE_BYTES_MAX = 4_096
HEADS_KEPT = 32
LAST_CHUNK = b"0\r\n\r\n"

Piece = tuple[int, bytes]
"""Body bytes that one read brought, and that read's stamp (CLOCK_REALTIME nanoseconds)."""

_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")
_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")
_LENGTH = re.compile(r"[0-9]{1,18}")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: .*)?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """One HTTP response. `headers` have lower-case names; a repeated one is joined with commas.

    `body` holds at most one piece a read, in order, so two events of one piece came in one read. `complete` says that
    the message ended as it announced; a body that ends with the connection always counts as ended, because the bytes
    cannot tell. `error` names what is not HTTP, or is HTTP that nobody asked for; null for an answer that was only cut.
    """

    status: int | None
    headers: dict[str, str] = field(default_factory=dict)
    body: list[Piece] = field(default_factory=list)
    complete: bool = False
    error: str | None = None


class BadHttpError(Exception):
    """What came is not an HTTP response that we can read."""


@dataclass(frozen=True, slots=True)
class Head:
    """A response's head, and where its body begins: in which read, at which byte."""

    status: int
    headers: dict[str, str]
    read: int
    offset: int


def decode(reads: Sequence[tuple[int, bytes]]) -> HttpAnswer:
    """The response in `reads`, which are (stamp, bytes) in order, cut anywhere. Pure; never raises for what came."""
    try:
        head = find_head(reads)
    except BadHttpError as error:
        return HttpAnswer(status=None, error=str(error))
    if head is None:
        return HttpAnswer(status=None)
    body: list[Piece] = []
    try:
        complete = read_body(head, reads, body)
    except BadHttpError as error:
        return HttpAnswer(status=head.status, headers=head.headers, body=body, error=str(error))
    return HttpAnswer(status=head.status, headers=head.headers, body=body, complete=complete)


def find_head(reads: Sequence[tuple[int, bytes]]) -> Head | None:
    """The final response's head; interim responses (1xx) are passed over. None when it is not there yet.

    Raises BadHttpError.
    """
    buffer = bytearray()
    for index, (_, data) in enumerate(reads):
        searched = max(0, len(buffer) - 3)
        buffer += data
        while (end := buffer.find(b"\r\n\r\n", searched)) >= 0:
            status, headers = _parse_head(bytes(buffer[:end]))
            del buffer[: end + 4]
            searched = 0
            if status >= 200:
                return Head(status, headers, index, len(data) - len(buffer))
        if not b"HTTP/1.".startswith(bytes(buffer[:7])):
            raise BadHttpError("the answer is not HTTP/1")
        if len(buffer) > HEADER_BYTES_MAX:
            raise BadHttpError(f"the head of the answer is longer than {HEADER_BYTES_MAX} bytes")
    return None


@lru_cache(maxsize=HEADS_KEPT)
def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers, which nobody changes: a server's answers begin alike, but for the time of the day."""
    first, *lines = head.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise BadHttpError("the answer does not begin with an HTTP/1 status line")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.decode("latin-1").partition(":")
        key = name.strip().lower()
        headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
    return int(match[1]), headers


def read_body(head: Head, reads: Sequence[tuple[int, bytes]], body: list[Piece]) -> bool:
    """Fill `body`; True when the message is complete."""
    encoding = head.headers.get("content-encoding", "identity").lower()
    if encoding not in ("", "identity"):
        raise BadHttpError(f"the answer is encoded as {encoding!r}, which was not asked for")
    if head.status in (204, 304):
        return True
    rest = after_head(head, reads)
    transfer = head.headers.get("transfer-encoding", "identity").lower()
    if transfer == "chunked":
        return _read_chunks(rest, body)
    if transfer != "identity":
        raise BadHttpError(f"the answer's transfer-encoding is {transfer!r}; only 'chunked' is understood")
    if "content-length" in head.headers:
        return _read_length(rest, head.headers["content-length"], body)
    body.extend(piece for piece in rest if piece[1])
    return True


def after_head(head: Head, reads: Sequence[tuple[int, bytes]]) -> list[Piece]:
    """What came behind the head, read by read."""
    stamp, data = reads[head.read]
    rest = [(stamp, data[head.offset :])] if head.offset < len(data) else []
    rest.extend(reads[head.read + 1 :])
    return rest


def _read_length(rest: list[Piece], announced: str, body: list[Piece]) -> bool:
    if _LENGTH.fullmatch(announced) is None:
        raise BadHttpError(f"the answer's content-length is {announced[:40]!r}, which is no number")
    remaining = int(announced)
    for stamp, data in rest:
        taken = data[:remaining]
        if taken:
            body.append((stamp, taken))
            remaining -= len(taken)
    return remaining == 0


def _read_chunks(rest: list[Piece], body: list[Piece]) -> bool:
    chunks = Chunks()
    for stamp, data in rest:
        try:
            part = chunks.take(data)
        except BadHttpError:
            # what came whole before the fault counts, also when it came in the same read
            part = b"".join(chunks.parts)
            if part:
                body.append((stamp, part))
            raise
        if part:
            body.append((stamp, part))
    return chunks.done


class Chunks:
    """Takes the framing off a chunked body, however it is cut."""

    __slots__ = ("_line", "_remaining", "_step", "between", "done", "parts")

    def __init__(self) -> None:
        self._step = self._size_line
        self._line = bytearray()
        self.parts: list[bytes] = []
        self._remaining = 0
        self.between = True
        self.done = False

    def take(self, data: bytes) -> bytes:
        """The body bytes in one read, in one piece. Raises BadHttpError."""
        if self.between:
            # the usual read is exactly one chunk that holds exactly one event
            match = _SIZE_LINE.match(data)
            if match is not None:
                start = match.end()
                stop = start + int(match[1], 16)
                if start < stop and stop + 2 == len(data) and data.endswith(b"\r\n"):
                    return data[start:stop]
        parts = self.feed(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def feed(self, data: bytes) -> list[bytes]:
        """The body bytes in `data`. Raises BadHttpError."""
        self.parts = []
        position = 0
        while position < len(data) and not self.done:
            position = self._whole(data, position) or self._last(data, position) or self._step(data, position)
        self.between = self._step == self._size_line and not self._line and not self.done
        return self.parts

    def _whole(self, data: bytes, position: int) -> int:
        """Take one chunk that is all there; where it ends, or 0 when it is not."""
        if self._line or self._step != self._size_line:
            return 0
        match = _SIZE_LINE.match(data, position)
        if match is None:
            return 0
        start = match.end()
        stop = start + int(match[1], 16)
        if start == stop or data[stop : stop + 2] != b"\r\n":
            return 0
        self.parts.append(data[start:stop])
        return stop + 2

    def _last(self, data: bytes, position: int) -> int:
        """Take the end of the body as most servers write it; where it ends, or 0 when it is another or not all there."""
        if self._line or self._step != self._size_line or not data.startswith(LAST_CHUNK, position):
            return 0
        self.done = True
        return position + len(LAST_CHUNK)

    def _take_line(self, data: bytes, position: int) -> tuple[int, bytes | None]:
        end = data.find(b"\n", position)
        self._line += data[position:] if end < 0 else data[position:end]
        if len(self._line) > LINE_BYTES_MAX:
            raise BadHttpError(f"a line of the chunked framing is longer than {LINE_BYTES_MAX} bytes")
        if end < 0:
            return len(data), None
        line = bytes(self._line.removesuffix(b"\r"))
        self._line.clear()
        return end + 1, line

    def _size_line(self, data: bytes, position: int) -> int:
        position, line = self._take_line(data, position)
        if line is not None:
            size = line.partition(b";")[0].strip()
            if _SIZE.fullmatch(size) is None:
                raise BadHttpError(f"a chunk's size is {size[:40].decode('latin-1')!r}, which is no hexadecimal number")
            self._remaining = int(size, 16)
            self._step = self._payload if self._remaining else self._trailer
        return position

    def _payload(self, data: bytes, position: int) -> int:
        part = data[position : position + self._remaining]
        self.parts.append(part)
        self._remaining -= len(part)
        if not self._remaining:
            self._step = self._after_payload
        return position + len(part)

    def _after_payload(self, data: bytes, position: int) -> int:
        position, line = self._take_line(data, position)
        if line:
            raise BadHttpError("a chunk is longer than its size says")
        if line is not None:
            self._step = self._size_line
        return position

    def _trailer(self, data: bytes, position: int) -> int:
        position, line = self._take_line(data, position)
        if line == b"":
            self.done = True
        return position
