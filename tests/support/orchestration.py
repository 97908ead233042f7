"""Fakes for tests of runs, studies and clusters: a clock, a listener and a cluster. Nothing sleeps, nothing is started."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from servebench.contracts.cluster import JobEnd, RunOrder
from servebench.contracts.events import Event, Events
from servebench.registry.registry import registry
from servebench.run.session import RunContext
from servebench.store.layout import StudyFolder

E = TypeVar("E", bound=Event)


@dataclass
class FakeClock:
    """A monotonic clock that moves only when somebody sleeps. `at` calls a function once that time is reached."""

    time_s: float = 0.0
    events: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def now(self) -> float:
        return self.time_s

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        self.events.append((time_s, action))

    def sleep(self, seconds: float) -> None:
        assert self.time_s < 10_000, "the code under test waits for something that never happens"
        self.time_s += seconds
        due = [event for event in self.events if event[0] <= self.time_s]
        self.events = [event for event in self.events if event[0] > self.time_s]
        for _, action in due:
            action()


@dataclass
class Recorder:
    """Stands in for the listeners of a study, and keeps what it hears."""

    heard: list[Event] = field(default_factory=list)
    live: bool = False

    def __call__(self, event: Event) -> None:
        self.heard.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [one for one in self.heard if isinstance(one, kind)]

    @contextmanager
    def listen(self) -> Iterator[Events]:
        yield Events((self,), live=self.live)


def no_context() -> RunContext:
    """The context of an executor whose runs are fakes, too."""
    pool: Any = SimpleNamespace(stop=lambda: None, clean_logs=lambda: None, release=lambda following: None)
    return RunContext(StudyFolder(Path("s")), (), Events(()), pool, registry(), {})


def run_order(**changes: Any) -> RunOrder:
    """Return the order for a run that uses no GPU."""
    fields: dict[str, Any] = {
        "study": "s", "run": "r", "title": "t", "ticket": "x", "overrides": (), "config": {}, "gpus": 0,
        "runs_per_machine": 1, "cluster_gives_gpus": False,
    }  # fmt: skip
    return RunOrder(**(fields | changes))


@dataclass
class FakeCluster:
    """A cluster with `places` places. A job ends when the test calls `end`; `cancel` ends all jobs as lost if
    `obeys_cancel`."""

    places: int = 1
    obeys_cancel: bool = True
    orders: dict[str, RunOrder] = field(default_factory=dict)
    """All orders so far by job."""
    ends: dict[str, JobEnd] = field(default_factory=dict)
    open_jobs: set[str] = field(default_factory=set)
    machines: dict[str, str] = field(default_factory=dict)
    cancelled: bool = False
    closed: bool = False
    on_submit: Callable[[str, RunOrder], None] = lambda job, order: None

    def room(self) -> int:
        return self.places - len(self.open_jobs)

    def submit(self, orders: Sequence[RunOrder]) -> Sequence[str]:
        assert len(orders) <= self.room()
        jobs = []
        for order in orders:
            job = f"j{len(self.orders)}"
            self.orders[job] = order
            self.open_jobs.add(job)
            jobs.append(job)
            self.on_submit(job, order)
        return jobs

    def running_on(self, job: str) -> str | None:
        return self.machines.get(job)

    def end(self, job: str, end: JobEnd) -> None:
        self.ends[job] = end

    def poll(self, job: str) -> JobEnd | None:
        assert job in self.open_jobs, "a job was polled after its end"
        end = self.ends.get(job)
        if end is not None:
            self.open_jobs.remove(job)
        return end

    def cancel(self) -> None:
        self.cancelled = True
        if self.obeys_cancel:
            for job in self.open_jobs:
                self.ends.setdefault(job, JobEnd(lost="cancelled"))

    def close(self) -> None:
        self.closed = True
