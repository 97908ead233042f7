"""One phase of load: its requests as the bytes that are sent, its facts, and the records of its spools."""

import gc
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import orjson

from servebench.contracts.engine import Engine, RunningEngine
from servebench.contracts.exchange import Exchange, PlannedRequest, Target
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.request import Request
from servebench.contracts.results import Record
from servebench.contracts.settings import RunSettings
from servebench.load.client.spool import read_spool
from servebench.measure.derive import ReadTimings, record
from servebench.protocol.kinds.table import compose, kind_of
from servebench.registry.registry import registry
from servebench.store.files import writing
from servebench.util.errors import ConfigError, StoreError
from servebench.util.redaction import known_secrets, redact_text, without_known
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


def dump_facts(facts: PhaseFacts) -> bytes:
    """Return the facts of a phase as JSON."""
    return orjson.dumps(facts, default=repr, option=orjson.OPT_NON_STR_KEYS)


def load_facts(spool: Path) -> PhaseFacts:
    """Return the facts that are stored beside a spool. Raises StoreError."""
    path = facts_file(spool)
    try:
        stored = dict(orjson.loads(path.read_bytes()))
        if "trace_headers" in stored:  # by an earlier version
            stored["span_headers"] = stored.pop("trace_headers")
        return PhaseFacts(**stored)
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def facts_file(spool: Path) -> Path:
    """Return where the facts of a spool's phase are."""
    return spool.with_suffix(".json")


def timings_reader(facts: PhaseFacts) -> ReadTimings | None:
    """Return what reads the engine's own times from answers; None if nothing does."""
    engine = registry().kinds["engine"].get(facts.timings_of or "")
    return None if engine is None else engine().request_timings


def references_of(requests: Sequence[Request]) -> dict[str, dict[str, Any]]:
    """Return what the answers to these requests are compared with, as plain data: for a point that has to be recovered."""
    return {
        request.request_id: {"schema": request.schema, "reference": request.reference}
        for request in requests
        if request.schema is not None or isinstance(request.reference, Mapping)
    }


def jobs_of(requests: Sequence[Request]) -> dict[str, tuple[str, int]]:
    """Return the job of each session of these requests, and how many requests that has in all."""
    return {
        request.session_id: (request.job, request.job_requests)
        for request in requests
        if request.session_id and request.job and request.job_requests
    }


def records_of(spools: Sequence[Path], facts: PhaseFacts) -> list[Record]:
    """Return the records of a phase from its spools. Raises StoreError for a spool that cannot be read."""
    secrets, timings = known_secrets(), timings_reader(facts)
    facts = replace(facts, fillers=frozenset(facts.fillers))

    def made(exchange: Exchange) -> Record:
        found = record(exchange, facts, timings)
        if facts.span_headers and exchange.sent_ns is not None:
            found = replace(found, traceparent=traceparent(facts.name, exchange.request_id))
        return _clean(found, secrets)

    collecting = gc.isenabled()
    # everything allocated here is kept, so garbage collection would find nothing
    gc.disable()
    try:
        return [made(exchange) for spool in spools for exchange in read_spool(spool)]
    finally:
        if collecting:
            gc.enable()


def _clean(record: Record, secrets: Sequence[str]) -> Record:
    """Remove secrets that the server repeated: from errors whatever looks like one, from answers the known ones."""
    error = None if record.error is None else redact_text(record.error, secrets)
    content = record.text + record.reasoning
    if error == record.error and not any(secret in content for secret in secrets):
        return record
    return replace(
        record,
        error=error,
        text=without_known(record.text, secrets),
        reasoning=without_known(record.reasoning, secrets),
    )


def discard_spools(spools: Sequence[Path]) -> None:
    """Remove the spools of a phase whose records are stored. Raises StoreError."""
    for spool in spools:
        with writing(spool):
            spool.unlink(missing_ok=True)
            facts_file(spool).unlink(missing_ok=True)
