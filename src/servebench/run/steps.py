"""A run as a generator of steps: it yields its load, so that what executes it may drive the load of several runs at once."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

from servebench.contracts.exchange import PhaseReport, PointPlan
from servebench.contracts.phase import PhaseFacts, SliceFacts
from servebench.contracts.results import Record
from servebench.load.plan.levels import PlannedPoint
from servebench.run.session import RunSession
from servebench.run.watchdog import Looks, Watcher

T = TypeVar("T")
Driven = tuple[PhaseReport, list[Record]]


@dataclass(frozen=True, kw_only=True)
class WarmLevel:
    """A level whose engine is warm. It is answered with its `SliceFacts`, or None for an ordinary point.

    `rate_req_s` and `answer_s` are those of the warm-up, None without one.
    """

    session: RunSession
    level: PlannedPoint
    rate_req_s: float | None
    answer_s: float | None


@dataclass(frozen=True, kw_only=True)
class PhaseStep:
    """A phase of load that is to be driven: a warm-up or a point. It is answered with its report and records."""

    session: RunSession
    plan: PointPlan
    facts: PhaseFacts
    watch: Watcher
    looks: Looks | None
    workers: int

    def drive(self) -> Driven:
        """Drive it alone. Raises what the load of its session raises."""
        return self.session.load.drive(self.plan, self.facts, self.watch, self.looks, workers=self.workers)


Steps = Generator[WarmLevel | PhaseStep, Any, T]


class Progress(Generic[T]):
    """A run, or a part of it, at its current `step`; None once it has a `result`."""

    def __init__(self, steps: Steps[T]) -> None:
        """Go to the first step."""
        self._steps = steps
        self.step: WarmLevel | PhaseStep | None = None
        self.settle_s = 0.0
        """How long its engine goes on to use the CPU after its load."""
        self.result: T | None = None
        self.answer(None)

    def answer(self, answer: SliceFacts | Driven | None) -> None:
        """Go on with the answer to the step, to the next one."""
        self._go(partial(self._steps.send, answer))

    def fail(self, error: BaseException) -> None:
        """Go on with the failure of the step, to the next one."""
        self._go(partial(self._steps.throw, error))

    def go_alone(self) -> None:
        """Take the step without other runs."""
        if not isinstance(self.step, PhaseStep):
            self.answer(None)
            return
        try:
            driven = self.step.drive()
        except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - the run decides what it means
            self.fail(error)
        else:
            self.answer(driven)

    def _go(self, on: Callable[[], WarmLevel | PhaseStep]) -> None:
        try:
            self.step = on()
        except StopIteration as end:
            self.step, self.result = None, end.value


def alone(steps: Steps[T]) -> T:
    """Take all steps, each without other runs, and return the result. Raises what the steps raise."""
    progress = Progress(steps)
    while progress.step is not None:
        progress.go_alone()
    return cast("T", progress.result)
