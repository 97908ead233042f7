"""Looks at a point while it runs, to end it as soon as it is precise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from servebench.analysis.disturbance import Disturbance, disturbed_spans
from servebench.analysis.drift import point_drifts, warmup_share
from servebench.analysis.serial import learned_prior
from servebench.analysis.statistics import LOOK_GROWTH, MetricLook, is_out_of_reach, is_precise, look, span_of
from servebench.contracts.exchange import EndReason
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.point_row import POINT_COLUMNS
from servebench.contracts.results import Record
from servebench.load.plan.levels import UNTIL_LIMIT, PlannedPoint
from servebench.measure.points import PointSample, point_sample
from servebench.util.figures import short_percent
from servebench.util.stretches import Spans


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
        # those sent before the level was reached, and while others had the machine, do not count
        self._wanted = self.least + sum(one.outcome == "ok" for one in measured) - sample.e2e_ms.size
        if not self._is_enough(len(measured), elapsed_s):
            self._next = max(len(measured) + 1, min(self._next, self._wanted))
            return False
        span = span_of(sample)
        if is_precise(self.metrics, span):
            self.ended_by = EndReason.PRECISE
        elif is_out_of_reach(self.metrics, span, self._budget_s):
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
