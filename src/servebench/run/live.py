"""The load of a run on a server, which worker processes send; and what becomes of a server that fails requests."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from servebench.contracts.engine import RunningEngine
from servebench.contracts.events import Doing, Events
from servebench.contracts.exchange import PhaseReport, PointPlan, StopReason
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.results import Record
from servebench.contracts.settings import RunSettings
from servebench.contracts.telemetry import Reading
from servebench.engine.pool import EngineLease
from servebench.load.client.progress import Counts
from servebench.load.coordinator.drive import Drive, drive_together, worker_spools
from servebench.run.outcome import BROKEN, last_failure
from servebench.run.phase import discard_spools, dump_facts, facts_file, records_of, target_of
from servebench.run.watchdog import Looks, Watcher
from servebench.store.files import replacing, writing
from servebench.store.layout import RunFolder
from servebench.util.file_redaction import traces_of
from servebench.util.redaction import known_secrets

DEATH_NOTICE_S = 5.0
ASK_TIMEOUT_S = 120.0
"""The longest time for which a server that fails requests is waited for when it is asked for one more answer."""
ASK_LEAST_S = 10.0
"""The shortest: a `load.timeout_s` that is too low for an answer does not mean that the server is gone."""
POLL_S = 0.05
BUSY_S = 90.0
"""How long a server is waited for that refuses all requests (HTTP 429, 503): one that starts a worker again is back by then, and
who has used up a quota should hear of it."""


@dataclass(kw_only=True)
class LiveLoad:
    """Sends the load of a run to the server of its lease."""

    lease: EngineLease
    settings: RunSettings
    folder: RunFolder
    events: Events
    _spools: Sequence[Path] = field(default=(), init=False)
    _busy: bool = field(default=False, init=False)
    """Whether the server was busy when it was asked last."""

    @property
    def ask(self) -> Callable[[], str | None] | None:
        """Asks a server that was only found for one more answer, while it is loaded."""
        return None if self.lease.launcher.local else self._failing

    def _failing(self, patience_s: float = 0.0) -> str | None:
        # its client is imported for that only
        from servebench.engine.supervisor.endpoint import BusyError, failing

        limit_s = min(max(self.settings.load.timeout_s, ASK_LEAST_S), ASK_TIMEOUT_S)
        asked = {"api": self.settings.workload.api, "extra": self.settings.workload.body}
        found = failing(self.lease.running, self.lease.engine, limit_s, patience_s=patience_s, **asked)
        self._busy = isinstance(found, BusyError)
        return None if found is None else str(found)

    def drive(
        self, plan: PointPlan, facts: PhaseFacts, watch: Watcher, looks: Looks | None = None, *, workers: int = 1
    ) -> tuple[PhaseReport, list[Record]]:
        """Drive a phase and return its report and records. The spools stay on disk until `discard`.

        Raises what `drive_together` raises, and StoreError; `servebench recover` can then read the spools.
        """
        (report,) = drive_together([self.drive_of(plan, facts, watch, looks, workers=workers)])
        return report, self.ended(facts)

    def drive_of(
        self, plan: PointPlan, facts: PhaseFacts, watch: Watcher, looks: Looks | None = None, *, workers: int = 1
    ) -> Drive:
        """Return a phase that is driven together with others; its records are then those of `ended`. The spools are on disk, and
        `looks` may end it early. Raises StoreError."""
        spool = self.folder.spool(f"{facts.point}{'-warmup' if facts.warmup else ''}")
        self._spools = worker_spools(spool, workers)
        with writing(spool.parent):
            spool.parent.mkdir(exist_ok=True)
        stored = replace(facts, traces=traces_of(known_secrets()))
        for path in self._spools:
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
            due = reason is None and looks is not None and looks.is_due(ended, elapsed_s)
            if reason is None and (due or watch.wants_look(ended)):
                records = self.ended(facts)
                watch.see(records)
            if due and looks is not None:
                enough = looks.take(records, elapsed_s)
                watch.note = looks.note
                return "finish" if enough else None
            return reason

        target = target_of(self.lease.running, self.settings.workload.headers)
        return Drive(target=target, plan=plan, spool=self._spools[0], watch=watch_and_look, workers=workers)

    def ended(self, facts: PhaseFacts) -> list[Record]:
        """Return the records of the requests that have ended in the latest phase. Raises StoreError."""
        return records_of(self._spools, facts)

    def discard(self) -> None:
        """Remove what is kept of the latest phase: its records are stored. Raises StoreError."""
        discard_spools(self._spools)

    def reset_cache(self) -> str | None:
        """Empty the engine's prefix cache. Return None on success, else the reason."""
        from servebench.engine.supervisor.endpoint import reset_cache

        return reset_cache(self.lease.engine, self.lease.running)

    def readings(self) -> list[Reading]:
        """Return no telemetry: that of a server is sampled."""
        return []

    def judge(self, report: PhaseReport, records: Sequence[Record]) -> PhaseReport:
        """Return the report of a phase, stopped if the engine died at its end or the server answers no more requests. A busy
        one is waited for, BUSY_S at most."""
        if report.stopped is None:
            report = self._judge_end(report, records)
        if report.stopped is StopReason.NOT_ANSWERING and self._busy:
            self.events(Doing("asking_server"))
            if self._failing(min(self.settings.engine.ready_timeout_s, BUSY_S)) is None:
                return replace(report, stopped=StopReason.BUSY)
        return report

    def _judge_end(self, report: PhaseReport, records: Sequence[Record]) -> PhaseReport:
        failure = last_failure(records)
        if failure is None:
            return report
        # when nothing listens any more, requests fail faster than the guard reports the exit
        last = max(records, key=lambda record: record.ended_ns)
        local = self.lease.launcher.local
        if local and last.outcome in BROKEN and awaited_death(self.lease.running) is not None:
            return replace(report, stopped=StopReason.ENGINE_DIED)
        if local and failure in BROKEN:
            # what is started here is watched: a process that lives was only too busy
            return report
        self.events(Doing("asking_server"))
        said = self._failing()
        return report if said is None else replace(report, stopped=StopReason.NOT_ANSWERING, error=said)


def awaited_death(running: RunningEngine) -> str | None:
    """Return why the engine died, once that is known; None if it has not died within DEATH_NOTICE_S."""
    deadline = time.monotonic() + DEATH_NOTICE_S
    while (death := running.died()) is None and time.monotonic() <= deadline:
        time.sleep(POLL_S)
    return death
