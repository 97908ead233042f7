"""Runs at once, with steps that the tests make: who is measured with whom, and what ends them all."""

import math
from types import SimpleNamespace

import pytest

from servebench.contracts.events import OneAtATime
from servebench.contracts.point_id import PointId
from servebench.contracts.results import RunOutcome
from servebench.load.plan.levels import PlannedPoint
from servebench.load.plan.slices import LEAD_S_MIN
from servebench.run import in_turns
from servebench.run.in_turns import run_in_turns
from servebench.run.session import Seen
from servebench.run.steps import WarmLevel
from servebench.util.errors import EngineError
from support.orchestration import Recorder


class Study:
    """Runs with levels of their own; `log` is what was measured, with the number of slices. `ends` says which runs end early,
    `again` which measure a level twice."""

    def __init__(self, levels, *, simulated=True, ends=None, seed=0, started="t", again=None, until=None, targets=None):
        self.levels, self.simulated, self.ends = levels, simulated, ends or {}
        study, load = SimpleNamespace(until=until), SimpleNamespace(concurrency=(1, 4))
        self.settings = SimpleNamespace(workload=SimpleNamespace(seed=seed), study=study, load=load)
        self.started, self.targets = started, targets or {}
        self.log, self.slices, self.events, self.again, self.seen = [], [], Recorder(), again or {}, Seen()

    def go(self):
        return run_in_turns([SimpleNamespace(events=self.events, name=name) for name in self.levels], self._steps)

    def _steps(self, run):
        name, status = run.name, "finished"
        launcher = SimpleNamespace(simulated=self.simulated, local=True)
        running = SimpleNamespace(pids=(), start_s=1.0)
        lease = SimpleNamespace(launcher=launcher, engine=SimpleNamespace(name=name), running=running, uses=0)
        request = SimpleNamespace(run_id=f"{self.started}/{name}", events=self.events, seen=self.seen)
        session = SimpleNamespace(lease=lease, settings=self.settings, request=request, start_id=self.started)
        try:
            if self.ends.get(name) == "start":
                raise KeyboardInterrupt
            levels = [
                (users, duration_s, attempt)
                for users, duration_s in self.levels[name]
                for attempt in range(1 + (self.again.get(name) == users))
            ]
            for users, duration_s, attempt in levels:
                level = PlannedPoint(
                    id=PointId(f"c{users}", 0).with_attempt(attempt),
                    concurrency=users,
                    requests=None,
                    duration_s=duration_s,
                    warmup_requests=1,
                    targets=self.targets,
                )
                slices = yield WarmLevel(session=session, level=level, rate_req_s=9.0, answer_s=0.1)
                self.log.append((name, users, len(slices.slices) if slices else 0))
                self.slices.append(slices)
                if self.ends.get(name) == "level":
                    raise EngineError("it died")
        except KeyboardInterrupt:
            status = "interrupted"
        except EngineError:
            status = "failed"
        return RunOutcome(run_id=name, status=status, points=())


BOTH = [(1, 20.0), (4, 20.0)]
TARGETS = {"ttft_ms_p50": 0.1}


def statuses(outcomes):
    return [(one.run_id, one.status) for one in outcomes]


def test_the_same_level_is_measured_in_slices_of_all():
    study = Study({"a": BOTH, "b": BOTH})
    assert statuses(study.go()) == [("a", "finished"), ("b", "finished")]
    assert study.log == [("a", 1, 5), ("b", 1, 5), ("a", 4, 5), ("b", 4, 5)]


def test_each_slice_has_requests_for_all_streams_at_work():
    """The warm-up answered 9 requests a second, but its last answers end alone: 4 streams with answers of 0.1 s have 40."""
    study = Study({"a": BOTH, "b": BOTH})
    study.go()
    for users, facts in zip((1, 1, 4, 4), study.slices, strict=True):
        opens_s, closes_s = facts.slices[0]
        assert facts.slice_requests == pytest.approx(2 * users / 0.1 * (closes_s - opens_s), abs=1)


def test_a_study_that_adds_starts_has_fewer_slices_in_each():
    """Where `load.until` leaves it to servebench how long a point is."""
    by_time, by_precision = (Study({"a": BOTH, "b": BOTH}, until="decided", targets=one) for one in ({}, TARGETS))
    by_time.go()
    by_precision.go()
    assert [count for *_, count in by_time.log] == [5] * 4
    assert [count for *_, count in by_precision.log] == [2] * 4


def test_the_order_of_slices_follows_from_the_seed_alone():
    """So that a simulated study gives the same numbers again; each level has an order of its own."""
    orders = []
    for seed, started in ((0, "monday"), (0, "tuesday"), (1, "monday")):
        study = Study({"a": BOTH, "b": BOTH}, seed=seed, started=started)
        study.go()
        orders.append([one.slices for one in study.slices])
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][0] != orders[0][2]


def test_a_level_of_one_run_is_an_ordinary_point_before_the_next_shared_one():
    study = Study({"a": BOTH, "b": BOTH[1:]})
    study.go()
    assert study.log == [("a", 1, 0), ("a", 4, 5), ("b", 4, 5)]


def test_a_run_that_measures_a_level_again_does_so_before_the_next_shared_one():
    """Whichever of them is first: the disturbed one is behind."""
    for names in ("ab", "ba"):
        study = Study({names[0]: BOTH, names[1]: BOTH}, again={"b": 1})
        study.go()
        assert study.log[2:3] == [("b", 1, 0)]
        assert sorted(study.log[3:]) == [("a", 4, 5), ("b", 4, 5)]


def test_short_points_are_ordinary_ones():
    study = Study({"a": [(1, 2.0)], "b": [(1, 2.0)]})
    study.go()
    assert study.log == [("a", 1, 0), ("b", 1, 0)]
    assert [one.users for one in study.events.of(OneAtATime)] == [1]


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ({"a": "start"}, [("a", "interrupted")]),
        ({"b": "start"}, [("a", "interrupted"), ("b", "interrupted")]),
        ({"a": "level"}, [("a", "failed"), ("b", "finished")]),
    ],
)
def test_an_interrupted_run_ends_all_and_a_failed_one_only_itself(ends, found):
    study = Study({"a": BOTH, "b": BOTH}, ends=ends)
    assert statuses(study.go()) == found
    if ends == {"a": "level"}:
        assert study.log[-1] == ("b", 4, 0)


def _busy_for(monkeypatch, seconds):
    """Make time pass by sleeping only, and these engines use a core for so many seconds after their load."""
    now_s = 0.0

    def sleep(for_s):
        nonlocal now_s
        now_s += for_s

    began_s = {}

    def cpu_s(session):
        name = session.lease.engine.name
        return min(now_s - began_s.setdefault(name, now_s), seconds.get(name, 0.0))

    monkeypatch.setattr(in_turns, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now_s))
    monkeypatch.setattr(in_turns, "_cpu_s", cpu_s)


@pytest.mark.parametrize(("busy", "log"), [("a", ["a", "a", "b", "b"]), ("b", ["b", "b", "a", "a"])])
def test_an_engine_that_is_busy_without_load_is_measured_alone(monkeypatch, busy, log):
    _busy_for(monkeypatch, {busy: math.inf})
    study = Study({"a": BOTH, "b": BOTH}, simulated=False)
    assert statuses(study.go()) == [("a", "finished"), ("b", "finished")]
    assert [(name, slices) for name, _, slices in study.log] == [(name, 0) for name in log]
    assert len(study.events.of(OneAtATime)) == 1


@pytest.mark.parametrize(("busy_s", "lead_s"), [(0.0, LEAD_S_MIN), (1.2, 1.25), (2.9, 3.0)])
def test_slices_do_not_measure_what_the_engine_before_goes_on_to_use(monkeypatch, busy_s, lead_s):
    _busy_for(monkeypatch, {"a": busy_s})
    study = Study({"a": BOTH, "b": BOTH}, simulated=False)
    study.go()
    assert study.log == [("a", 1, 5), ("b", 1, 5), ("a", 4, 5), ("b", 4, 5)]
    assert {one.slice_lead_s for one in study.slices} == {lead_s}
    looked_s = in_turns.time.monotonic()
    study.go()
    assert in_turns.time.monotonic() == looked_s, "a later start of the same engine is not looked at"
    assert {one.slice_lead_s for one in study.slices} == {lead_s}


@pytest.mark.parametrize(
    ("full", "log"), [("a", ["a", "a", "b", "c", "b", "c"]), ("b", ["a", "b", "a", "b", "c", "c"])]
)
def test_engines_that_leave_too_little_memory_are_measured_before_the_next_one_starts(monkeypatch, full, log):
    _busy_for(monkeypatch, {})
    monkeypatch.setattr(
        in_turns,
        "_processes",
        lambda session: [
            SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=(session.lease.engine.name == full) << 60))
        ],
    )
    study = Study({"a": BOTH, "b": BOTH, "c": BOTH}, simulated=False)
    study.go()
    assert [name for name, *_ in study.log] == log
    assert {name for name, _, slices in study.log if not slices} == {"a" if full == "a" else "c"}
    assert len(study.events.of(OneAtATime)) == 1


def test_an_interruption_before_the_first_run_has_begun_is_passed_on():
    """A job that ended so is no finished one."""

    def steps(request):
        raise KeyboardInterrupt
        yield request

    with pytest.raises(KeyboardInterrupt):
        run_in_turns([SimpleNamespace(events=Recorder(), name="a")], steps)
