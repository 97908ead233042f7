"""Execution of turns in this process, with runs that only return an outcome."""

from dataclasses import replace

import pytest

from servebench.config import Job
from servebench.contracts.engine import StopReport
from servebench.contracts.point_id import PointId
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt, Point, RunOutcome
from servebench.contracts.settings import LoadSettings
from servebench.contracts.turns import Turn
from servebench.run.prior import PriorProgress
from servebench.run.session import RunTask
from servebench.run.turns import FixedOrder, LocalExecutor, follow, turns_in_order
from servebench.store.layout import StudyFolder
from servebench.store.manifest import read_manifest, write_manifest
from support.orchestration import no_context
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

    def execute(self, requests):
        return [self.one(one.task, one.turn, one.following) for one in requests]

    def one(self, task, turn, following):
        repeat = None if turn.repeats is None else turn.repeats.start
        self.calls.append((task.name, repeat, following, turn.label, dict(task.earlier.points)))
        status = self.statuses.get(task.name, "finished")
        points = tuple(Point(row=PointRow(point=f"c1-r{repeat}")) for repeat in range((repeat or 0) + 1))
        return RunOutcome(run_id=f"s/{task.name}", status=status, points=points)

    def go(self, tasks):
        policy = FixedOrder(
            tasks, turns_in_order(tasks), lambda name, outcome: self.ended.append((name, outcome.status))
        )
        return follow(policy, LocalExecutor(no_context, self.execute))

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


class Pool:
    """Counts how often its engine was stopped."""

    def __init__(self):
        self.stops = 0

    def another(self):
        return Pool()

    def release(self, following):
        self.stops += 1
        return StopReport(stopped=True, forced=False, seconds=1.0)

    def stop(self):
        return None

    def clean_logs(self):
        return None


class Given(FixedOrder):
    """Yields these batches of turns."""

    def __init__(self, tasks, *batches):
        super().__init__(tasks, (), lambda *_: None)
        self.batches = list(batches)

    def next_turns(self):
        return self.batches.pop(0) if self.batches else ()


def step(run, start, repeat, **changes):
    """A turn as a tune has it: one point, in an engine that no other run uses."""
    return Turn(range(repeat, repeat + 1), run, last=False, start=start, own_engine=True, **changes)


def test_an_engine_of_its_own_is_kept_until_another_start_is_due(tmp_path):
    """Also while nobody knows what comes next; how it stopped is added to the manifest of its run."""
    pool = Pool()
    for name in ("r0", "r1"):
        (tmp_path / name).mkdir()
        write_manifest(tmp_path / name / "manifest.json", {"schema_version": 2, "config": {}})
    context = replace(no_context(), study=StudyFolder(tmp_path), pool=pool)
    runs, tasks = Runs(), tasks_of(load(repeats=9), load(repeats=9))
    stops = []

    def execute(requests):
        stops.append(pool.stops)
        return runs.execute(requests)

    batches = [[step("r0", 0, 0)], [step("r0", 0, 1)], [step("r1", 0, 0), step("r1", 1, 1)]]
    executor = LocalExecutor(lambda: context, execute)
    assert follow(Given(tasks, *batches), executor) is False
    assert stops == [0, 0, 1, 1], "within a batch it is the run that is told to stop its engine"
    own, others = tasks[0].job.settings, tasks[1].job.settings
    assert [following for _, _, following, *_ in runs.calls] == [own, own, None, others]
    assert pool.stops == 2
    assert all(read_manifest(tmp_path / name / "manifest.json")["stop"]["seconds"] == 1.0 for name in ("r0", "r1"))


@pytest.mark.parametrize(("good", "calls"), [(9, [0, 1]), (5, [0, 0, 1])])
def test_levels_that_are_not_needed_are_left_out(good, calls):
    """Those of the same repeat, once the share of good requests is enough."""
    executed = []

    def execute(requests):
        (one,) = requests
        repeat = one.turn.repeats.start
        executed.append(repeat)
        row = PointRow(point=f"c{4 if executed == [0] else 1}-r{repeat}", slo_good=good, slo_requests=10)
        points = (*one.task.earlier.points.values(), Point(row=row))
        return [RunOutcome(run_id="s/r0", status="finished", points=points)]

    both = LoadSettings(name="l", concurrency=(4, 1), repeats=2)
    turns = [step("r0", 0, 0, levels=frozenset({level}), enough=0.8) for level in ("c4", "c1")]
    follow(Given(tasks_of(both), [*turns, step("r0", 0, 1)]), LocalExecutor(no_context, execute))
    assert executed == calls


@pytest.mark.parametrize("again", [True, False])
def test_a_void_point_is_only_measured_again_by_a_turn_that_replaces_it(again):
    void = Point(row=PointRow(point="c1-r0"), doubts=(Doubt(code="errors", message="m", remedy="r", void=True),))
    runs = Runs()
    tasks = tasks_of(load(), earlier=[PriorProgress(points={FIRST: void})])
    follow(Given(tasks, [step("r0", 0, 0, replaces_void=again)]), LocalExecutor(no_context, runs.execute))
    assert [set(points) for *_, points in runs.calls] == ([set()] if again else [])


def starts_at_once(tasks, starts=2):
    return [
        replace(step(task.name, start, start), at_once=f"0/{start}", own_engine=False, last=start == starts - 1)
        for start in range(starts)
        for task in tasks
    ]


@pytest.mark.parametrize(
    ("statuses", "calls"),
    [
        ({}, [["r0", "r1"], ["r0", "r1"]]),
        # the other one goes on alone
        ({"r0": "failed"}, [["r0", "r1"], ["r1"]]),
        ({"r0": "interrupted"}, [["r0", "r1"]]),
    ],
)
def test_turns_of_a_group_are_executed_at_once_on_pools_of_their_own(statuses, calls):
    runs, tasks = Runs(**statuses), tasks_of(load(repeats=2), load(repeats=2))
    context, together = replace(no_context(), pool=Pool()), []

    def execute(requests):
        together.append([one.task.name for one in requests])
        assert len({id(one.pool) for one in requests}) == len(requests)
        return runs.execute(requests)

    executor = LocalExecutor(lambda: context, execute)
    policy = FixedOrder(tasks, starts_at_once(tasks), lambda *_: None)
    assert follow(policy, executor) is ("interrupted" in statuses.values())
    assert together == calls
