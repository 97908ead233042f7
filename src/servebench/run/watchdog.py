"""What is seen of a phase while it runs: its progress, the reasons to stop it early, and whether it has measured enough."""

import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from servebench.analysis.disturbance import Disturbance, disturbed_spans
from servebench.analysis.drift import point_drifts, warmup_share
from servebench.analysis.serial import learned_prior
from servebench.analysis.statistics import LOOK_GROWTH, MetricLook, is_out_of_reach, is_precise, look, span_of
from servebench.contracts.engine import RunningEngine
from servebench.contracts.events import Events, PhaseProgress
from servebench.contracts.exchange import EndReason, StopReason
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.point_row import POINT_COLUMNS
from servebench.contracts.results import Record
from servebench.load.client.progress import Counts
from servebench.load.plan.levels import UNTIL_LIMIT, PlannedPoint
from servebench.measure.derive import ttft_ms
from servebench.measure.points import PointSample, point_sample
from servebench.measure.window import few_remain
from servebench.util.figures import short_percent
from servebench.util.stretches import Spans

ASK_AFTER_S, ASK_FAILED_LEAST = 5.0, 3
"""How long without an answer, and how many failed requests, until a server is asked whether it still answers."""

LOOK_ENDED_MAX = 64
"""With more ended requests TTFT so far stays as it is: reading them all again would take CPU time from the load."""


@dataclass
class Watcher:
    """Emits the progress of a phase, and stops the phase when the engine has died or sends nothing."""

    events: Events
    running: RunningEngine
    label: str
    planned: int
    duration_s: float | None
    _: KW_ONLY
    patience_s: float
    """How long an engine with open requests may send nothing."""
    ask: Callable[[], str | None] | None = None
    """Asks a server whose connections fail for one more answer, and returns what it does instead; null: it is not asked."""
    slices: Sequence[Sequence[float]] = ()
    """When the phase has load, in seconds from its start, where it takes turns with others, which show theirs meanwhile."""
    run: str = ""
    """The name of the run in the plan."""

    def __post_init__(self) -> None:
        """Start the clock."""
        self._started = self._last = self._last_data = time.monotonic()
        self._reads = 0
        self.note = ""
        self._rate = self.silent_s = 0.0
        self._seen = Counts()
        self.ttft_ms: float | None = None
        self._next_look = 1
        self.said: str | None = None
        self._answered = Counts()
        self._answered_s = self._started
        self._ask_at = ASK_FAILED_LEAST
        self._asking: threading.Thread | None = None
        self._waits = bool(self.slices)
        """Whether others are still preparing their part of the phase."""

    def wants_look(self, ended: int) -> bool:
        """Whether the progress should show the requests so far: seldom, so that reading them costs less than the load does."""
        return self.events.live and self._next_look <= ended <= LOOK_ENDED_MAX

    def see(self, records: Sequence[Record]) -> None:
        """Note the median TTFT of the requests that have ended."""
        known = [value for one in records if (value := ttft_ms(one)) is not None]
        self.ttft_ms = statistics.median(known) if known else None
        self._next_look = max(self._next_look + 1, 2 * len(records))

    def __call__(self, counts: Counts) -> StopReason | None:
        """Emit the progress, and return a reason to stop the phase. The load calls this about ten times a second."""
        now = time.monotonic()
        if self._waits:
            self._waits = False
            self._started = self._last_data = now
        spent = now - self._started
        if now - self._last >= 1.0:
            self._rate = (counts.reads - self._reads) / (now - self._last)
            self._reads, self._last = counts.reads, now
        done = counts.completed + counts.failed
        if self.duration_s is not None:
            left_s: float | None = max(0.0, self.duration_s - spent)
        else:
            left_s = spent / done * (self.planned - done) if done else None
        progress = PhaseProgress(
            label=f"{self.label} · {self.note}" if self.note else self.label,
            done=done,
            planned=self.planned,
            failed=counts.failed,
            in_flight=counts.in_flight,
            rate=self._rate or (counts.reads / spent if spent else 0.0),
            left_s=left_s,
            silent_s=self.silent_s,
            stalled=counts.stalled,
            ttft_ms=self.ttft_ms,
            run=self.run,
        )
        if not self.slices or any(opens_s <= spent < closes_s for opens_s, closes_s in self.slices):
            self.events(progress)
        if self.running.died():
            return StopReason.ENGINE_DIED
        if self._silence(counts, now) > self.patience_s:
            return StopReason.NO_PROGRESS
        return StopReason.NOT_ANSWERING if self._not_answering(counts, now) else None

    def _not_answering(self, counts: Counts, now: float) -> bool:
        """Return whether the server fails all requests since its last answer, and one that only asks. It is asked while the load
        goes on, and the less often the more often it has answered."""
        if counts.completed > self._answered.completed:
            self._answered, self._answered_s, self.said = counts, now, None
        failed = counts.failed - self._answered.failed
        if self.ask is None or now - self._answered_s < ASK_AFTER_S or failed < self._ask_at:
            return False
        if self._asking is None:
            self._asking = threading.Thread(target=self._hear, daemon=True, name="asking")
            self._asking.start()
        elif not self._asking.is_alive():
            self._asking, self._ask_at = None, 2 * failed
            return self.said is not None
        return False

    def _hear(self) -> None:
        assert self.ask is not None
        self.said = self.ask()

    def _silence(self, counts: Counts, now: float) -> float:
        """Return for how long the engine has sent nothing although requests were open. Pauses of the plan do not count, nor
        does what a worker that stands still would have read."""
        seen, self._seen = self._seen, counts
        open_requests = counts.in_flight or counts.failed > seen.failed
        if counts.reads > seen.reads or counts.completed > seen.completed or not open_requests or counts.stalled:
            self._last_data = now
        self.silent_s = now - self._last_data
        return self.silent_s


@dataclass(kw_only=True)
class Looks:
    """Decides when a phase has measured enough. `ended_by` is the decision, None while there is none."""

    level: PlannedPoint
    """The point, which lasts at most its `duration_s` unless `least` requests come within UNTIL_LIMIT times as long."""
    facts: PhaseFacts
    least: int
    """The fewest requests in the window of a point. The first look is when this many have ended and each stream has had one."""
    warmup_s: float = 0.0
    with_tokens: Callable[[Sequence[Record]], Sequence[Record]] = tuple
    """Counts the tokens of answers whose server did not."""
    disturbances: Callable[[], Sequence[Disturbance]] = tuple
    """Returns what is known so far of others on the machine."""
    ended_by: EndReason | None = None
    metrics: Sequence[MetricLook] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        """Plan the first look."""
        self._budget_s = self.level.duration_s or 0.0
        self._prior = learned_prior(self.facts.wander)
        self._next = max(self.least, self.level.concurrency or 1)
        self._wanted = self.least

    def is_due(self, ended: int, elapsed_s: float) -> bool:
        """Whether this number of ended requests is worth a look, or the time is over and no more are worth waiting for."""
        over = elapsed_s >= self._budget_s and self._is_enough(ended, elapsed_s)
        return self.ended_by is None and (over or ended >= self._next)

    def _is_enough(self, ended: int, elapsed_s: float) -> bool:
        """Whether there are as many requests as wanted, or they will not come in time."""
        return ended >= self._wanted or ended * UNTIL_LIMIT * self._budget_s < self._wanted * elapsed_s

    def take(self, records: Sequence[Record], elapsed_s: float) -> bool:
        """Look at the records of the requests that have ended, and return whether the phase has measured enough."""
        measured = [one for one in records if one.measured and one.outcome != "cancelled" and one.sent_ns is not None]
        self._next = max(self._next + 1, math.ceil(LOOK_GROWTH * len(measured)))
        counted = self.with_tokens(measured)
        stamps = [stamp for one in measured for stamp in (one.sent_ns, one.ended_ns) if stamp is not None]
        # what the finished point will leave out, as far as it is known by now
        disturbed = disturbed_spans(self.disturbances(), min(stamps), max(stamps)) if stamps else ()
        sample = self._sample(counted, self.warmup_s, disturbed)
        cut_s = warmup_share(point_drifts(sample, open_loop=self.level.open_loop)) * sample.window_s
        # a change that others made is no warm-up
        if cut_s and not disturbed:
            sample = self._sample(counted, self.warmup_s + cut_s)
        self.metrics = look(sample, self.level.targets, self._prior)
        ok, counts = sum(one.outcome == "ok" for one in measured), int(sample.e2e_ms.size)
        # where others let hardly any request pass, more would not pass either: such a point takes its time
        few = bool(disturbed) and few_remain(counts, ok)
        # those sent before the level was reached, and while others had the machine, do not count
        self._wanted = self.least + (0 if few else ok - counts)
        if not self._is_enough(len(measured), elapsed_s):
            self._next = max(len(measured) + 1, min(self._next, self._wanted))
            return False
        span = span_of(sample)
        if is_precise(self.metrics, span):
            self.ended_by = EndReason.PRECISE
        elif not few and is_out_of_reach(self.metrics, span, self._budget_s):
            self.ended_by = EndReason.OUT_OF_REACH
        elif elapsed_s >= self._budget_s:
            self.ended_by = EndReason.TIME
        return self.ended_by is not None

    def _sample(self, records: Sequence[Record], warmup_s: float, disturbed: Spans = ()) -> PointSample:
        known = {"offered_req_s": self.level.offered_req_s, "mean_tokens": self.facts.mean_tokens}
        return point_sample(records, self.level.concurrency, warmup_s=warmup_s, disturbed=disturbed, **known)

    @property
    def note(self) -> str:
        """How precisely the worst metric is known, for the progress of the phase."""
        known = [one for one in self.metrics if one.width is not None]
        if not known:
            return ""
        worst = max(known, key=lambda one: (one.width or 0.0) / one.target)
        return f"{POINT_COLUMNS[worst.name].title} ±{worst.width or 0.0:.0%}, goal ±{short_percent(worst.target)}"
