"""What a study with `study.until=decided` has decided is what every screen says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from servebench.analysis.answer.model import CaveatKind, Purpose
from servebench.analysis.answer.next_steps import decide_step
from servebench.analysis.conclude import Options, conclude
from servebench.analysis.decided import StudyDecision, decide_study, seconds_besides
from servebench.analysis.recommendation.rules import load_rules
from servebench.analysis.verdict.model import (
    EQUAL,
    METRICS,
    NOT_COMPARED,
    OPEN,
    SLOWER,
    Comparison,
    ComparisonRow,
)
from servebench.analysis.warnings.catalog import NOT_STATIONARY
from servebench.contracts.level import Level
from servebench.contracts.settings import StudySettings
from servebench.report.wording.answer import sentence_of
from servebench.report.wording.comparison import summary_of, text_of
from servebench.report.wording.decisions import round_line, standing_of
from servebench.store import studies as read
from support.studies import SimulatedEngine, SimulatedLoad, with_columns

A, B, C = "study/00_a_unique", "study/01_b_unique", "study/02_c_unique"
SECONDS = {A: 10.0, B: 20.0, C: 40.0}


def engine(name, slow=1.0, **more):
    return SimulatedEngine(**{"name": name, "slow": slow, "spread": 0.05, "drift_sd": 0.003, "run_sd": 0.003, **more})


def load(starts, *, margin="3%", config=None, **more):
    study = {"study.until": "decided", "study.margin": margin, "study.budget": "60m"}
    return SimulatedLoad(
        **{"levels": (4,), "requests": 40, "starts": starts, "config": {**study, **(config or {})}, **more}
    )


def conclusions(path, **options):
    """What the last screen, `compare` and `recommend` make of a stored study."""
    study = read.load_study(path)
    decision = decide_study(study)
    found = conclude(study.runs, [study], Options(rules=load_rules(None), **options))
    (batch,) = [one for one in found.recommendations if one.use_case.name == "batch"]
    return decision, found.answer.workloads[0], found.answer.comparisons, batch


def test_few_starts_that_decide_are_a_verdict_on_every_screen(make_study):
    path = make_study((engine("a"), load(4)), (engine("b", 1.15), load(4, seed=1)))
    decision, workload, (compared,), batch = conclusions(path)
    assert decision.pairs[0].levels == {Level(4): "slower"}
    assert (workload.leads[0].clear, workload.leads[0].verdict, workload.leads[0].best) == (True, True, "a")
    assert (compared.result, compared.margin) == ("slower", 0.03)
    assert (batch.outcome, batch.best.entrant.run.run_id) == ("best", "study/00_a_unique")
    assert batch.lead == pytest.approx(workload.leads[0].size)


@pytest.mark.parametrize(("starts", "requests", "open_levels", "more"), [
    (1, 8, (1, 4), 2), (2, 8, (1, 4), 1), (3, 8, (), None), (1, 3, (), None),
])  # fmt: skip
def test_a_level_of_few_requests_is_open_until_its_starts_have_enough(make_study, starts, requests, open_levels, more):
    of = {"levels": (1, 4), "requests": requests}
    path = make_study((engine("a"), load(starts, **of)), (engine("b", 1.5), load(starts, seed=1, **of)))
    (pair,) = decide_study(read.load_study(path)).pairs
    assert (pair.open_levels, pair.starts_needed) == (tuple(map(Level, open_levels)), more)
    assert pair.answered is (starts == 3)


@pytest.mark.slow
@pytest.mark.parametrize(("margin", "verdict", "clear"), [("2%", SLOWER, True), ("8%", EQUAL, False)])
def test_the_margin_of_the_study_is_that_of_every_screen(make_study, margin, verdict, clear):
    """A difference of 4% matters to a study whose margin is 2%, though it is below the usual 5%."""
    path = make_study((engine("a"), load(6, margin=margin)), (engine("b", 1.04), load(6, margin=margin, seed=1)))
    decision, workload, (compared,), batch = conclusions(path)
    assert decision.pairs[0].levels == {Level(4): verdict}
    assert workload.leads[0].clear is clear
    assert workload.columns[0].cells[Level(4)].best is clear
    assert compared.result is verdict
    # the rules of `recommend` have a margin of their own, 5%
    assert batch.outcome == "no clear difference"


def test_the_other_metrics_are_what_the_last_look_shows(make_study):
    """TTFT before six starts says nothing."""
    path = make_study((engine("a"), load(4)), (engine("b", 1.1), load(4, seed=1)))
    decision, _, (compared,), _ = conclusions(path)
    (pair,) = decision.pairs
    assert (pair.first.result, compared.first.result, compared.starts_needed) == (SLOWER, SLOWER, None)
    rows = {row.metric.name: row for row in compared.rows}
    assert {name for name, row in rows.items() if row.result == "slower"} == {
        "output_throughput_tok_s", "tpot_ms_p50", "e2e_ms_p50",
    }  # fmt: skip
    assert rows["ttft_ms_p50"].result == OPEN
    assert {row.looked for row in rows.values() if row.difference} == {pair.starts_looked}


def test_an_open_decision_is_open_on_every_screen(make_study):
    wild = {"run_sd": 0.05}
    path = make_study((engine("a", **wild), load(2)), (engine("b", 1.04, **wild), load(2, seed=1)))
    decision, workload, (compared,), batch = conclusions(path)
    assert decision.pairs[0].levels == {Level(4): OPEN}
    assert not workload.leads[0].clear
    assert compared.result == "not enough data"
    assert summary_of(compared).startswith("not enough data")
    assert batch.outcome == "no clear difference"


def test_with_unequal_settings_nothing_is_marked_as_the_best(make_study):
    path = make_study((engine("a"), load(2)), (engine("b", 1.2), load(2, seed=1, config={"engine.dtype": "fp8"})))
    decision, workload, (compared,), batch = conclusions(path)
    assert compared.result == "unequal_settings"
    assert [one.key for one in decision.pairs[0].mattering] == ["engine.dtype"]
    assert (workload.leads[0].clear, workload.leads[0].verdict) == (True, False)
    assert not any(cell.best for column in workload.columns for cell in column.cells.values())
    assert (batch.outcome, batch.sureness, batch.lead is None) == ("provisional", "likely", False)


def test_what_is_decided_by_doubtful_points_is_provisional_until_it_is_accepted(make_study):
    doubts = [NOT_STATIONARY.issue("x")]
    path = make_study((engine("a"), load(2)), (engine("b", 1.2), load(2, seed=1)), doubts=doubts)
    decision, workload, (compared,), batch = conclusions(path)
    assert decision.pairs[0].levels == {Level(4): "slower"}
    assert (compared.result, compared.rows[0].result, compared.rows[0].competes) == ("not enough data", "slower", False)
    assert summary_of(compared).startswith("provisional: ")
    assert workload.leads[0].codes == ("not_stationary",)
    assert batch.outcome == "provisional"
    assert conclusions(path, with_doubtful=True)[2][0].result == "slower"


def test_of_three_engines_two_are_tied(make_study):
    runs = [
        (engine(name, slow, run_sd=0.001), load(4, seed=i))
        for i, (name, slow) in enumerate((("a", 1.0), ("b", 1.001), ("c", 1.2)))
    ]
    decision, workload, compared, batch = conclusions(make_study(*runs))
    verdicts = {(one.baseline, one.candidate): one.levels[Level(4)] for one in decision.pairs}
    assert verdicts["a", "c"] == verdicts["b", "c"] == "slower"
    assert verdicts["a", "b"] in (OPEN, EQUAL)
    assert not workload.leads[0].clear
    assert len(workload.leads[0].tied) == 1
    assert "ahead" not in sentence_of(workload)
    assert not any(cell.best for column in workload.columns for cell in column.cells.values())
    assert [one.result for one in compared].count("slower") == 2
    assert batch.outcome == "no clear difference"


def test_a_start_whose_id_is_no_time_costs_nothing_that_is_known(make_study):
    study = read.load_study(make_study((engine("a"), load(2)), (engine("b", 1.1), load(2, seed=1))))
    assert decide_study(study).engine_s > 0
    foreign = replace(study, runs=tuple(with_columns(run, start_id="first") for run in study.runs))
    assert decide_study(foreign).engine_s == 0


def test_what_is_said_of_all_leads_does_not_advise_what_has_been_done(make_study):
    """More starts change nothing about different settings or warnings."""
    fp8 = {"engine.dtype": "fp8"}
    unequal = make_study((engine("a"), load(2)), (engine("b", 1.2), load(2, seed=1, config=fp8)), name="unequal")
    doubts = [NOT_STATIONARY.issue("x")]
    doubtful = make_study((engine("a"), load(2)), (engine("b", 1.2), load(2, seed=1)), name="doubtful", doubts=doubts)
    for path in (unequal, doubtful):
        study = read.load_study(path)
        found = conclude(study.runs, [study]).answer
        assert found.workloads[0].leads[0].clear
        assert not any(one.kind is CaveatKind.NO_VERDICT_YET for one in found.caveats)


def test_unequal_settings_refuse_what_is_decided(make_study):
    config = {"engine.dtype": "fp8"}
    study = read.load_study(make_study((engine("a"), load(2)), (engine("b", 1.2), load(2, seed=1, config=config))))
    found = decide_study(study)
    (pair,) = found.pairs
    assert pair.first.result is SLOWER
    assert "engine.dtype" in standing_of(pair)
    (fair,) = decide_study(study, varying="engine.dtype").pairs
    assert (fair.first.result, fair.mattering) == (SLOWER, ())
    assert round_line(found, 2) != round_line(replace(found, pairs=(fair,)), 2)
    (step,) = (one for one in conclude(study.runs, [study]).answer.next_steps if Purpose.ACCEPT in one.purposes)
    assert step.command.endswith("--varying 'engine.dtype'")
    accepted = conclude(study.runs, [study], Options(varying="engine.dtype")).answer
    assert not any(Purpose.ACCEPT in one.purposes for one in accepted.next_steps)


def test_earlier_starts_decide_after_the_first_round(make_study):
    earlier = make_study((engine("a"), load(60, seed=4)), (engine("b", 1.2), load(60, seed=5)), name="earlier")
    study = read.load_study(make_study((engine("a"), load(1)), (engine("b", 1.2), load(1, seed=1))))
    stored = read.load_study(earlier).runs
    (pair,) = decide_study(study, stored).pairs
    assert (pair.first.result, pair.starts_looked, pair.first.method.earlier) == (SLOWER, 1, 120)
    (alone,) = decide_study(study).pairs
    assert (alone.answered, alone.starts_needed, alone.first.difference.p) == (False, 2, None)
    found = conclude(study.runs, [study], earlier=stored).answer
    assert found.workloads[0].leads[0].verdict
    assert any(one.kind is CaveatKind.BY_EARLIER for one in found.caveats)


def open_pair(baseline, candidate, have, needed):
    """A pair that is open after so many starts, with those that would decide it."""
    row = ComparisonRow(level=Level(4), metric=METRICS[0], baseline=1.0, candidate=1.0, looked=have)
    first = replace(row, overall=True)
    return Comparison(
        baseline=baseline, candidate=candidate, ids=(baseline, candidate), margin=0.03, rows=(row,), first=first,
        starts_needed=needed,
    )  # fmt: skip


def decision_of(*pairs, ended=True):
    return StudyDecision(
        study_id="study",
        pairs=pairs,
        settings=StudySettings(until="decided"),
        engine_s=100.0,
        budget_s=100.0,
        start_seconds=SECONDS,
        labels={},
        ended=ended,
    )


@pytest.mark.parametrize(
    ("pairs", "more"),
    [
        ([], None),
        ([open_pair(A, B, 4, 6)], (2, 60.0)),
        ([open_pair(A, B, 5, 6)], (1, 30.0)),
        ([open_pair(A, B, 4, 24)], (20, 600.0)),
        ([open_pair(A, B, 4, 30)], None),
        ([open_pair(A, B, 4, None)], None),
        ([open_pair(A, B, 24, 24)], None),
        ([open_pair(A, B, 4, 6), open_pair(A, C, 4, 8)], (4, 40.0 + 40.0 + 160.0)),
        ([open_pair(A, B, 4, 6), open_pair(A, C, 4, 30)], (2, 20.0 + 40.0 + 80.0)),
    ],
)
def test_the_starts_that_would_decide_and_their_engine_time(pairs, more):
    assert decision_of(*pairs).more_starts() == more


def test_a_study_that_has_ended_offers_the_command_that_decides():
    """With a little more than the time that it predicts: a round that does not fit is not begun."""
    pair = open_pair(A, B, 4, 24)
    step = decide_step(decision_of(pair), "last")
    assert (step.command, step.seconds, step.continues) == ("servebench resume last --budget 11m", 600.0, False)
    assert decide_step(decision_of(pair, ended=False), "last") is None
    assert decide_step(decision_of(open_pair(A, B, 4, 30)), "last") is None


def test_more_budget_lifts_the_most_starts_and_keeps_what_was_decided(make_study):
    """A look that was the last one stays one."""
    wild = {"run_sd": 0.05}
    config = {"study.starts": 5}
    path = make_study(
        (engine("a", **wild), load(8, config=config)), (engine("b", 1.01, **wild), load(8, seed=1, config=config))
    )
    study = read.load_study(path)
    planned, going_on = (
        decide_study(replace(study, state={**study.state, "budget_s": budget})) for budget in (None, 7200.0)
    )
    assert (planned.budget_s, going_on.budget_s) == (3600.0, 7200.0)
    assert [found.pairs[0].starts_looked for found in (planned, going_on)] == [5, 8]
    for odd in (-1, "x", float("nan"), float("inf")):
        assert decide_study(replace(study, state={**study.state, "budget_s": odd})).budget_s == 3600.0


VOID_NAMES = {"once": "c4-r5", "twice": "c4-r5-a1", "three times": "c4-r5-a2"}


def with_void(path, name, *, repeat=5, levels=(4,)):
    """A stored study in which a point of the second run is void, after so many attempts."""
    study = read.load_study(path)
    rows = [
        replace(row, verdict="void", doubts=("errors",), point=name)
        if row.repeat == repeat and row.concurrency in levels
        else row
        for row in study.runs[1].point_rows
    ]
    return replace(study, runs=(study.runs[0], replace(study.runs[1], rows=lambda: rows)))


@pytest.mark.parametrize(
    ("tried", "verdict", "said"),
    [
        ("once", OPEN, "another start may replace it"),
        ("twice", OPEN, "another"),
        ("three times", NOT_COMPARED, "3"),
    ],
)
def test_a_void_point_keeps_a_level_open_until_the_third(make_study, tried, verdict, said):
    """The starts before it are shown all the same, and other levels are what they are."""
    wild = {"run_sd": 0.05}
    path = make_study(
        (engine("a", **wild), load(6, levels=(2, 4))), (engine("b", 1.02, **wild), load(6, levels=(2, 4), seed=1))
    )
    whole, found = decide_study(read.load_study(path)), decide_study(with_void(path, VOID_NAMES[tried]))
    assert whole.pairs[0].levels == {Level(2): OPEN, Level(4): OPEN}
    assert found.pairs[0].levels == {Level(2): OPEN, Level(4): verdict}
    assert found.pairs[0].open_levels == ((Level(2), Level(4)) if verdict is OPEN else (Level(2),))
    (throughput,) = [one for one in found.pairs[0].rows if one.level == Level(4) and one.metric is METRICS[0]]
    assert (throughput.looked, throughput.starts.baseline.size) == (5 if verdict is OPEN else 6, 5)
    assert said in text_of(throughput.reasons)
    assert "errors" in text_of(throughput.reasons)
    # attempts that have no row any more ran, too
    assert (found.engine_s > whole.engine_s) == (tried != "once")


@pytest.mark.parametrize(("name", "verdict"), [("c4-r0", OPEN), ("c4-r0-a2", NOT_COMPARED)])
def test_a_level_whose_first_start_is_void_has_no_numbers(make_study, name, verdict):
    path = make_study((engine("a"), load(1)), (engine("b", 1.02), load(1, seed=1)))
    (pair,) = decide_study(with_void(path, name, repeat=0)).pairs
    assert pair.levels == {Level(4): verdict}
    assert [one.effect for one in pair.rows] == [None]


def test_what_was_decided_before_a_void_point_stays_decided_on_every_screen(make_study):
    path = make_study((engine("a"), load(3)), (engine("b", 1.2), load(3, seed=1)))
    study = with_void(path, "c4-r2-a2", repeat=2)
    decision = decide_study(study)
    assert decision.pairs[0].levels == {Level(4): "slower"}
    (compared,) = conclude(study.runs, [study]).answer.comparisons
    assert compared.result == "slower"
    assert {row.metric.name for row in compared.rows if row.result == "slower"} == {
        "output_throughput_tok_s",
        "tpot_ms_p50",
        "e2e_ms_p50",
    }


@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [
        ([[(20, 30), (25, 40)]], 0),  # void, and measured again by the same start
        ([[(70, 80)], [(82, 90)]], 18),  # the last points of a start
        ([[(90, 99), (95, 110)], [(112, 120)]], 20 + 28),  # all points of another start
        ([[(55, 65), (60, 70)]], 10),
    ],
)
def test_what_other_attempts_replaced_took_its_time_once(attempts, seconds):
    assert seconds_besides([np.array(one, float) for one in attempts], [(0.0, 60.0)], 20.0) == seconds
