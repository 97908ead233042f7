"""HTTP/1.1 response framing: where a response ends, and what its head and body are.

`Framing` is the only HTTP parser of servebench. The load client feeds it reads while the clock runs and asks only whether
the response is complete; `decode` feeds it stored reads and keeps the body, with the stamps. RFC 9112 parts 4, 6 and 7, as far
as a server may use them for a client that accepts no encoding.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

HEADER_BYTES_MAX = 65_536
LINE_BYTES_MAX = 4_096
HEADS_CACHED = 32
LAST_CHUNK = b"0\r\n\r\n"
INTERIM_MAX = 100
"""Interim responses (1xx) accepted before the final one. Servers send one or two; an endless row would keep us busy."""

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: .*)?", re.DOTALL)
_LENGTH = re.compile(r"[0-9]{1,18}")
_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")
_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")


NO_CHUNK = b"\n"
"""For sizes that no chunk has together with its framing: no chunk begins like this."""


class ChunkStarts(dict[int, bytes]):
    """How a read of this many bytes begins when it is exactly one chunk, as most servers write it: the size line, `before`."""

    def __init__(self, before: bytes = b"", digits: str = "x") -> None:
        """`before` is the same in every chunk; `digits` is `x` or `X`, as the chunk size is written."""
        super().__init__()
        self._before, self._digits = before, digits

    def __missing__(self, size: int) -> bytes:
        start = NO_CHUNK
        for digits in range(1, 9):
            length = size - digits - 4
            if length > 0 and len(line := format(length, self._digits)) == digits:
                start = line.encode() + b"\r\n" + self._before
                break
        self[size] = start
        return start


SIZE_LINES = ChunkStarts()


class FramingError(Exception):
    """The bytes are not an HTTP/1 response."""


class ResponseHead(NamedTuple):
    """A response's status and headers. Names are in lower case; the values of a repeated one are joined with commas.
    `minor_version` is 0 for HTTP/1.0. Heads are cached and shared: do not change `headers`."""

    status: int
    headers: dict[str, str]
    minor_version: int


def encode_chunk(data: bytes) -> bytes:
    """Return `data` as one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


@lru_cache(maxsize=HEADS_CACHED)
def parse_head(head: bytes) -> ResponseHead:
    """Parse the bytes before the blank line. Raises FramingError. Cached: the heads of one server repeat within a second."""
    first, *lines = head.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise FramingError("the response does not begin with an HTTP/1 status line")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.decode("latin-1").partition(":")
        key = name.strip().lower()
        headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
    return ResponseHead(int(match[2]), headers, int(match[1]))


class Framing:
    """Follows the responses on a connection, one after another, however their bytes are cut.

    Attributes:
        head: the head of the current response, None until it is complete.
        between: whether the next byte begins a chunk.
        close: whether the connection must not be used again: the server closes it, or it sent bytes after the response.
    """

    __slots__ = ("_interim", "_line", "_remaining", "_state", "between", "close", "head")

    HEAD, LENGTH, UNTIL_CLOSE, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, DONE = range(8)

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Get ready for the next response."""
        self.head: ResponseHead | None = None
        self.between = False
        self.close = False
        self._state = self.HEAD
        self._line = bytearray()
        self._remaining = 0
        self._interim = 0

    @property
    def complete(self) -> bool:
        """Whether the whole response has been fed."""
        return self._state == self.DONE

    def end_of_stream(self) -> bool:
        """Return whether this response ends when the server closes the connection; if not, a close cuts it off."""
        return self._state == self.UNTIL_CLOSE

    def feed(self, data: bytes, parts: list[bytes] | None = None) -> bool:
        """Take the bytes of one read and return whether the response is complete. The body bytes are appended to `parts` where
        that is given; those before an error too. Raises FramingError."""
        if self.between:
            # the usual read is exactly one chunk: an SSE event
            line = SIZE_LINES[len(data)]
            if data.startswith(line) and data.endswith(b"\r\n"):
                if parts is not None:
                    parts.append(data[len(line) : -2])
                return False
        position = self.feed_head(data) if self._state == self.HEAD else 0
        done = self._feed_body(data, position, parts)
        self.between = self._state == self.CHUNK_SIZE and not self._line
        return done

    def feed_head(self, data: bytes) -> int:
        """Take the bytes of the head alone and return the position behind them in `data`. Raises FramingError."""
        buffer = self._line
        searched = max(0, len(buffer) - 3)
        buffer += data
        while (end := buffer.find(b"\r\n\r\n", searched)) >= 0:
            head = parse_head(bytes(buffer[:end]))
            del buffer[: end + 4]
            searched = 0
            if head.status >= 200:
                position = len(data) - len(buffer)
                buffer.clear()
                self._start_body(head)
                return position
            self._interim += 1
            if self._interim > INTERIM_MAX:
                raise FramingError(f"more than {INTERIM_MAX} interim responses came before the final one")
        if not b"HTTP/1.".startswith(bytes(buffer[:7])):
            raise FramingError("the response is not HTTP/1")
        if len(buffer) > HEADER_BYTES_MAX:
            raise FramingError(f"the head of the response is longer than {HEADER_BYTES_MAX} bytes")
        return len(data)

    def _start_body(self, head: ResponseHead) -> None:
        self.head = head
        headers = head.headers
        connection = headers.get("connection", "").lower()
        self.close = "close" in connection or (head.minor_version == 0 and "keep-alive" not in connection)
        if head.status in (204, 304):
            self._state = self.DONE
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            self._state = self.CHUNK_SIZE
            self.between = True
        elif "content-length" in headers:
            # a proxy may repeat the header
            length, *repeated = {value.strip() for value in headers["content-length"].split(",")}
            if repeated or _LENGTH.fullmatch(length) is None:
                raise FramingError(f"the content-length {headers['content-length'][:40]!r} is not a number")
            self._remaining = int(length)
            self._state = self.LENGTH if self._remaining else self.DONE
        else:
            self._state = self.UNTIL_CLOSE
            self.close = True

    def _feed_body(self, data: bytes, position: int, parts: list[bytes] | None) -> bool:
        size = len(data)
        while position < size:
            state = self._state
            if state == self.CHUNK_SIZE and not self._line and (end := self._whole_chunks(data, position, parts)):
                position = end
            elif state in (self.CHUNK_DATA, self.LENGTH):
                position = self._payload(data, position, parts)
            elif state == self.UNTIL_CLOSE:
                if parts is not None:
                    parts.append(data[position:])
                return False
            elif state == self.DONE:
                self.close = True
                return True
            else:
                position = self._framing_line(data, position)
        return self._state == self.DONE

    def _whole_chunks(self, data: bytes, position: int, parts: list[bytes] | None) -> int:
        """Take all chunks that are complete in `data`, the last one included; return where they end, 0 for none."""
        end = 0
        while (match := _SIZE_LINE.match(data, position)) is not None:
            start = match.end()
            stop = start + int(match[1], 16)
            if start == stop:
                if data.startswith(LAST_CHUNK, position):
                    self._state = self.DONE
                    end = position + len(LAST_CHUNK)
                break
            if not data.startswith(b"\r\n", stop):
                break
            if parts is not None:
                parts.append(data[start:stop])
            position = end = stop + 2
        return end

    def _payload(self, data: bytes, position: int, parts: list[bytes] | None) -> int:
        stop = min(position + self._remaining, len(data))
        if parts is not None:
            parts.append(data[position:stop])
        self._remaining -= stop - position
        if not self._remaining:
            self._state = self.CHUNK_END if self._state == self.CHUNK_DATA else self.DONE
        return stop

    def _framing_line(self, data: bytes, position: int) -> int:
        """Take a size line, the line end behind a payload or a trailer line; a part of one waits in `_line`."""
        end = data.find(b"\n", position)
        self._line += data[position:] if end < 0 else data[position:end]
        if len(self._line) > LINE_BYTES_MAX:
            raise FramingError(f"a line of the chunked framing is longer than {LINE_BYTES_MAX} bytes")
        if end < 0:
            return len(data)
        line = bytes(self._line.removesuffix(b"\r"))
        self._line.clear()
        if self._state == self.CHUNK_SIZE:
            size = line.partition(b";")[0].strip()
            if _SIZE.fullmatch(size) is None:
                raise FramingError(f"the chunk size {size[:40].decode('latin-1')!r} is not a hexadecimal number")
            self._remaining = int(size, 16)
            self._state = self.CHUNK_DATA if self._remaining else self.TRAILER
        elif self._state == self.CHUNK_END:
            if line:
                raise FramingError("a chunk is longer than its size says")
            self._state = self.CHUNK_SIZE
        elif not line:
            self._state = self.DONE
        return end + 1


Piece = tuple[int, bytes]
"""The body bytes of one read, and that read's stamp (CLOCK_REALTIME nanoseconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """One HTTP response. `headers` have lower-case names; the values of a repeated one are joined with commas.

    `body` holds at most one piece a read, in order: two events of one piece came in one read. `complete` says that the
    message ended as it announced; a body that ends with the connection is always complete, because the bytes cannot
    tell. `error` says what is not HTTP, or is HTTP that was not requested; null for a response that was only cut.
    """

    status: int | None
    headers: dict[str, str] = field(default_factory=dict)
    body: list[Piece] = field(default_factory=list)
    complete: bool = False
    error: str | None = None


class ResponseStart(NamedTuple):
    """Where a response's body begins: in which read, at which byte. `framing` is ready for that byte; its head is None
    when the head is not complete. `error` says what is wrong with the head."""

    framing: Framing
    read: int = 0
    offset: int = 0
    error: str | None = None


def decode(reads: Sequence[tuple[int, bytes]]) -> HttpResponse:
    """Decode the response in `reads`, which are (stamp, bytes) in order, cut anywhere. Pure; never raises for its input."""
    start = find_head(reads)
    framing, head, error = start.framing, start.framing.head, start.error
    if head is None:
        return HttpResponse(status=None, error=error)
    error = error or _unsupported_coding(head)
    body: list[Piece] = []
    for number, (stamp, whole) in enumerate(reads[start.read :]):
        # the head may end within the first read
        data = whole if number else whole[start.offset :]
        if framing.complete or error is not None:
            break
        parts: list[bytes] = []
        try:
            framing.feed(data, parts)
        except FramingError as problem:
            # the chunks before the fault count, even those of the same read
            error = str(problem)
        if parts:
            body.append((stamp, b"".join(parts)))
    complete = error is None and (framing.complete or framing.end_of_stream())
    return HttpResponse(status=head.status, headers=head.headers, body=body, complete=complete, error=error)


def find_head(reads: Sequence[tuple[int, bytes]]) -> ResponseStart:
    """Find the head of the final response, behind interim ones (1xx)."""
    framing = Framing()
    for index, (_, data) in enumerate(reads):
        try:
            offset = framing.feed_head(data)
        except FramingError as error:
            return ResponseStart(framing, error=str(error))
        if framing.head is not None:
            return ResponseStart(framing, index, offset)
    return ResponseStart(framing)


def _unsupported_coding(head: ResponseHead) -> str | None:
    """Return what is wrong with the codings of a response; None when its body can be read."""
    encoding = head.headers.get("content-encoding", "identity").lower()
    if encoding not in ("", "identity"):
        return f"the response has the content-encoding {encoding!r}, which was not requested"
    transfer = head.headers.get("transfer-encoding", "identity").lower()
    if transfer not in ("chunked", "identity") and head.status not in (204, 304):
        return f"the response has the transfer-encoding {transfer!r}; only 'chunked' is supported"
    return None
