"""One phase of load: drive it, read its spools, derive its records."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import orjson

from servebench.contracts.exchange import Exchange, PointPlan, StopReason, Target
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.request import Request
from servebench.contracts.results import Record
from servebench.load.client.progress import Counts
from servebench.load.client.spool_reader import read_spool
from servebench.load.coordinator.drive import Drive
from servebench.measure.derive import ReadTimings, record
from servebench.registry.registry import registry
from servebench.run.looks import Looks
from servebench.run.requests import traceparent
from servebench.run.watchdog import Watcher
from servebench.store.files import replacing, writing
from servebench.util.errors import StoreError
from servebench.util.file_redaction import traces_of
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


def drive_of(
    target: Target,
    plan: PointPlan,
    facts: PhaseFacts,
    spools: Sequence[Path],
    watch: Watcher,
    *,
    looks: Looks | None = None,
) -> Drive:
    """Return what `drive_together` needs for a phase, with a worker for each spool; the spools are on disk. `looks` may end it
    early. Raises StoreError."""
    with writing(spools[0].parent):
        spools[0].parent.mkdir(exist_ok=True)
    stored = replace(facts, traces=traces_of(known_secrets()))
    for path in spools:
        with replacing(facts_file(path)) as beside:
            beside.write_bytes(dump_facts(stored))
        with writing(path):
            path.touch()
    started = 0.0

    def watch_and_look(counts: Counts) -> StopReason | Literal["finish"] | None:
        nonlocal started
        started = started or time.monotonic()
        elapsed_s = time.monotonic() - started
        reason = watch(counts)
        ended = counts.completed + counts.failed
        if reason is None and looks is not None and looks.is_due(ended, elapsed_s):
            records = records_of(spools, facts)
            enough = looks.take(records, elapsed_s)
            watch.see(records)
            watch.note = looks.note
            return "finish" if enough else None
        if reason is None and watch.wants_look(ended):
            watch.see(records_of(spools, facts))
        return reason

    return Drive(target=target, plan=plan, spool=spools[0], watch=watch_and_look, workers=len(spools))


def records_of(spools: Sequence[Path], facts: PhaseFacts) -> list[Record]:
    """Return the records of a phase from its spools. Raises StoreError for a spool that cannot be read."""
    secrets, fillers, timings = known_secrets(), frozenset(facts.fillers), timings_reader(facts)

    def made(exchange: Exchange) -> Record:
        prompt_tokens, output_tokens, _ = facts.planned.get(exchange.request_id, (None, None, False))
        found = record(
            exchange,
            run_id=facts.run_id,
            point=facts.point,
            warmup=facts.warmup,
            filler=exchange.request_id in fillers,
            planned_prompt_tokens=prompt_tokens,
            asked_output_tokens=output_tokens,
            timings=timings,
            keep_id=facts.keep_ids,
            api=facts.apis.get(exchange.request_id, facts.api),
        )
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
