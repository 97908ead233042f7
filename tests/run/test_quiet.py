"""What others take from a level: it waits for them, and is measured once more."""

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from servebench.analysis.warnings.catalog import LEVEL_NOT_REACHED, MACHINE_BUSY
from servebench.contracts.events import Doing, Notice
from servebench.contracts.exchange import StopReason
from servebench.contracts.point_id import PointId
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Point
from servebench.contracts.settings import StudySettings, TelemetrySettings
from servebench.contracts.turns import Turn
from servebench.load.plan.levels import PlannedPoint
from servebench.run import quiet
from servebench.run.quiet import RECENT_S, measure_undisturbed, wait_until_quiet
from servebench.run.session import Seen
from servebench.run.steps import alone
from support.orchestration import Recorder
from support.settings import run_settings

LEVEL = PlannedPoint(id=PointId("c4", 0), concurrency=4, requests=9, duration_s=None, warmup_requests=0)


@dataclass
class Machine:
    """A clock, and for how long others are at work on it; each look takes half a second."""

    busy_until_s: float
    at_s: float = 0.0
    looks: int = 0

    def now(self):
        return self.at_s

    def look(self, use):
        self.at_s, self.looks = self.at_s + 0.5, self.looks + 1
        return "1.0 of 2 cores" if self.at_s <= self.busy_until_s else None


def session_of(*, pid=7, emulated=False, telemetry=True, wait_s=60.0, seen=None, **turn):
    settings = run_settings(telemetry=TelemetrySettings(enabled=telemetry), study=StudySettings(quiet_wait_s=wait_s))
    request = SimpleNamespace(
        run_id="s/00", turn=Turn(**turn), events=Recorder(), seen=seen or Seen(),
        task=SimpleNamespace(job=SimpleNamespace(title="llamacpp")),
    )  # fmt: skip
    lease = SimpleNamespace(running=SimpleNamespace(pid=pid), launcher=SimpleNamespace(emulated=emulated))
    return SimpleNamespace(request=request, lease=lease, settings=settings)


def waited(machine, session):
    """For how long it waited, and whether others are done."""
    began_s = machine.at_s
    done = wait_until_quiet(session, machine.look, machine.now)
    return machine.at_s - began_s, done


def test_a_level_waits_until_others_are_done_and_says_so():
    session = session_of()
    assert waited(Machine(10.0), session) == (10.5, True)
    assert {one.note for one in session.request.events.of(Doing)} == {"1.0 of 2 cores"}
    (said,) = session.request.events.of(Notice)
    assert (said.kind, said.note) == ("quiet_awaited", "1.0 of 2 cores")
    assert waited(Machine(0.0), session_of()) == (0.5, True)


def test_all_levels_of_a_start_wait_no_longer_than_one_may():
    machine, shared = Machine(1e9), Seen()
    first, second = (session_of(seen=shared, start=number) for number in range(2))
    assert waited(machine, first) == (60.0, False)
    assert waited(machine, first) == (0.5, False)
    assert waited(machine, second) == (60.0, False)


def test_engines_that_are_alive_at_once_wait_together():
    machine, shared = Machine(1e9), Seen()
    both = [session_of(seen=shared, at_once="0/1") for _ in range(2)]
    assert [waited(machine, one)[0] for one in both] == [60.0, 0.5]


@pytest.mark.parametrize(("at_once", "after_s", "looks"), [("0/1", 1.0, 1), ("0/1", 2 * RECENT_S, 2), (None, 1.0, 2)])
def test_a_machine_that_was_quiet_for_the_engine_before_is_not_looked_at_again(at_once, after_s, looks):
    machine, shared = Machine(0.0), Seen()
    for _ in range(2):
        assert wait_until_quiet(session_of(seen=shared, at_once=at_once), machine.look, machine.now, again=False)
        machine.at_s += after_s
    assert machine.looks == looks
    assert waited(machine, session_of(seen=shared, at_once=at_once)) == (0.5, True)


@pytest.mark.parametrize(
    "options",
    [{"pid": None}, {"emulated": True}, {"telemetry": False}, {"wait_s": 0.0}, {"own_engine": True}],
)
def test_who_has_nothing_to_wait_for_does_not_look(options):
    machine = Machine(1e9)
    assert waited(machine, session_of(**options)) == (0.0, True)
    assert machine.looks == 0


TAKER = json.dumps({"who": "python", "pid": 4711, "took": "took 1.0 of 2 cores", "seconds": 8.0})


def point_of(share, doubt=MACHINE_BUSY):
    row = PointRow(window_s=10.0, disturbed_s=10 * share, disturbed_by=TAKER if share else None)
    return Point(row=row, doubts=(doubt.issue("", void=True),) if share else ())


def measured(points, *, stopped=(None, None), wait_s=60.0, pid=7, shared=None, **turn):
    """What counts of a level whose attempts give these points, and how often it was measured."""
    session, seen = session_of(pid=pid, wait_s=wait_s, seen=shared, **turn), []

    def measure(session, level):
        yield from ()
        number = len(seen)
        seen.append(level.id.attempt)
        point = points[number]
        return replace(point, row=replace(point.row, point=level.point)), SimpleNamespace(
            report=SimpleNamespace(stopped=stopped[number], error="HTTP 503")
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quiet, "measure_level", measure)
        patch.setattr(quiet, "wait_until_quiet", lambda session, again=True: True)
        point, _ = alone(measure_undisturbed(session, replace(LEVEL, id=LEVEL.id.with_attempt(2))))
    return point.row.point, seen, session.request.events.of(Notice)


@pytest.mark.parametrize(
    ("shares", "kept", "attempts"),
    [
        ((0.0, 0.0), "c4-r0-a2", [2]),
        ((0.9, 0.0), "c4-r0-a3", [2, 3]),
        ((0.5, 0.9), "c4-r0-a3", [2, 3]),
    ],
)
def test_a_disturbed_level_is_measured_once_more_and_only_once(shares, kept, attempts):
    point, seen, said = measured([point_of(share) for share in shares])
    assert (point, seen) == (kept, attempts)
    assert [one.kind for one in said] == ["point_again"] * (len(attempts) - 1)
    assert all("pid 4711" in one.note for one in said)


@pytest.mark.parametrize(("share", "known"), [(0.0, True), (0.1, False)])
def test_a_level_that_nobody_disturbed_says_that_the_machine_is_quiet(share, known):
    shared = Seen()
    measured([point_of(share), point_of(share)], shared=shared, at_once="0/1", start=1)
    assert list(shared.quiet_s) == [("0/1", 1)] * known


@pytest.mark.parametrize("ends", [None, StopReason.BUSY])
def test_a_level_of_a_busy_server_is_measured_once_more_and_only_once(ends):
    point, seen, (said,) = measured([point_of(0.0), point_of(0.0)], stopped=(StopReason.BUSY, ends), wait_s=0.0)
    assert (point, seen) == ("c4-r0-a3", [2, 3])
    assert (said.kind, said.note) == ("point_again", "HTTP 503")


def test_what_is_void_otherwise_or_replaced_by_another_start_is_not_measured_again():
    assert measured([point_of(0.9, LEVEL_NOT_REACHED)])[1] == [2]
    assert measured([point_of(0.9)], replaces_void=True)[1] == [2]
    assert measured([point_of(0.9)], wait_s=0.0)[1] == [2]
    assert measured([point_of(0.9)], pid=None)[1] == [2]
    assert measured([point_of(0.9)], stopped=(StopReason.ENGINE_DIED,))[1] == [2]
