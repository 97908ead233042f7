"""One phase of load: its facts, and the records of its spools."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from servebench.contracts.exchange import Exchange
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.request import Request
from servebench.contracts.results import Record
from servebench.load.client.spool import read_spool
from servebench.measure.derive import ReadTimings, record
from servebench.registry.registry import registry
from servebench.run.requests import traceparent
from servebench.store.files import writing
from servebench.util.errors import StoreError
from servebench.util.redaction import known_secrets, redact_text, without_known


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
