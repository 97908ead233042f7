"""The job of a worker: what it is given on standard input before the clock starts.

A job goes through a pipe and never through a file or an argument, because its headers may hold an API key.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from servebench.contracts.exchange import PhaseFrame, PlannedRequest, PointPlan, Target

GO = b"g"
STOP = b"s"
FINISH = b"f"
"""Send no more measured requests; those in flight end as usual."""
HEADER_SAFE = "!#$&'()*+,/:;=?@[]~"
_LENGTH = struct.Struct("<Q")

_FACTS = ("request_id", "session_id", "scheduled_s", "think_s", "cancel_after_s")
"""What a worker knows of a request, in the order of WireRequest."""
_OF_PLAN = tuple(one.name for one in fields(PhaseFrame))


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request as bytes, ready to send when it has no `holes`.

    `after` are the indexes of the requests that it waits for, except those of its session. `holes` are (offset in its
    body, index of the request whose answer goes there); `data` then has no Content-Length, and its body begins at
    `body_at`.
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

    def fill(self, texts: Mapping[int, bytes]) -> bytes:
        """Return the bytes of the request with these texts, by index, in its holes."""
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
class PhaseJob(PhaseFrame):
    """Everything a worker needs to drive one phase. `spool` and `progress` are paths of existing files."""

    target: Target
    spool: str
    progress: str
    requests: Sequence[WireRequest]


def _length_line(length: int) -> bytes:
    """Return the last header, and the empty line that ends the headers."""
    return b"Content-Length: %d\r\n\r\n" % length


@lru_cache(maxsize=8)
def request_head(target: Target, path: str) -> bytes:
    """Return the HTTP/1.1 request line and headers without Content-Length. Cached: the requests of a point have few paths."""
    default_port = 443 if target.tls else 80
    host = f"[{target.host}]" if ":" in target.host else target.host
    authority = host if target.port == default_port else f"{host}:{target.port}"
    lines = [
        f"POST {path} HTTP/1.1",
        *([] if any(name.lower() == "host" for name, _ in target.headers) else [f"Host: {authority}"]),
        "User-Agent: servebench",
        "Accept: text/event-stream, */*",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
        *(f"{name}: {value}" for name, value in target.headers),
    ]
    return "\r\n".join([*lines, ""]).encode("latin-1")


def header_value(text: str) -> bytes:
    """Return a name as the value of a header: what is not a visible ASCII character is percent-encoded."""
    return quote(text, safe=HEADER_SAFE, errors="replace").encode()


def encode_request(target: Target, request: PlannedRequest) -> tuple[int, bytes]:
    """Return where the body of a request begins, and its bytes; one with holes has no Content-Length yet."""
    head = request_head(target, request.path)
    for name, value in request.headers:
        head += b"%b: %b\r\n" % (name.encode(), header_value(value))
    if not request.holes:
        head += _length_line(len(request.body))
    return len(head), head + request.body


def plan_facts(plan: PointPlan) -> dict[str, Any]:
    """Return what a worker knows of the plan besides its requests: fields of PhaseJob."""
    return {name: getattr(plan, name) for name in _OF_PLAN}


def request_facts(plan: PointPlan) -> list[list[Any]]:
    """Return what a worker knows of each request besides its bytes: the first fields of WireRequest, in their order."""
    index = {request.request_id: number for number, request in enumerate(plan.requests)}
    return [
        [
            *(getattr(request, name) for name in _FACTS),
            [index[of] for of in request.after],
            [(offset, index[of]) for offset, of in request.holes],
        ]
        for request in plan.requests
    ]


def encode_job(target: Target, plan: PointPlan, spool: Path, progress: Path) -> bytes:
    """Return a job in the form in which it goes to the worker: a JSON head, then the bytes of each request."""
    places, blobs = [], []
    for request in plan.requests:
        body_at, blob = encode_request(target, request)
        places.append(body_at)
        blobs.append(blob)
    head = {
        "target": asdict(target),
        "spool": str(spool),
        "progress": str(progress),
        **plan_facts(plan),
        "requests": [
            [*facts, body_at, len(blob)]
            for facts, body_at, blob in zip(request_facts(plan), places, blobs, strict=True)
        ],
    }
    text = orjson.dumps(head)
    return b"".join([_LENGTH.pack(len(text)), text, *blobs])


def read_job(descriptor: int) -> PhaseJob:
    """Read the job from a pipe, unbuffered, so that the orders that follow stay in it. Raises EOFError when it ends early."""
    head: dict[str, Any] = orjson.loads(_read_exactly(descriptor, _LENGTH.unpack(_read_exactly(descriptor, 8))[0]))
    requests = [WireRequest(*[*facts, _read_exactly(descriptor, size)]) for *facts, size in head.pop("requests")]
    target = head.pop("target")
    target["headers"] = tuple(tuple(pair) for pair in target["headers"])
    return PhaseJob(target=Target(**target), requests=requests, **head)


def _read_exactly(descriptor: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(descriptor, min(count, 1 << 20))
        if not part:
            raise EOFError("the process that started this worker is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
