"""Rounds of a study that ends when it has decided, with runs that only return an outcome and decisions that the test makes."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from servebench.analysis.decided import StudyDecision
from servebench.analysis.verdict.model import EQUAL, FASTER, OPEN, THROUGHPUT, Comparison, ComparisonRow
from servebench.config import Job
from servebench.contracts.events import Notice, StartsChosen
from servebench.contracts.level import Level
from servebench.contracts.point_id import PointId
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt, Point, RunOutcome
from servebench.contracts.settings import LoadSettings, StudySettings
from servebench.contracts.turns import Turn
from servebench.load.plan.levels import plan_levels
from servebench.run.prior import PriorProgress, levels_given_up, without_void
from servebench.run.session import RunTask
from servebench.run.turns import LocalExecutor, follow
from servebench.store.layout import StudyFolder
from servebench.store.state import StudyState, write_study
from servebench.study import decided
from servebench.study.resume import StoredRun
from servebench.util.errors import ConfigError
from support.orchestration import Recorder, no_context
from support.settings import run_settings

VOID = Doubt(code="errors", message="m", remedy="r", void=True)
NAMES = ("00_a", "01_b")


def point(name, void=False):
    return Point(row=PointRow(point=name), doubts=(VOID,) if void else ())


def pair_of(ids, *rows):
    """A pair whose first question is open as long as a row is."""
    first = next((row for row in rows if row.result is OPEN), rows[0])
    return Comparison(baseline=ids[0], candidate=ids[1], ids=(ids[0], ids[1]), margin=0.03, rows=rows, first=first)


class Runs:
    """Executes nothing. The points with the names in `void` are void; all levels stay open until both runs have `starts`."""

    def __init__(self, folder, monkeypatch, *void, starts=2, budget_s=1000.0):
        self.folder, self.void, self.starts, self.budget_s = folder, void, starts, budget_s
        self.calls, self.ended, self.events = [], [], Recorder()
        self.points = {name: {} for name in NAMES}
        monkeypatch.setattr(decided, "decide_study", lambda *_: self._decision())
        monkeypatch.setattr(decided, "load_study", lambda *_: None)
        monkeypatch.setattr(decided, "load_outputs", lambda *_: [])

    def _decision(self):
        rows = []
        for level in ("c1", "c4"):
            found = [[one for one in own.values() if one.id.level == level] for own in self.points.values()]
            done = min(map(len, found)) >= self.starts and not any(
                one.verdict == "void" for own in found for one in own
            )
            row = ComparisonRow(level=Level(int(level[1:])), metric=THROUGHPUT, baseline=None, candidate=None)
            rows.append(row.judged(FASTER if done else OPEN))
        ids = [f"s/{name}" for name in NAMES]
        return StudyDecision(
            study_id="s", pairs=(pair_of(ids, *rows),),
            settings=StudySettings(until="decided"), engine_s=10.0 * len(self.calls), budget_s=self.budget_s,
            start_seconds=dict.fromkeys(ids, 10.0), labels=dict.fromkeys(ids, "x"),
        )  # fmt: skip

    def _execute(self, requests):
        (request,) = requests
        task, turn = request.task, request.turn
        own = dict(task.earlier.points)
        if not turn.last:
            listed = plan_levels(task.job.settings.load, 0, 24)
            due = [one.id for one in listed if turn.includes(one.id) and one.id not in own]
            for one in due:
                name = one.with_attempt(task.earlier.attempts.get(one, 0)).format()
                own[one] = point(name, f"{task.name[-1]} {name}" in self.void)
            self.calls.append((task.name[-1], *(str(own[one].id) for one in due)))
        self.points[task.name] = own
        return [RunOutcome(run_id=f"s/{task.name}", status="finished", points=tuple(own.values()))]

    def go(self, earlier=None, budget_s=None):
        settings = run_settings(load=LoadSettings(name="l", concurrency=(1, 4)), study=StudySettings(until="decided"))
        write_study(self.folder, StudyState(study_id="s", words=(), runs=NAMES, budget_s=budget_s))
        known = earlier or {}
        tasks = [RunTask(name, Job((), settings, {}), known.get(name, PriorProgress())) for name in NAMES]
        self.points |= {name: dict(one.points) for name, one in known.items()}
        policy = decided.UntilDecided(self.folder, tasks, lambda name, _: self.ended.append(name), self.events)
        assert not follow(policy, LocalExecutor(no_context, self._execute))
        assert self.ended == list(NAMES)
        return self.calls


@pytest.fixture
def folder(tmp_path):
    study = StudyFolder(tmp_path / "s")
    study.path.mkdir()
    return study


ROUNDS = [("a", "c1-r0", "c4-r0"), ("b", "c1-r0", "c4-r0"), ("b", "c1-r1", "c4-r1"), ("a", "c1-r1", "c4-r1")]


@pytest.mark.parametrize(
    ("void", "calls"),
    [
        ((), ROUNDS),
        (("b c4-r0",), [*ROUNDS[:2], ("b", "c4-r0-a1"), *ROUNDS[2:]]),
        (("b c4-r0", "b c4-r0-a1"), [*ROUNDS[:2], ("b", "c4-r0-a1"), ("b", "c4-r0-a2"), *ROUNDS[2:]]),
        (("a c1-r1", "b c4-r1"), [*ROUNDS, ("b", "c4-r1-a1"), ("a", "c1-r1-a1")]),
    ],
)  # fmt: skip
def test_another_start_replaces_a_void_point_in_the_same_round(folder, monkeypatch, void, calls):
    assert Runs(folder, monkeypatch, *void).go() == calls


@pytest.mark.parametrize(
    ("pays", "budget_s", "rounds"), [(True, 1000.0, 2), (False, 1000.0, 1), (False, None, 2), (True, 30.0, 1)]
)
def test_a_chosen_number_of_starts_is_one_where_the_first_takes_long_or_no_other_fits(
    folder, monkeypatch, pays, budget_s, rounds
):
    """Without a budget in its state `study.until=decided` was asked for: it has two."""
    study = Runs(folder, monkeypatch, budget_s=budget_s or 1000.0)
    monkeypatch.setattr(decided, "load_study", lambda *_: SimpleNamespace(runs=()))
    monkeypatch.setattr(decided, "weigh_starts", lambda *_: StartsChosen(engine="vllm", start_s=300.0, pays=pays))
    assert study.go(budget_s=budget_s) == ROUNDS[: 2 * rounds]


def test_a_level_that_is_void_three_times_is_left_as_it_is(folder, monkeypatch):
    """The run measures its other levels."""
    void = ("b c4-r0", "b c4-r0-a1", "b c4-r0-a2")
    runs = Runs(folder, monkeypatch, *void)
    assert runs.go()[:6] == [
        *ROUNDS[:2], ("b", "c4-r0-a1"), ("b", "c4-r0-a2"), ("b", "c1-r1"), ("a", "c1-r1", "c4-r1")
    ]  # fmt: skip
    assert not any(call[0] == "b" and "c4" in " ".join(call[1:]) for call in runs.calls[5:])


def test_a_void_point_is_replaced_within_the_budget(folder, monkeypatch):
    runs = Runs(folder, monkeypatch, "b c4-r0", budget_s=25.0)
    assert ("b", "c4-r0-a1") not in runs.go()
    assert any(one.kind == "point_left" for one in runs.events.of(Notice))


@pytest.mark.parametrize(("starts", "said"), [(2, 1), (1, 0)])
def test_the_budget_is_mentioned_where_something_is_open(folder, monkeypatch, starts, said):
    """One start of each decides, or leaves all open; a second round fits into neither."""
    runs = Runs(folder, monkeypatch, starts=starts, budget_s=20.0)
    assert runs.go() == ROUNDS[:2]
    assert sum(one.kind == "budget_spent" for one in runs.events.of(Notice)) == said


def test_a_void_point_that_an_earlier_process_left_is_replaced(folder, monkeypatch):
    first = PointId("c4", 0)
    stored = {PointId("c1", 0): point("c1-r0"), first: point("c4-r0", void=True)}
    runs = Runs(folder, monkeypatch)
    assert runs.go({"01_b": PriorProgress(points=stored, attempts={first: 1})})[:2] == [ROUNDS[0], ("b", "c4-r0-a1")]


@pytest.mark.parametrize(
    ("name", "recorded", "kept", "attempts"),
    [("c4-r0", 1, False, 1), ("c4-r0", 2, False, 2), ("c4-r0-a1", 2, False, 2), ("c4-r0-a2", 3, True, 3)],
)
def test_void_points_of_a_turn_are_dropped_until_the_third(name, recorded, kept, attempts):
    first = PointId("c4", 0)
    earlier = PriorProgress(points={first: point(name, void=True)}, attempts={first: recorded})
    turn = Turn(range(0, 1), start=0)
    found = without_void(earlier, turn)
    assert (first in found.points, found.attempts[first]) == (kept, attempts)
    assert levels_given_up(earlier) == ({"c4"} if kept else set())
    assert first in without_void(earlier, Turn(range(1, 2), start=1)).points


def found_open(starts, *names):
    """What is decided when the level of these two runs is open after so many starts; without names nothing is open."""
    row = ComparisonRow(level=Level(1), metric=THROUGHPUT, baseline=1.0, candidate=1.0)
    row = replace(row.judged(OPEN if names else EQUAL), looked=starts)
    ids = [f"s/{name}" for name in names or NAMES]
    return StudyDecision(
        study_id="s", pairs=(pair_of(ids, row),),
        settings=StudySettings(until="decided"), engine_s=100.0, budget_s=100.0, start_seconds={}, labels={},
    )  # fmt: skip


def left(*standings, until="decided"):
    job = Job((), run_settings(study=StudySettings(until=until)), {})
    return [
        StoredRun(name, job, standing=one, execute=one == "unfinished")
        for name, one in zip(("00_a", "01_b", "02_c"), standings, strict=False)
    ]


@pytest.fixture
def open_with(folder, monkeypatch):
    """Call `open_again` for a stored study with this status and these decisions."""

    def call(status, found, remaining, more_s):
        write_study(folder, StudyState(study_id="s", words=(), runs=NAMES, status=status, budget_s=120.0))
        monkeypatch.setattr(decided, "decided_of", lambda _: found)
        runs, budget_s = decided.open_again(folder, remaining, more_s)
        return [run.execute for run in runs], budget_s

    return call


@pytest.mark.parametrize(
    ("status", "standings", "starts", "more_s", "execute", "budget_s"),
    [
        ("finished", ["finished"] * 3, 4, None, [False] * 3, 120.0),
        ("finished", ["finished"] * 3, 4, 60.0, [True, True, False], 160.0),
        # killed before both runs went on: a plain resume takes both, with the budget that is stored
        ("interrupted", ["unfinished", "finished", "finished"], 4, None, [True, True, False], 120.0),
        ("interrupted", ["finished"] * 3, 4, None, [True, True, False], 120.0),
        ("interrupted", ["unfinished", "finished", "finished"], 24, 60.0, [True, True, False], 160.0),
        # nothing is measured against a run that failed
        ("interrupted", ["unfinished", "failed", "finished"], 4, None, [True, False, False], 120.0),
    ],
)
def test_the_runs_in_which_something_is_open_go_on(open_with, status, standings, starts, more_s, execute, budget_s):
    assert open_with(status, found_open(starts, *NAMES), left(*standings), more_s) == (execute, budget_s)


@pytest.mark.parametrize(
    ("found", "remaining", "said"),
    [
        (found_open(4), left("finished", "finished"), "nothing in s is open"),
        (None, left("failed", "failed"), "nothing in s is open"),
        (found_open(4, *NAMES), left("finished", "failed"), "nothing in s is open"),
        (found_open(24, *NAMES), left("finished", "finished"), "has 24 starts of each"),
        (None, left("finished", "finished", until=None), "study.until=decided, which s has not"),
    ],
)
def test_more_budget_that_decides_nothing_is_refused(open_with, found, remaining, said):
    with pytest.raises(ConfigError, match=said):
        open_with("finished", found, remaining, 60.0)


def test_a_start_that_a_killed_study_had_begun_is_finished_before_anything_is_decided(folder, monkeypatch):
    """Otherwise it would end by a look that it would not have made."""
    stored = {"00_a": ("c1-r0", "c4-r0", "c1-r1"), "01_b": ("c1-r0", "c4-r0")}
    earlier = {
        name: PriorProgress(points={PointId.parse(one): point(one) for one in own}) for name, own in stored.items()
    }
    assert Runs(folder, monkeypatch, starts=1).go(earlier) == [("b", "c1-r1", "c4-r1"), ("a", "c4-r1")]


BEGAN_S = 1_800_000_000.0


def in_slices(start_s, level_s, added=(), users=(1, 2, 4, 8), group="g"):
    """The points of a run: of a first start that takes so long, as each level does, and of `added` starts with these levels."""
    rows = []
    for repeat, own in enumerate((users, *added)):
        began_s = BEGAN_S + 1000 * repeat
        for number, one in enumerate(own):
            ends_s = [began_s + start_s + level_s * (number + part) for part in (0, 1)]
            window = dict(zip(("window_start_ns", "window_end_ns"), (int(at * 1e9) for at in ends_s), strict=True))
            start_id = datetime.fromtimestamp(began_s, UTC).isoformat()
            rows.append(PointRow(concurrency=one, repeat=repeat, start_id=start_id, slice_group=group, **window))
    return rows


@pytest.mark.parametrize(
    ("rows", "load", "each"),
    [
        (in_slices(7, 13), {}, 2),
        (in_slices(60, 13), {}, 4),
        # as it was planned, whatever the rule says now
        (in_slices(7, 13, [(1, 2, 4, 8), (1, 2, 4, 8)]), {}, 4),
        (in_slices(60, 13, [(1, 4), (2,)]), {}, 2),
        # a level that was given up
        (in_slices(60, 13, [(4,), (2, 8)]), {}, 2),
        # windows of a clock that stood still
        (in_slices(7, 0), {}, None),
        # it was killed within the second start
        (in_slices(7, 13, [(1,)]), {}, 2),
        # a level that failed in the first start
        (in_slices(7, 13, users=(1, 2, 4)), {}, 2),
        (in_slices(7, 13, users=(1, 4)), {"concurrency": (1, 4)}, 2),
        (in_slices(7, 13), {"while_growing": True}, None),
        (in_slices(7, 13, group=None), {}, None),
        # another program disturbed a level, which was measured without slices
        ([*in_slices(7, 13, group=None)[:1], *in_slices(7, 13)[1:]], {}, 2),
        ([*in_slices(7, 13, group=None)[:3], *in_slices(7, 13)[3:]], {}, None),
        ([], {}, None),
    ],
)
def test_how_many_levels_later_starts_have(rows, load, each):
    settings = LoadSettings(name="l", **{"concurrency": (1, 2, 4, 8), **load})
    found = decided.rotation_of([rows, rows], settings)
    assert (found.each if found else None) == each
    assert found is None or found.levels == tuple(map(Level, settings.concurrency))
    assert decided.rotation_of([rows], settings) is None
