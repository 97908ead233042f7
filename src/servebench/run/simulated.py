"""One phase of load on a simulated engine: the client's scheduler and the engine's scheduler on one virtual clock.

The client follows the same plan by the same rules as the load worker (`load.client.scheduler`), and the engine is that of the
emulator. Only what lies between them is left out: sockets, bytes, and the wait for real time. Stamps are exact.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, Literal

import numpy as np
import orjson

from servebench.contracts.emulation import EmulationSpec
from servebench.contracts.exchange import PhaseReport, PointPlan, StopReason, Target, WireOutcome
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.results import Record
from servebench.contracts.telemetry import VOCABULARY, Reading
from servebench.emulator.requests import RequestRejected
from servebench.emulator.responses import timings_of
from servebench.emulator.virtual import VirtualAnswer, VirtualEngine
from servebench.engine.launchers.emulated import SimulatedEngine
from servebench.load.client.job import PhaseJob, WireRequest, plan_facts, request_facts
from servebench.load.client.progress import Counts
from servebench.load.client.scheduler import ANSWERED, LEFT, Scheduler
from servebench.measure.derive import timing_columns
from servebench.run.phase import timings_reader
from servebench.run.watchdog import Looks
from servebench.util.arrays import percentile
from servebench.util.units import NS_PER_MS, NS_PER_S

PAUSE_S = 1.0
"""Virtual seconds between two phases, in which a real client prepares the next."""

WATCH_EVERY_S = 0.2
BODY = b"\r\n\r\n"

Watch = Callable[[Counts], StopReason | None]
Ending = Literal["complete", "timeout", "cancelled", "abandoned", "session_ended"]


@dataclass(frozen=True, slots=True)
class _End:
    """How a request ended, and when. A rejected one has a complete response, with the status of the rejection."""

    outcome: Ending
    at_s: float
    message: str = ""
    rejection: RequestRejected | None = None


def virtual_engine(running: SimulatedEngine) -> VirtualEngine:
    """Return the virtual engine of a simulated start; the first call makes it."""
    if not isinstance(running.machine, VirtualEngine):
        began_s = running.started_ns / NS_PER_S
        running.machine = VirtualEngine(running.spec, running.variation, running.key, began_s)
        running.machine.now_s = running.ready_s
    return running.machine


@dataclass
class SimulatedLoad:
    """Sends the load of a run to a simulated engine. Its metrics are read every `sample_every_s` virtual seconds; null: never."""

    running: SimulatedEngine
    sample_every_s: float | None = None
    ask: None = None

    def drive(
        self, plan: PointPlan, facts: PhaseFacts, watch: Watch, looks: Looks | None = None, *, workers: int = 1
    ) -> tuple[PhaseReport, list[Record]]:
        """Simulate a phase and return the report of the client and the records, in the order in which the requests ended.

        `watch` is called several times a second of real time, as by the load client. `looks` may end the phase early.
        """
        running, engine = self.running, virtual_engine(self.running)
        client = _Client(running, engine, plan, facts, workers)
        engine.watch(client.now_s, None if facts.warmup else self.sample_every_s)
        try:
            client.run(watch, looks)
        except KeyboardInterrupt:
            client.stop(StopReason.INTERRUPT)
        engine.watch_ends(client.now_s)
        running.ended_ns = client.ns(client.now_s)
        return client.report(), client.records

    @property
    def now_s(self) -> float:
        """What the virtual clock of the engine shows, in seconds from its start."""
        return virtual_engine(self.running).now_s

    def wait_until(self, now_s: float) -> None:
        """Move the virtual clock forward, without load."""
        engine = virtual_engine(self.running)
        engine.now_s = max(engine.now_s, now_s)

    def ended(self, facts: PhaseFacts) -> list[Record]:
        """Return no records: nothing is kept of a phase that raises."""
        return []

    def discard(self) -> None:
        """Do nothing: a phase keeps no files."""

    def reset_cache(self) -> str | None:
        """Empty the engine's prefix cache. Return None on success, else the reason."""
        return None if virtual_engine(self.running).scheduler.reset_cache() else "requests are still running"

    def readings(self) -> list[Reading]:
        """Return the telemetry of the latest phase: the metrics that the engine's class names, and its CPU time."""
        running = self.running
        raw = {meaning: name for name, meaning in running.spec.metrics.items() if meaning in VOCABULARY}
        raw |= {name: name for name in ("engine_cpu_s", "front_end_cpu_s")}
        return [
            Reading(
                t_ns=running.started_ns + round(time_s * NS_PER_S),
                source="process" if name.endswith("_cpu_s") else "engine",
                name=name,
                raw_name=raw[name],
                labels="",
                value=value,
            )
            for time_s, values in virtual_engine(running).samples
            for name, value in values.items()
            if name in raw
        ]

    def judge(self, report: PhaseReport, records: Sequence[Record]) -> PhaseReport:
        """Return the report as it is: a simulated engine does not die."""
        return report


def _job(plan: PointPlan) -> PhaseJob:
    requests = [
        WireRequest(*[*facts, 0, one.body]) for facts, one in zip(request_facts(plan), plan.requests, strict=True)
    ]
    target = Target(host="simulated", port=80)
    return PhaseJob(target=target, spool="", progress="", requests=requests, **plan_facts(plan))


class _Client:
    """The client of one phase: sends what its scheduler releases, and notes what comes of it."""

    def __init__(
        self, running: SimulatedEngine, engine: VirtualEngine, plan: PointPlan, facts: PhaseFacts, workers: int
    ) -> None:
        self.now_s = self._start_s = engine.now_s + PAUSE_S
        self.records: list[Record] = []
        self._epoch_ns = running.started_ns
        self._engine = engine
        self._plan = plan
        self._facts = replace(facts, fillers=frozenset(facts.fillers))
        self._read_timings = timings_reader(facts)
        self._spec = running.spec
        self._scheduler = Scheduler(_job(plan))
        self._answers: dict[int, VirtualAnswer] = {}
        self._sent_ns: dict[int, tuple[int, int]] = {}
        """Of the requests in flight: when they were scheduled and sent."""
        self._rejected: list[tuple[float, int, RequestRejected]] = []
        """A heap of (when the rejection arrives, index, rejection)."""
        self._lateness_s = running.variation.client_lateness_ms / 1e3 / workers
        self._rng = random.Random(f"{running.key}/{facts.point}/{facts.warmup}/client")
        self._send_at: dict[int, float] = {}
        self._lags_ms: list[float] = []
        self._events = 0
        self._watched = time.monotonic()

    def ns(self, time_s: float) -> int:
        """Return a time of the virtual clock as a stamp."""
        return self._epoch_ns + round(time_s * NS_PER_S)

    def run(self, watch: Watch, looks: Looks | None) -> None:
        """Simulate to the end of the phase."""
        scheduler = self._scheduler
        scheduler.start(self.now_s, self.ns(self.now_s))
        while True:
            now = self.now_s
            self._end_rejected(now)
            self._leave(now)
            scheduler.release_due(now)
            self._note_unsendable()
            self._send(now)
            if (ending := scheduler.ending(now)) is not None:
                self._end_all(*ending)
                return
            self.now_s, complete = self._engine.run_until(self._next_s(now))
            for answer in complete:
                self._end(answer.index, _End("complete", self.now_s))
            spent_s, ended = self.now_s - self._start_s, scheduler.completed + scheduler.failed
            if looks is not None and looks.is_due(ended, spent_s) and looks.take(self.records, spent_s):
                scheduler.finish(self.now_s)
            if math.isinf(self.now_s):
                raise RuntimeError("the simulated client waits for nothing")
            if time.monotonic() > self._watched + WATCH_EVERY_S:
                self._watched = time.monotonic()
                if (reason := watch(self._counts())) is not None:
                    scheduler.stop(reason)

    def stop(self, reason: StopReason) -> None:
        """End the phase now."""
        self._scheduler.stop(reason)
        ending = self._scheduler.ending(self.now_s)
        assert ending is not None
        self._end_all(*ending)

    def report(self) -> PhaseReport:
        """Return the client's report of itself. It costs no CPU time, and its loop is late only as planned."""
        scheduler = self._scheduler
        return PhaseReport(
            started_ns=self.ns(self._start_s),
            ended_ns=self.ns(self.now_s),
            planned=self._plan.measured,
            sent=scheduler.sent,
            fillers=scheduler.fillers,
            elapsed_s=self.now_s - self._start_s,
            loop_lag_ms_p99=float(percentile(np.asarray(self._lags_ms), 99)) if self._lags_ms else None,
            loop_lag_ms_max=max(self._lags_ms, default=None),
            stopped=scheduler.stopped,
        )

    def _counts(self) -> Counts:
        scheduler = self._scheduler
        return Counts(scheduler.sent, scheduler.completed, scheduler.failed, len(scheduler.in_flight), self._events)

    def _next_s(self, now: float) -> float:
        """Return the next moment at which the client has something to do without an answer."""
        moments = [self._scheduler.next_due(now), self._scheduler.next_limit(now)]
        if self._rejected:
            moments.append(self._rejected[0][0])
        moments += list(self._send_at.values())
        return max(now, min((moment for moment in moments if moment is not None), default=math.inf))

    # sending

    def _send(self, now: float) -> None:
        ready = self._scheduler.ready
        for index in list(ready):
            if self._lateness_s:
                at_s = self._send_at.setdefault(index, now + self._rng.expovariate(1.0 / self._lateness_s))
                if at_s > now:
                    continue
                del self._send_at[index]
            ready.remove(index)
            self._submit(index, now)

    def _submit(self, index: int, now: float) -> None:
        scheduler = self._scheduler
        scheduled_ns = scheduler.scheduled_ns(index)
        sent_ns = max(scheduled_ns, self.ns(now))
        self._sent_ns[index] = scheduled_ns, sent_ns
        self._lags_ms.append((sent_ns - scheduled_ns) / NS_PER_MS)
        scheduler.begin(index, now)
        body = scheduler.data(index)
        if scheduler.requests[index].holes:
            # what the load client sends begins with its last header
            body = body.partition(BODY)[2]
        try:
            self._answers[index] = self._engine.submit(index, self._plan.requests[index].path, body, now)
        except RequestRejected as rejected:
            heappush(self._rejected, (now + self._engine.scheduler.cost.request_s, index, rejected))

    # ends

    def _end_rejected(self, now: float) -> None:
        while self._rejected and self._rejected[0][0] <= now:
            _, index, error = heappop(self._rejected)
            self._end(index, _End("complete", now, rejection=error))

    def _leave(self, now: float) -> None:
        for index in self._scheduler.departed(now):
            self._abort(index, "abandoned", LEFT)
        for index in self._scheduler.timed_out(now):
            self._abort(index, "timeout", f"no complete answer within {self._plan.timeout_s:g} s")

    def _end_all(self, outcome: WireOutcome, message: str) -> None:
        for index in list(self._scheduler.in_flight):
            self._abort(index, "timeout" if outcome == "timeout" else "cancelled", message)
        self._note_unsendable()

    def _abort(self, index: int, outcome: Ending, message: str) -> None:
        answer = self._answers.get(index)
        if answer is not None:
            self._engine.abort(answer, self.now_s)
        self._rejected = [one for one in self._rejected if one[1] != index]
        self._end(index, _End(outcome, self.now_s, message))

    def _end(self, index: int, end: _End) -> None:
        """Note the record of a request, and tell the scheduler, as the load client does."""
        record = self._record(index, end, self._answers.pop(index, None))
        self.records.append(record)
        self._events += len(record.event_ns)
        scheduler, now_ns = self._scheduler, self.ns(end.at_s)
        reading = end.outcome in ANSWERED and scheduler.needs_answer(index)
        scheduler.end(index, end.outcome, end.message, now=end.at_s, now_ns=now_ns, reading=reading)
        if reading:
            text = orjson.dumps(record.text)[1:-1] if end.rejection is None else None
            scheduler.answer_read(index, text, f"http_error: {record.error}", now_ns)

    def _note_unsendable(self) -> None:
        now_ns = self.ns(self.now_s)
        for index, reason in self._scheduler.unsendable:
            self._sent_ns[index] = now_ns, 0
            self.records.append(self._record(index, _End("session_ended", self.now_s, reason), None))
        self._scheduler.unsendable.clear()

    def _record(self, index: int, end: _End, answer: VirtualAnswer | None) -> Record:
        request = self._scheduler.requests[index]
        scheduled_ns, sent_ns = self._sent_ns.pop(index)
        event_ns = [self.ns(time_s) for time_s in answer.event_s] if answer is not None else []
        whole = answer if answer is not None and end.outcome == "complete" else None
        return Record(
            **self._facts.of_record(request.request_id),
            session_id=request.session_id,
            scheduled_ns=scheduled_ns,
            sent_ns=sent_ns or None,
            first_event_ns=event_ns[0] if event_ns else None,
            first_output_ns=event_ns[0] if event_ns else None,
            last_event_ns=event_ns[-1] if event_ns else None,
            ended_ns=self.ns(end.at_s),
            event_ns=event_ns,
            stamp_source="kernel",
            answered_ns=event_ns[-1] if whole is not None and event_ns else None,
            text="".join(answer.request.pieces[: answer.request.generated]) if answer is not None else "",
            **_outcome(end, streamed=bool(event_ns)),
            **_usage(self._spec, whole),
            **self._timings(sent_ns, event_ns, whole),
        )

    def _timings(self, sent_ns: int, event_ns: list[int], whole: VirtualAnswer | None) -> dict[str, Any]:
        read = self._read_timings
        if read is None or whole is None or not event_ns:
            return {}
        said = read(timings_of(self._spec, whole.request), {})
        return timing_columns(said, sent_ns, event_ns[0], event_ns[-1])


def _outcome(end: _End, *, streamed: bool) -> dict[str, Any]:
    rejection = end.rejection
    if rejection is not None:
        error = f"HTTP {rejection.status}: {rejection.message}"
        return {"outcome": "http_error", "http_status": rejection.status, "error": error}
    whole = end.outcome == "complete"
    return {
        "outcome": "ok" if whole else end.outcome,
        "http_status": 200 if streamed else None,
        "error": None if whole else end.message,
    }


def _usage(spec: EmulationSpec, whole: VirtualAnswer | None) -> dict[str, Any]:
    """Return the columns that a complete answer reports about itself, as far as the engine does."""
    if whole is None:
        return {}
    finish = "stop" if whole.parsed.ends_itself else "length"
    where = spec.emulation.usage if whole.parsed.chat else spec.emulation.completion_usage
    if where == "never" or (where == "asked" and not whole.parsed.usage):
        return {"finish_reason": finish}
    return {
        "finish_reason": finish,
        "prompt_tokens": whole.request.prompt_tokens,
        "cached_tokens": whole.request.cached if spec.emulation.cached_tokens else None,
        "output_tokens": whole.request.answer_tokens,
        "counted_by": "usage",
    }
