"""Decode the stored bytes of one HTTP response: status, headers, and the body without its framing, stamps kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from servebench.protocol.framing import Framing, FramingError, ResponseHead

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
