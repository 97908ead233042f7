"""Order of the runs of a study, with runs that only return an outcome."""

import pytest

from servebench.config import Job
from servebench.contracts.point_id import PointId
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Point, RunOutcome
from servebench.contracts.settings import LoadSettings
from servebench.run.prior import PriorProgress
from servebench.run.task import RunTask
from servebench.run.turns import execute_in_order
from support.settings import run_settings

FIRST = PointId("c1", 0)


def tasks_of(*loads, earlier=None):
    settings = [run_settings(load=load) for load in loads]
    earlier = earlier or [PriorProgress()] * len(loads)
    return [RunTask(f"r{i}", Job((), own, {}), one) for i, (own, one) in enumerate(zip(settings, earlier, strict=True))]


def load(repeats=1, order="ascending"):
    return LoadSettings(name="l", concurrency=(1,), repeats=repeats, order=order)


class Runs:
    """Executes nothing: keeps what it is called with, and returns the outcome that the test names by run."""

    def __init__(self, **statuses):
        self.statuses = statuses
        self.calls = []
        self.ended = []

    def execute(self, task, following, label):
        repeat = None if task.turn.repeats is None else task.turn.repeats.start
        self.calls.append((task.name, repeat, following, label, dict(task.earlier.points)))
        status = self.statuses.get(task.name, "finished")
        points = tuple(Point(row=PointRow(point=f"c1-r{repeat}")) for repeat in range((repeat or 0) + 1))
        return RunOutcome(run_id=f"s/{task.name}", status=status, points=points)

    def go(self, tasks):
        return execute_in_order(tasks, self.execute, lambda name, outcome: self.ended.append((name, outcome.status)))

    def order(self):
        return [(name, repeat) for name, repeat, *_ in self.calls]


def test_runs_are_executed_one_after_another():
    runs = Runs()
    tasks = tasks_of(load(), load(), load())
    assert runs.go(tasks) is False
    assert runs.order() == [("r0", None), ("r1", None), ("r2", None)]
    # each run is told which settings come next, so that it can leave its engine to them
    assert [following for _, _, following, *_ in runs.calls] == [tasks[1].job.settings, tasks[2].job.settings, None]
    assert [label for *_, label, _ in runs.calls] == ["[1/3] ", "[2/3] ", "[3/3] "]


@pytest.mark.parametrize(("status", "others"), [("failed", [("r1", "finished")]), ("interrupted", [])])
def test_only_an_interrupted_run_stops_the_study(status, others):
    runs = Runs(r0=status)
    assert runs.go(tasks_of(load(), load())) is (status == "interrupted")
    assert runs.ended == [("r0", status), *others]


def test_a_single_run_has_no_label():
    runs = Runs()
    runs.go(tasks_of(load(repeats=3)))
    assert [(name, repeat, label) for name, repeat, _, label, _ in runs.calls] == [("r0", None, "")]


def test_repeats_in_turns_carry_their_points_along():
    runs = Runs()
    turns = load(repeats=2, order="interleaved")
    assert runs.go(tasks_of(turns, turns)) is False
    assert runs.order() == [("r0", 0), ("r1", 0), ("r0", 1), ("r1", 1)]
    assert [set(points) for *_, points in runs.calls] == [set(), set(), {FIRST}, {FIRST}]
    assert runs.ended == [("r0", "finished"), ("r1", "finished")], "a run ends with its last turn"


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_run_that_ends_early_has_no_further_turns(status):
    runs = Runs(r0=status)
    turns = load(repeats=3, order="interleaved")
    interrupted = runs.go(tasks_of(turns, turns))
    assert interrupted is (status == "interrupted")
    assert runs.order().count(("r0", 0)) == 1
    assert [name for name, repeat in runs.order() if repeat] == ([] if interrupted else ["r1", "r1"])


def test_turns_whose_points_are_stored_are_skipped():
    """But not the last one: it ends the run."""
    stored = PriorProgress(points={PointId("c1", at): Point(row=PointRow(point=f"c1-r{at}")) for at in (0, 1)})
    runs = Runs()
    turns = load(repeats=2, order="interleaved")
    runs.go(tasks_of(turns, turns, earlier=[stored, PriorProgress()]))
    assert runs.order() == [("r1", 0), ("r0", 1), ("r1", 1)]
