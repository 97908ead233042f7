"""Requests of a phase, as the bytes that the load sends."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode, urlsplit

import orjson

from servebench.contracts.engine import Engine, RunningEngine
from servebench.contracts.exchange import PlannedRequest, Target
from servebench.contracts.request import Request
from servebench.contracts.settings import RunSettings
from servebench.protocol.kinds.table import compose, kind_of
from servebench.util.errors import ConfigError
from servebench.workload.build.requests import add_extras

ANSWER_BYTES_BASE = 4 << 20
ANSWER_BYTES_PER_TOKEN = 4096
"""An event of one token has some 300 bytes, with log probabilities of twenty alternatives some 2,000. An endless answer
must be cut off before the answers of all streams fill the memory."""
ANSWER_BYTES_PER_INPUT = 256 << 10
"""A vector of 8,192 numbers in decimal has less."""


def target_of(running: RunningEngine, headers: Mapping[str, str] | None = None) -> Target:
    """Return where the requests to a running engine go, with further `headers`."""
    url = urlsplit(running.base_url)
    tls, host = url.scheme == "https", (url.hostname or "").encode("idna").decode()
    return Target(
        host=host,
        port=url.port or (443 if tls else 80),
        tls=tls,
        verify_tls=running.verify_tls,
        server_name=host,
        headers=(*running.headers, *(headers or {}).items()),
    )


def planned_requests(
    engine: Engine, running: RunningEngine, settings: RunSettings, requests: Sequence[Request], phase: str
) -> list[PlannedRequest]:
    """Return the requests of a point in the engine's dialect, as bytes. `phase` is `run_id/point`. Raises
    ConfigError if the dialect changes prompts with marks."""
    base_path = quote(urlsplit(running.base_url).path, safe="/%:@!$&'()*+,;=~").rstrip("/")
    query = f"?{urlencode(running.query)}" if running.query else ""
    planned, run_name = [], phase.rpartition("/")[0].replace("/", ".")
    given = {name.lower() for name, _ in (*running.headers, *settings.workload.headers.items())}
    for request in requests:
        path, body = compose(engine, add_extras(request, settings.workload), running.model, running.names)
        plain, holes = split_at_answers(orjson.dumps(body), request)
        planned.append(
            PlannedRequest(
                request_id=request.request_id,
                path=base_path + path + query,
                body=plain,
                session_id=request.session_id,
                think_s=request.think_s or 0.0,
                after=request.after,
                holes=holes,
                headers=(
                    *(one for one in kind_of(request).headers.items() if one[0] not in given),
                    # the run's, too: engines refuse a name that is in use, and several runs may load one server
                    ("x-request-id", f"{run_name}.{request.request_id}"),
                    *(span_headers(phase, request) if settings.sends_span_headers else ()),
                ),
            )
        )
    return planned


def traceparent(phase: str, request_id: str) -> str:
    """Return the `traceparent` of a request (W3C Trace Context, version 00, sampled): the same for the same names."""
    digest = hashlib.blake2b(f"{phase}/{request_id}".encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-01"


def span_headers(phase: str, request: Request) -> tuple[tuple[str, str], ...]:
    """Return the headers by which a server's spans name a request and its session."""
    session = () if request.session_id is None else (("x-session-id", request.session_id),)
    return (("traceparent", traceparent(phase, request.request_id)), *session)


def answer_bytes_max(requests: Sequence[Request]) -> int:
    """Return the largest size that an answer to these requests may have."""
    each = (ANSWER_BYTES_PER_TOKEN * one.output_tokens + ANSWER_BYTES_PER_INPUT * len(one.inputs) for one in requests)
    return ANSWER_BYTES_BASE + max(each, default=0)


def split_at_answers(body: bytes, request: Request) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    """Return the body without the marks of earlier answers, and the offset at which each answer is inserted.

    Raises ConfigError when a mark is missing because the dialect changed the prompt.
    """
    if not request.answers:
        return body, ()
    answers = {answer.mark.encode(): answer.of for answer in request.answers}
    parts = re.split(b"(%s)" % b"|".join(map(re.escape, answers)), body)
    if not answers.keys() <= set(parts):
        raise ConfigError(
            f"request {request.request_id}: the engine's dialect changes the prompt, so earlier answers cannot be inserted; "
            "set workload.history=scripted"
        )
    plain, holes = bytearray(), []
    for part in parts:
        if part in answers:
            holes.append((len(plain), answers[part]))
        else:
            plain += part
    return bytes(plain), tuple(holes)
