"""What a coordinator and its worker say to each other: a job on the worker's standard input, progress in shared memory.

A job goes through a pipe and never through a file or an argument, because its headers may hold an API key.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from servebench.contracts.exchange import ANSWER_BYTES_MAX, PlannedRequest, PointPlan, Target

GO = b"g"
STOP = b"s"
CONNECT_BURST = 256
"""Connections that are being opened at once: more overrun the listen queue of common servers (uvicorn 2048, others 128)
and would wait a second for the retry of a lost SYN."""

_LENGTH = struct.Struct("<Q")


_FACTS = ("request_id", "session_id", "scheduled_s", "think_s", "cancel_after_s")
"""What a worker knows of a request, in the order of WireRequest."""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request as bytes, ready to send when it has no `holes`.

    `after` are the indexes of the requests that it waits for, those of its session left out. `holes` are (offset in its
    body, index of the request whose answer goes there); then `data` has no content-length, and its body begins at `body_at`.
    """

    request_id: str
    session_id: str | None
    scheduled_s: float | None
    think_s: float
    cancel_after_s: float | None
    after: Sequence[int]
    holes: Sequence[tuple[int, int]]
    body_at: int
    data: bytes

    def filled(self, texts: Mapping[int, bytes]) -> bytes:
        """The request with these texts in its holes, by index."""
        body = memoryview(self.data)[self.body_at :]
        parts: list[bytes | memoryview] = []
        before = 0
        for offset, of in self.holes:
            parts += [body[before:offset], texts[of]]
            before = offset
        parts.append(body[before:])
        length = sum(len(part) for part in parts)
        return b"".join([self.data[: self.body_at], _length_line(length), *parts])


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a worker needs to know. `spool` and `progress` are paths of files that exist."""

    target: Target
    spool: str
    progress: str
    concurrency: int
    timeout_s: float
    connect_timeout_s: float
    duration_s: float | None
    drain_s: float
    requests: Sequence[WireRequest]
    connections: int | None = None
    stream_starts_s: Sequence[float] | None = None
    reader: str | None = None
    connect_burst: int = CONNECT_BURST
    answer_bytes_max: int = ANSWER_BYTES_MAX


def _length_line(length: int) -> bytes:
    """The last header, and the line that ends them."""
    return b"Content-Length: %d\r\n\r\n" % length


@lru_cache(maxsize=8)
def request_head(target: Target, path: str) -> bytes:
    """The HTTP/1.1 request line and headers, all but the length of the body. The requests of a point have few paths."""
    default_port = 443 if target.tls else 80
    host = f"[{target.host}]" if ":" in target.host else target.host
    authority = host if target.port == default_port else f"{host}:{target.port}"
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {authority}",
        "User-Agent: servebench",
        "Accept: text/event-stream",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
        *(f"{name}: {value}" for name, value in target.headers),
    ]
    return "\r\n".join([*lines, ""]).encode("latin-1")


def request_bytes(target: Target, request: PlannedRequest) -> tuple[int, bytes]:
    """The request as bytes and where its body begins in them; one with holes has no content-length yet."""
    head = request_head(target, request.path)
    if not request.holes:
        head += _length_line(len(request.body))
    return len(head), head + request.body


def job_bytes(target: Target, plan: PointPlan, spool: Path, progress: Path) -> bytes:
    """A job in the form in which it goes to the worker: a JSON head, then each request's bytes."""
    places, blobs = [], []
    for request in plan.requests:
        body_at, blob = request_bytes(target, request)
        places.append(body_at)
        blobs.append(blob)
    index = {request.request_id: number for number, request in enumerate(plan.requests)}
    head = {
        "target": asdict(target),
        "spool": str(spool),
        "progress": str(progress),
        "concurrency": plan.concurrency,
        "timeout_s": plan.timeout_s,
        "connect_timeout_s": plan.connect_timeout_s,
        "duration_s": plan.duration_s,
        "drain_s": plan.drain_s,
        "connections": plan.connections,
        "stream_starts_s": plan.stream_starts_s,
        "answer_bytes_max": plan.answer_bytes_max,
        "reader": plan.reader,
        "requests": [
            [
                *(getattr(request, name) for name in _FACTS),
                [index[of] for of in request.after],
                [(offset, index[of]) for offset, of in request.holes],
                body_at,
                len(blob),
            ]
            for request, body_at, blob in zip(plan.requests, places, blobs, strict=True)
        ],
    }
    return packed(head, blobs)


def packed(head: Mapping[str, Any], blobs: Sequence[bytes]) -> bytes:
    """A job's head and its requests, in the form in which they go through a pipe."""
    text = orjson.dumps(head)
    return b"".join([_LENGTH.pack(len(text)), text, *blobs])


def unpacked(descriptor: int) -> tuple[dict[str, Any], list[bytes]]:
    """The head and the requests from a pipe, unbuffered. Raises EOFError when it ends early."""
    head: dict[str, Any] = orjson.loads(_read_exactly(descriptor, _LENGTH.unpack(_read_exactly(descriptor, 8))[0]))
    return head, [_read_exactly(descriptor, facts[-1]) for facts in head["requests"]]


def read_job(descriptor: int) -> Job:
    """The job from a pipe, unbuffered, so that the orders that follow it stay in the pipe."""
    head, blobs = unpacked(descriptor)
    target = head.pop("target")
    target["headers"] = tuple(tuple(pair) for pair in target["headers"])
    requests = [WireRequest(*[*facts, blob]) for (*facts, _), blob in zip(head.pop("requests"), blobs, strict=True)]
    return Job(target=Target(**target), requests=requests, **head)


def _read_exactly(descriptor: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(descriptor, min(count, 1 << 20))
        if not part:
            raise EOFError("whoever started this worker is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


@dataclass(frozen=True)
class Counts:
    """How far a phase is. `completed` counts answers that ended, whatever their status; `reads` is close to events."""

    sent: int = 0
    completed: int = 0
    failed: int = 0
    in_flight: int = 0
    reads: int = 0


def summed(counts: Iterable[Counts]) -> Counts:
    """The counts of all workers of a phase."""
    return Counts(*(sum(column) for column in zip(*(astuple(one) for one in counts), strict=True)))


class Progress:
    """Five counters in a shared page: the worker writes, the coordinator reads. A torn read is off by one update.

    A sixth counts the updates: a worker that hangs, or was stopped, makes none.
    """

    _FORMAT = struct.Struct("<qqqqqq")

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page
        self._written = 0

    @classmethod
    def create(cls, path: Path) -> Progress:
        """Make the page's file. Raises OSError."""
        path.write_bytes(bytes(mmap.PAGESIZE))
        return cls.attach(str(path))

    @classmethod
    def attach(cls, path: str) -> Progress:
        """Open a page that exists. Raises OSError."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            return cls(mmap.mmap(descriptor, mmap.PAGESIZE))
        finally:
            os.close(descriptor)

    def write(self, *, sent: int, completed: int, failed: int, in_flight: int, reads: int) -> None:
        """Publish the counters."""
        self._written += 1
        self._FORMAT.pack_into(self._page, 0, sent, completed, failed, in_flight, reads, self._written)

    def read(self) -> Counts:
        """The counters as last published."""
        return Counts(*self._FORMAT.unpack_from(self._page, 0)[:5])

    def updates(self) -> int:
        """How often the counters were published."""
        return int(self._FORMAT.unpack_from(self._page, 0)[5])

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._page.close()
