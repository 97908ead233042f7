"""One phase of load from requests to records: plan, drive, read the spool, derive, store.

Knows the order in which workload, engine, load, measure and store are used for a point, and nothing of how they work.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from servebench.contracts.exchange import Exchange, PhaseReport, PointPlan, Target
from servebench.contracts.results import Record
from servebench.load.client.spool_reader import read_spool
from servebench.load.coordinator.drive import drive
from servebench.load.coordinator.share import worker_spools
from servebench.measure.derive import record
from servebench.run.watchdog import Watcher
from servebench.store.files import replacing, writing
from servebench.util.errors import StoreError
from servebench.util.redaction import known_secrets, redact_text, without_known

SILENCE_MARGIN_S = 30.0
"""How long beyond `load.timeout_s` an engine may send nothing to anybody: by then every request that it had is over."""


@dataclass(frozen=True, kw_only=True)
class PhaseFacts:
    """What the records of a phase need to know beside its spool. Stored beside it, so that a killed run can be read."""

    run_id: str
    point: str
    warmup: bool
    concurrency: int | None
    repeat: int
    planned: dict[str, tuple[int | None, int, bool]]
    """For each request_id: planned prompt tokens, asked output tokens, whether exactly that many were asked for."""
    rate: float | None = None

    def dump(self) -> bytes:
        """As JSON."""
        return orjson.dumps(self)

    @classmethod
    def load(cls, path: Path) -> PhaseFacts:
        """From a file written with `dump`. Raises StoreError."""
        try:
            return cls(**orjson.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error

    def record(self, exchange: Exchange) -> Record:
        """The record of one exchange of this phase."""
        prompt_tokens, output_tokens, _ = self.planned.get(exchange.request_id, (None, None, False))
        return record(
            exchange,
            run_id=self.run_id,
            point=self.point,
            warmup=self.warmup,
            planned_prompt_tokens=prompt_tokens,
            asked_output_tokens=output_tokens,
        )


def drive_phase(
    target: Target,
    plan: PointPlan,
    facts: PhaseFacts,
    spool: Path,
    watch: Watcher,
    *,
    workers: int = 1,
    nodes: Sequence[str] = (),
) -> tuple[PhaseReport, list[Record]]:
    """Drive a phase and derive its records. Its spools and their facts stay on disk until the caller has stored them.

    Raises what `drive` raises, and StoreError; the spools are then left for `servebench recover`.
    """
    with writing(spool.parent):
        spool.parent.mkdir(parents=True, exist_ok=True)
    for path in worker_spools(spool, workers):
        with replacing(path.with_suffix(".json")) as beside:
            beside.write_bytes(facts.dump())
        with writing(path):
            path.touch()
    report = drive(target, plan, spool=spool, watch=watch, workers=workers, nodes=nodes)
    return report, records_of(worker_spools(spool, workers), facts)


def records_of(spools: Sequence[Path], facts: PhaseFacts) -> list[Record]:
    """The records of what the spools of a phase hold. Raises StoreError when one is none."""
    secrets = known_secrets()
    collecting = gc.isenabled()
    # all that is made here is kept: looking through it for garbage again and again finds none
    gc.disable()
    try:
        return [_clean(facts.record(exchange), secrets) for spool in spools for exchange in read_spool(spool)]
    finally:
        if collecting:
            gc.enable()


def _clean(record: Record, secrets: Sequence[str]) -> Record:
    """Without the keys that a server repeated: in its errors whatever looks like one, in its answers those we know."""
    error = None if record.error is None else redact_text(record.error, secrets)
    told = record.text + record.reasoning
    if error == record.error and not any(secret in told for secret in secrets):
        return record
    return replace(
        record,
        error=error,
        text=without_known(record.text, secrets),
        reasoning=without_known(record.reasoning, secrets),
    )


def discard_spools(spools: Sequence[Path]) -> None:
    """Remove spools whose records are stored. Raises StoreError."""
    for spool in spools:
        with writing(spool):
            spool.unlink(missing_ok=True)
            spool.with_suffix(".json").unlink(missing_ok=True)
