"""Fuzz targets: the readers of what servers send. A target raises AssertionError for a defect, and never anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from servebench.contracts.exchange import Exchange
from servebench.contracts.phase import PhaseFacts
from servebench.measure.derive import record
from servebench.protocol import answer, framing, sse
from servebench.protocol.errors import error_text
from servebench.protocol.framing import Framing, FramingError
from servebench.protocol.kinds.table import KINDS
from servebench.telemetry.engine_metrics import parse_series
from servebench.util.redaction import redact_text

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
INT32 = 2**31
SECRET = "planted-0123456789"  # pragma: allowlist secret


def pieces(data: bytes, size: int) -> list[tuple[int, bytes]]:
    """The bytes in reads of one size, the stamp of each its number."""
    return [(n, data[start : start + size]) for n, start in enumerate(range(0, len(data), size))]


def decoded(data: bytes, size: int) -> tuple[object, ...]:
    got = framing.decode(pieces(data, size))
    # which of two errors is reported may depend on the cuts
    return got.status, got.headers, b"".join(part for _, part in got.body), got.complete, got.error is None


def fuzz_http(data: bytes) -> None:
    """The same answer however the bytes are cut; the body is the same up to an error."""
    whole = decoded(data, max(1, len(data)))
    for size in (1, 7):
        assert decoded(data, size) == whole, (size, decoded(data, size), whole)


def ends(data: bytes, size: int) -> int | str:
    """Where the framing says that a response ends: the number of reads, or how it fails."""
    framing = Framing()
    for number, (_, part) in enumerate(pieces(data, size), start=1):
        try:
            if framing.feed(part):
                return number
        except FramingError:
            return "error"
    return "closed" if framing.end_of_stream() else "open"


def fuzz_framing(data: bytes) -> None:
    """The end is where the last byte of the response is, however it is cut; and where the reader finds it, too."""
    end = ends(data, 1)
    for size in (3, 64):
        got = ends(data, size)
        if isinstance(end, int):
            assert got == -(-end // size), (size, got, end)
            reader = framing.decode([(0, data[:end])])
            assert reader.complete or reader.error, reader
            assert not framing.decode([(0, data[: end - 1])]).complete
        else:
            assert got == end, (size, got, end)


def fuzz_sse(data: bytes) -> None:
    """The same events however the bytes are cut, and each stamped by a read that has a byte of it."""
    whole = [(event.data, event.event) for event in sse.parse([(0, data)]).events]
    for size in (1, 2, 5):
        stream = sse.parse(pieces(data, size))
        assert [(event.data, event.event) for event in stream.events] == whole
        stamps = [event.stamp_ns for event in stream.events]
        assert stamps == sorted(stamps)


def fuzz_record(data: bytes) -> None:
    """Whatever came is a record that tables can hold: texts are UTF-8, counts are in range."""
    for head in (b"", HEAD + b"%x\r\n" % max(1, len(data))):
        reads = [(0, head + data)] if head + data else []
        exchange = Exchange(
            request_id="r", session_id=None, scheduled_ns=0, connect_started_ns=None, connected_ns=None, sent_ns=0,
            ended_ns=1, outcome="complete", error=None, stamp_source="kernel", reads=reads,
        )  # fmt: skip
        for api in KINDS:
            known: dict[str, Any] = {"run_id": "x", "point": "p", "warmup": False, "concurrency": None, "repeat": 0}
            made = record(exchange, PhaseFacts(**known, planned={"r": (None, 4, False)}, api=api))
            for text in (made.text, made.reasoning, made.error, made.finish_reason):
                (text or "").encode()
            for count in (made.output_tokens, made.prompt_tokens, made.cached_tokens, made.reasoning_tokens):
                assert count is None or 0 <= count < INT32, count
            assert all(0 <= count < INT32 for count in made.event_tokens or ())
            assert len(made.error or "") < 1000
            orjson.dumps(made)


def fuzz_answer(data: bytes) -> None:
    """A whole answer that is not streamed, the same as it arrives, and its error message."""
    length = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
    for kind in KINDS.values():
        answer.read(framing.decode([(0, length + data)]), kind.scan())
        content = answer.FirstContent(kind.scan())
        for _, piece in pieces(data, 7):
            content.feed(piece)
        content.finish()
        for message in (content.error or "", error_text(data)):
            assert len(message) <= 300, f"{len(message)} characters in one line"


def fuzz_metrics(data: bytes) -> None:
    """Metrics are numbers, or one ValueError."""
    try:
        for name, labels, value in parse_series(data):
            assert (type(name), type(labels), type(value)) == (str, str, float)
    except ValueError:
        return


def fuzz_redaction(data: bytes) -> None:
    """A known secret is gone wherever it stands, and a second redaction changes nothing."""
    text = data.decode("utf-8", errors="replace")
    clean = redact_text(text[:500] + SECRET + text[500:], [SECRET])
    assert SECRET not in clean, clean
    assert redact_text(clean, [SECRET]) == clean, clean


TARGETS: dict[str, Callable[[bytes], None]] = {
    name.removeprefix("fuzz_"): target for name, target in globals().items() if name.startswith("fuzz_")
}
