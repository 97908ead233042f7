"""One phase of load: drive it, read its spools, derive its records."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import orjson

from servebench.contracts.exchange import Exchange, PhaseReport, PointPlan, StopReason, Target
from servebench.contracts.request import Request
from servebench.contracts.results import Record
from servebench.load.client.progress import Counts
from servebench.load.client.spool_reader import read_spool
from servebench.load.coordinator.drive import drive
from servebench.load.coordinator.share import worker_spools
from servebench.measure.derive import ReadTimings, record
from servebench.registry.registry import registry
from servebench.run.looks import Looks
from servebench.run.requests import traceparent
from servebench.run.watchdog import Watcher
from servebench.store.files import replacing, writing
from servebench.util.errors import StoreError
from servebench.util.file_redaction import Traces, traces_of
from servebench.util.redaction import known_secrets, redact_text, without_known


@dataclass(frozen=True, kw_only=True)
class PhaseFacts:
    """Facts of a phase that its records need. Stored next to the spool, so that a killed run can be recovered."""

    run_id: str
    point: str
    warmup: bool
    concurrency: int | None
    repeat: int
    planned: dict[str, tuple[int | None, int, bool]]
    """For each request_id: planned prompt tokens, requested output tokens, whether exactly that many were requested."""
    api: str = "chat"
    apis: dict[str, str] = field(default_factory=dict)
    """By request_id: the kinds of requests that are not of the kind `api`."""
    rate: float | None = None
    engine_version: str | None = None
    cache_state: str | None = None
    tokenizer_name: str = "the tokenizer"
    tokenizer_exact: bool = True
    start_id: str | None = None
    fillers: Sequence[str] = ()
    """The ids of the requests that only keep the level."""
    references: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By request_id: the `schema` and the `reference` that its answer is compared with."""
    trace_headers: bool = False
    keep_ids: bool = False
    """Whether the `id` of each answer is kept: times that the engine gives after the load are found by it."""
    timings_of: str | None = None
    """The engine whose request timings are read; null: none are."""
    traces: Traces = field(default_factory=dict)
    """By what the secrets that answers may repeat are found after a kill."""

    @property
    def timings(self) -> ReadTimings | None:
        """What reads the engine's own times; None if nothing does."""
        return self._timings

    @cached_property
    def _timings(self) -> ReadTimings | None:
        engines = registry().kinds["engine"]
        engine = engines.get(self.timings_of or "")
        return engine().request_timings if engine is not None else None

    @property
    def trace(self) -> str:
        """The name of the traces of its requests; the warm-up of a point has its own request ids."""
        return f"{self.run_id}/{self.point}"

    @cached_property
    def _filler_ids(self) -> frozenset[str]:
        return frozenset(self.fillers)

    def dump(self) -> bytes:
        """Return the facts as JSON."""
        return orjson.dumps(self, default=repr, option=orjson.OPT_NON_STR_KEYS)

    @classmethod
    def load(cls, path: Path) -> PhaseFacts:
        """Read a file written with `dump`. Raises StoreError."""
        try:
            return cls(**orjson.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error

    def requests(self) -> list[Request]:
        """Return the requests of the phase that have a schema or reference, without their prompts."""
        return [
            Request(request_id=name, schema=one.get("schema"), reference=one.get("reference"))
            for name, one in self.references.items()
        ]

    def record(self, exchange: Exchange) -> Record:
        """Return the record of one exchange of this phase."""
        prompt_tokens, output_tokens, _ = self.planned.get(exchange.request_id, (None, None, False))
        found = record(
            exchange,
            run_id=self.run_id,
            point=self.point,
            warmup=self.warmup,
            filler=exchange.request_id in self._filler_ids,
            planned_prompt_tokens=prompt_tokens,
            asked_output_tokens=output_tokens,
            timings=self.timings,
            keep_id=self.keep_ids,
            api=self.apis.get(exchange.request_id, self.api),
        )
        if self.trace_headers and exchange.sent_ns is not None:
            return replace(found, traceparent=traceparent(self.trace, exchange.request_id))
        return found


def references_of(requests: Sequence[Request]) -> dict[str, dict[str, Any]]:
    """Return what the answers to these requests are compared with, as plain data: for a point that has to be recovered."""
    return {
        request.request_id: {"schema": request.schema, "reference": request.reference}
        for request in requests
        if request.schema is not None or isinstance(request.reference, Mapping)
    }


def drive_phase(
    target: Target,
    plan: PointPlan,
    facts: PhaseFacts,
    spool: Path,
    watch: Watcher,
    *,
    workers: int = 1,
    nodes: Sequence[str] = (),
    looks: Looks | None = None,
) -> tuple[PhaseReport, list[Record]]:
    """Drive a phase and return its report and records. The spools stay on disk until the caller has stored the records.
    `looks` may end it early.

    Raises what `drive` raises, and StoreError; `servebench recover` can then read the spools.
    """
    with writing(spool.parent):
        spool.parent.mkdir(exist_ok=True)
    stored = replace(facts, traces=traces_of(known_secrets()))
    for path in worker_spools(spool, workers):
        with replacing(path.with_suffix(".json")) as beside:
            beside.write_bytes(stored.dump())
        with writing(path):
            path.touch()
    spools = worker_spools(spool, workers)

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

    report = drive(target, plan, spool=spool, watch=watch_and_look, workers=workers, nodes=nodes)
    return report, records_of(spools, facts)


def records_of(spools: Sequence[Path], facts: PhaseFacts) -> list[Record]:
    """Return the records of a phase from its spools. Raises StoreError for a spool that cannot be read."""
    secrets = known_secrets()
    collecting = gc.isenabled()
    # everything allocated here is kept, so garbage collection would find nothing
    gc.disable()
    try:
        return [_clean(facts.record(exchange), secrets) for spool in spools for exchange in read_spool(spool)]
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
            spool.with_suffix(".json").unlink(missing_ok=True)
