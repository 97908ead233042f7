"""One phase of load from requests to records: plan, drive, read the spool, derive, store.

Knows the order in which workload, engine, load, measure and store are used for a point, and nothing of how they work.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import orjson

from servebench.contracts.engine import Engine, RunningEngine
from servebench.contracts.exchange import Exchange, PhaseReport, PlannedRequest, PointPlan, Target
from servebench.contracts.request import Request
from servebench.contracts.results import Record
from servebench.contracts.settings import RunSettings
from servebench.load.client.jobs import Counts
from servebench.load.client.spool import read_spool
from servebench.load.coordinator.drive import drive
from servebench.load.coordinator.share import worker_spools
from servebench.measure.derive import record
from servebench.report.terminal.console import Display
from servebench.store.files import replacing, writing
from servebench.util.errors import ConfigError, StoreError
from servebench.util.redaction import known_secrets, redact_text, without_known
from servebench.workload.dressing import dressed

SILENCE_MARGIN_S = 30.0
"""How long beyond `load.timeout_s` an engine may send nothing to anybody: by then every request that it had is over."""

ANSWER_BYTES_BASE = 4 << 20
ANSWER_BYTES_PER_TOKEN = 4096
"""An event of one token has some 300 bytes, with log probabilities of twenty alternatives some 2,000. A server without
end must be cut off before the answers of all streams together fill the memory."""


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


def target_of(running: RunningEngine) -> Target:
    """Where a running engine's requests go."""
    url = httpx.URL(running.base_url)
    tls = url.scheme == "https"
    return Target(
        host=url.host,
        port=url.port or (443 if tls else 80),
        tls=tls,
        verify_tls=running.verify_tls,
        server_name=url.host,
        headers=running.headers,
    )


def planned_requests(
    engine: Engine, running: RunningEngine, settings: RunSettings, requests: Sequence[Request]
) -> list[PlannedRequest]:
    """Requests in the engine's dialect, as bytes. Raises ConfigError for a dialect that does not send a prompt as it is."""
    base_path = httpx.URL(running.base_url).path.rstrip("/")
    planned = []
    for request in requests:
        path, body = engine.body(dressed(request, settings.workload), running.model, settings.workload)
        plain, holes = with_holes(orjson.dumps(body), request)
        planned.append(
            PlannedRequest(
                request_id=request.request_id,
                path=base_path + path,
                body=plain,
                session_id=request.session_id,
                think_s=request.think_s or 0.0,
                after=request.after,
                holes=holes,
            )
        )
    return planned


def answer_bytes_max(requests: Sequence[Request]) -> int:
    """How many bytes the answer to any of these may have: what each token may cost, and room for what comes beside."""
    return ANSWER_BYTES_BASE + ANSWER_BYTES_PER_TOKEN * max((request.output_tokens for request in requests), default=0)


def with_holes(body: bytes, request: Request) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    """The body without the marks of the answers that belong into it, and where each belongs. Raises ConfigError when a mark
    is not in it: the dialect changed the prompt."""
    places = []
    for answer in request.answers:
        mark = answer.mark.encode()
        at = body.find(mark)
        if at < 0:
            raise ConfigError(
                f"request {request.request_id}: the engine's dialect does not send its prompt as it is, so no real answers "
                "can be put into it; use workload.history=scripted"
            )
        while at >= 0:
            places.append((at, len(mark), answer.of))
            at = body.find(mark, at + len(mark))
    plain, holes, before = bytearray(), [], 0
    for at, length, of in sorted(places):
        plain += body[before:at]
        holes.append((len(plain), of))
        before = at + length
    plain += body[before:]
    return bytes(plain), tuple(holes)


class Watcher:
    """Looks after a phase while it runs: shows progress, and stops it when the engine is gone."""

    def __init__(
        self,
        display: Display,
        running: RunningEngine,
        label: str,
        planned: int,
        duration_s: float | None,
        *,
        patience_s: float,
    ) -> None:
        """`patience_s` is how long an engine that was asked may send nothing at all."""
        self._display = display
        self._running = running
        self._label = label
        self._planned = planned
        self._duration_s = duration_s
        self._began = self._last = time.monotonic()
        self._reads = 0
        self._rate = 0.0
        self._patience_s = patience_s
        self._seen = Counts()
        self._heard = self._began
        self.silent_s = 0.0

    def __call__(self, counts: Counts) -> str | None:
        """Called about ten times a second."""
        now = time.monotonic()
        spent = now - self._began
        if now - self._last >= 1.0:
            self._rate = (counts.reads - self._reads) / (now - self._last)
            self._reads, self._last = counts.reads, now
        done = counts.completed + counts.failed
        if self._duration_s is not None:
            left_s: float | None = max(0.0, self._duration_s - spent)
        else:
            left_s = spent / done * (self._planned - done) if done else None
        self._display.progress(
            label=self._label,
            done=done,
            planned=self._planned,
            failed=counts.failed,
            in_flight=counts.in_flight,
            rate=self._rate or (counts.reads / spent if spent else 0.0),
            left_s=left_s,
            silent_s=self.silent_s,
        )
        if self._running.died():
            return "engine_died"
        return "no_progress" if self._silence(counts, now) > self._patience_s else None

    def _silence(self, counts: Counts, now: float) -> float:
        """For how long nothing came though something was asked. A pause that the plan makes is none."""
        seen, self._seen = self._seen, counts
        asked = counts.in_flight or counts.failed > seen.failed
        if counts.reads > seen.reads or counts.completed > seen.completed or not asked:
            self._heard = now
        self.silent_s = now - self._heard
        return self.silent_s


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
