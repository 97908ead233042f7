"""Where an HTTP response ends: no more of HTTP is understood while the clock runs."""

from __future__ import annotations

import re

HEADER_BYTES_MAX = 65_536
LINE_BYTES_MAX = 4_096
LAST_CHUNK = b"0\r\n\r\n"
INTERIM_MAX = 100
"""Interim responses (1xx) before one answer: a server sends one or two, and one without end would keep us busy."""

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: .*)?", re.DOTALL)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")
_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")


class _SizeLines(dict[int, bytes]):
    """How a read of so many bytes begins when it is exactly one chunk: its size line, as most servers write it."""

    def __missing__(self, size: int) -> bytes:
        line = NO_LINE
        for digits in range(1, 9):
            length = size - digits - 4
            if length > 0 and len(written := b"%x" % length) == digits:
                line = written + b"\r\n"
                break
        self[size] = line
        return line


NO_LINE = b"\n"
"""No chunk has this many bytes with its framing, so none begins like this."""

SIZE_LINES = _SizeLines()


class FramingError(Exception):
    """What came is not an HTTP response."""


class Framing:
    """Follows one response after another on a connection and says when each is complete.

    It is right however the bytes are cut.
    """

    __slots__ = ("between", "close", "header", "interim", "remaining", "state")

    HEADERS, LENGTH, UNTIL_CLOSE, CHUNK_SIZE, CHUNK_DATA, TRAILER, DONE = range(7)

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Get ready for the next response."""
        self.state = self.HEADERS
        self.header = b""
        self.remaining = 0
        self.interim = 0
        self.close = False
        self.between = False

    def feed(self, data: bytes) -> bool:
        """Take bytes; True when the response is complete with them. Raises FramingError.

        After True, `close` says whether the connection must not be used again (asked by the server, or because bytes
        followed that nobody asked for).
        """
        # the usual read is exactly one chunk: an SSE event
        if self.between and data.startswith(SIZE_LINES[len(data)]) and data.endswith(b"\r\n"):
            return False
        done = self._follow(data)
        self.between = self.state == self.CHUNK_SIZE and not self.header
        return done

    def _follow(self, data: bytes) -> bool:
        position, size = 0, len(data)
        while True:
            if self.state in (self.CHUNK_DATA, self.LENGTH):
                step = min(self.remaining, size - position)
                position += step
                self.remaining -= step
                if self.remaining:
                    return False
                self.state = self.CHUNK_SIZE if self.state == self.CHUNK_DATA else self.DONE
            elif self.state == self.UNTIL_CLOSE:
                return False
            elif self.state == self.DONE:
                self.close = self.close or position < size
                return True
            elif position >= size:
                return False
            elif self.state == self.HEADERS:
                position = self._headers(data, position)
            else:
                position = self._whole_chunk(data, position) or self._line(data, position)

    def end_of_stream(self) -> bool:
        """The server closed: True when that is how this response ends, False when it was cut."""
        return self.state == self.UNTIL_CLOSE

    def _headers(self, data: bytes, position: int) -> int:
        before = len(self.header)
        self.header += data[position:]
        end = self.header.find(b"\r\n\r\n", max(0, before - 3))
        if end < 0:
            if len(self.header) > HEADER_BYTES_MAX:
                raise FramingError(f"the header of the response is longer than {HEADER_BYTES_MAX} bytes")
            if self.header[:5] != b"HTTP/"[: len(self.header)]:
                raise FramingError("the answer is not HTTP")
            return len(data)
        header, self.header = self.header[:end], b""
        self._start_body(header)
        return position + end + 4 - before

    def _start_body(self, header: bytes) -> None:
        lines = header.split(b"\r\n")
        first = _STATUS_LINE.fullmatch(lines[0])
        if first is None:
            raise FramingError("the answer is not HTTP/1.1")
        status = int(first[2])
        if status < 200:
            self.interim += 1
            if self.interim > INTERIM_MAX:
                raise FramingError(f"the answer has more than {INTERIM_MAX} interim responses before it")
            return
        fields = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            fields[name.strip().lower()] = value.strip().lower()
        connection = fields.get(b"connection", b"")
        self.close = b"close" in connection or (first[1] == b"0" and b"keep-alive" not in connection)
        if b"chunked" in fields.get(b"transfer-encoding", b""):
            self.state = self.CHUNK_SIZE
        elif status in (204, 304):
            self.state = self.DONE
        elif b"content-length" in fields:
            length = fields[b"content-length"]
            if _LENGTH.fullmatch(length) is None:
                raise FramingError("the answer has a content-length that is no number")
            self.remaining = int(length)
            self.state = self.LENGTH
        else:
            self.state = self.UNTIL_CLOSE
            self.close = True

    def _whole_chunk(self, data: bytes, position: int) -> int:
        """Take a chunk, or the end of all, that is written as most servers do and is all there; where it ends, else 0."""
        if self.state != self.CHUNK_SIZE or self.header:
            return 0
        if data.startswith(LAST_CHUNK, position):
            self.state = self.DONE
            return position + len(LAST_CHUNK)
        found = _SIZE_LINE.match(data, position)
        if found is None:
            return 0
        size = int(found[1], 16)
        end = found.end() + size + 2
        return end if size and end <= len(data) else 0

    def _line(self, data: bytes, position: int) -> int:
        """A chunk's size line or a trailer line; `header` holds what came of it before."""
        end = data.find(b"\n", position)
        if end < 0:
            self.header += data[position:]
            if len(self.header) > LINE_BYTES_MAX:
                raise FramingError("a chunk's size line is too long")
            return len(data)
        line = (self.header + data[position:end]).rstrip(b"\r")
        self.header = b""
        if self.state == self.TRAILER:
            if not line:
                self.state = self.DONE
            return end + 1
        digits = line.partition(b";")[0].strip()
        if _SIZE.fullmatch(digits) is None:
            raise FramingError("a chunk's size is no number")
        size = int(digits, 16)
        if size:
            self.remaining = size + 2
            self.state = self.CHUNK_DATA
        else:
            self.state = self.TRAILER
        return end + 1
