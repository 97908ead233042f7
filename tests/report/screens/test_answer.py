"""The last screen: what it says for one run, several, and many, and that it fits 80 columns."""

import json
from dataclasses import replace

import pytest

from servebench.analysis.answer.model import (
    Answer,
    AnswerCell,
    AnswerColumn,
    Caveat,
    CaveatKind,
    Inequality,
    NextStep,
    Purpose,
    Remark,
    WorkloadAnswer,
)
from servebench.analysis.conclude import Conclusions
from servebench.analysis.warnings.catalog import CATALOG
from servebench.contracts.events import PlanReady, StartsChosen
from servebench.contracts.level import Level
from servebench.report.export.conclusions import as_plain
from servebench.report.screens.answer import answer_blocks
from servebench.report.terminal.words import line_of
from servebench.util.figures import duration
from servebench.util.plain_data import to_json
from support.conclusions import lead_of
from support.screens import screen_of

UNEQUAL = Inequality(
    key="input_tokens_mean",
    title="mean prompt, in tokens",
    values={"319": ("vllm",), "327": ("trtllm",)},
    matters=True,
    reason="why",
    where="unique at 4 users",
)
REMARKS = (
    Remark(code="too_short", meaning="the window is short", remedy="measure longer", places=("all points",)),
    Remark(
        code="imprecise", meaning="the interval is wide", remedy="measure longer", places=("all points",), mark=True
    ),
)


def answer(runs, levels):
    cells = {
        Level(users): AnswerCell(value=1234.5 * users, low=1200.0 * users, high=1300.0 * users, ttft_ms=80.0)
        for users in levels
    }
    doubtful = {Level(users): AnswerCell(value=100.0, verdict="doubtful", codes=("too_short",)) for users in levels}
    known = {"status": "finished", "error": None}
    columns = tuple(
        AnswerColumn(run_id=f"s/{n}", label=f"engine_{n}", colour=n, cells=cells if n else doubtful, **known)
        for n in range(runs)
    )
    facts, at = ("128 in / 32 out",), tuple(map(Level, levels))
    one = WorkloadAnswer(workload="unique", facts=facts, levels=at, columns=columns, leads=())
    step = NextStep(command="servebench x", purposes=(Purpose.CHARTS,), seconds=150.0)
    return Answer(workloads=(one,), remarks=REMARKS, next_steps=(step,))


def screen(found, width=80, **options):
    return screen_of(answer_blocks(found, width=width, **options), width)


@pytest.mark.parametrize("runs", [1, 3, 4, 9, 40])
@pytest.mark.parametrize("levels", [[1], [1, 4, 16], [2**n for n in range(8)]])
def test_every_value_is_shown_whole_within_80_columns(runs, levels):
    text = screen(answer(runs, levels))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert text.count(" ±") == (runs - 1) * len(levels)
    assert all(f"engine_{n}" in text for n in range(runs)) or runs == 1


def test_a_warning_has_its_number_where_it_concerns_a_point_and_its_remedy_with_verbose():
    text = screen(answer(3, [1, 4]))
    assert "doubtful [a]" in text
    assert "[a] the window is short: all points (too_short)" in text
    assert text.count("too_short") == 1
    assert "the interval is wide" not in text
    assert "about 2 min" in text
    full = screen(answer(3, [1, 4]), verbose=True)
    assert "the interval is wide" in full
    assert full.count("measure longer") == 2


def test_three_engines_on_three_workloads_with_all_that_may_follow_fit_one_screen():
    """40 lines at 80 columns, less six for the prompt, the folder and the page of `servebench demo`."""
    one = answer(3, [4, 32])
    codes = ("lock_step", "too_short", "machine_busy", "not_stationary", "client_bound")
    leads = tuple(
        lead_of(0.055, 0.019, 0.092, users=users, best=best, rival=rival, codes=("a",))
        for users, best, rival in ((4, "x", "y"), (32, "y", "x"))
    )
    long = replace(
        one,
        workloads=(replace(one.workloads[0], leads=leads),) * 3,
        remarks=tuple(
            Remark(code=code, meaning=CATALOG[code].meaning, remedy="", places=("a at 4 users",) * 9, points=9, of=18)
            for code in codes
        ),
        caveats=(Caveat(kind=CaveatKind.IMITATED, how="emulated"), Caveat(kind=CaveatKind.ONE_START_EACH)),
        inequalities=(UNEQUAL, UNEQUAL),
        next_steps=(
            NextStep(command="servebench resume last", purposes=(Purpose.FINISH,)),
            NextStep(command="servebench report last --open", purposes=(Purpose.CHARTS,)),
            NextStep(
                command="servebench resume last --better", purposes=(Purpose.BETTER,), count=18, of=18, seconds=300.0
            ),
        ),
    )
    lines = screen(long).splitlines()
    assert len(lines) <= 34
    assert " ".join(" ".join(lines[-2:]).split()).endswith(
        "--better (the 18 points in doubt, twice as long: about 5 min)"
    )
    text = " ".join(" ".join(lines).split())
    assert f"[c] {long.remarks[2].brief}: 9 of 18 points" in text
    assert ("[d]" in text, "2 notes (not_stationary, client_bound)" in text) == (False, True)


@pytest.mark.parametrize("width", [40, 50])
def test_each_row_of_a_narrow_table_names_its_run(width):
    """The time to the first token is left out for it."""
    lines = screen(answer(3, [1, 4]), width).splitlines()
    head = next(line.split() for line in lines if "trust" in line)
    assert (head[0], "TTFT" in head) == ("run", False)
    rows = [line.split() for line in lines if line.startswith("engine_")]
    assert [row[0] for row in rows] == ["engine_0", "engine_1", "engine_2"]


def test_what_is_not_equal_and_matters_has_the_value_of_each_run():
    found = replace(answer(3, [1]), inequalities=(UNEQUAL, replace(UNEQUAL, matters=False, title="a port")))
    lines = screen(found).splitlines()
    folded = " ".join(screen(found, width=50).split())
    assert "Not equal: mean prompt, in tokens (unique at 4 users): 319 (vllm), 327 (trtllm)" in folded
    assert "a port" not in "".join(lines)
    assert "1 intended or harmless difference" in "".join(lines)
    assert "a port (unique at 4 users): 319 (vllm), 327 (trtllm); why" in screen(found, verbose=True, width=160)


def test_a_pipe_gets_all_that_matters_and_the_rest_with_verbose():
    """Twelve lines of settings that are what is compared hid the warnings."""
    meant = replace(UNEQUAL, title="engine.dtype", matters=False, reason="this is what is compared", where="")
    found = replace(answer(3, [1]), inequalities=(UNEQUAL, meant))
    piped, full = screen(found, complete=True, width=160), screen(found, verbose=True, width=160)
    for text in (piped, full):
        assert "mean prompt, in tokens" in text
        assert "the interval is wide: all points (imprecise); measure longer" in text
    assert "engine.dtype" in full
    assert "engine.dtype" not in piped
    assert "more with -v: 1 intended or harmless difference" in piped
    assert "more with -v" not in full


def test_a_wide_interval_is_in_the_trust_and_no_note():
    found = answer(1, [1])
    (column,) = found.workloads[0].columns
    wide = replace(column, cells={Level(1): AnswerCell(value=31.0, low=19.0, high=43.0, wide=True)})
    text = screen(replace(found, workloads=(replace(found.workloads[0], columns=(wide,)),)))
    assert "valid, wide" in text
    assert "imprecise" not in text


def test_a_void_row_has_no_times_and_a_rough_percentile_is_explained():
    found = answer(1, [4, 8])
    (column,) = found.workloads[0].columns
    rough = AnswerCell(value=31.0, ttft_ms=10.0, ttft_ms_p99=2036.0, itl_ms=9.0, e2e_ms=8.0, few_for_p99=True)
    cells = {Level(4): replace(rough, verdict="void"), Level(8): rough}
    text = screen(replace(found, workloads=(replace(found.workloads[0], columns=(replace(column, cells=cells),)),)))
    void, valid, note, *_ = text.splitlines()[2:]
    assert void.split()[2:] == ["void", "-", "-", "-", "-", "void"]
    assert "~2,036" in valid
    assert note.startswith("~ ")


def test_the_answer_as_json_has_its_cells():
    (one,) = json.loads(to_json(as_plain(Conclusions(answer=answer(2, [1])))))["answer"]["workloads"]
    assert one["columns"][1]["cells"]["1"]["value"] == 1234.5


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1 s"), (45, "45 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations_are_estimates(seconds, text):
    assert duration(seconds) == text


def test_a_schedule_in_words():
    labels = {"00": "a", "01": "b"}
    assert line_of(PlanReady(labels=labels, points=8, seconds=300.0)) == "2 runs, 8 points, up to about 5 min"
    assert "after the first point" in line_of(PlanReady(labels={"00": "a"}))
    plan = PlanReady(labels=labels, starts=StartsChosen(budget_s=3600), cost_usd=2.5)
    until = "2 runs: starts are added until there is a verdict, as long as they fit into 60 min"
    assert line_of(plan) == f"{until}, about $2.50 at most"
    imitated = replace(plan, imitated="simulated")
    assert line_of(imitated) == f"{until} of virtual time, about $2.50 at most if they were real"


def test_trust_names_the_levels_that_it_concerns():
    """`doubtful, wide` stood below a column of which one level was doubtful and another one wide."""
    found = answer(2, [1, 4, 16])
    (one,) = found.workloads
    _, last = one.columns
    cells = {
        **last.cells,
        Level(4): replace(last.cells[Level(4)], verdict="doubtful", codes=("too_short",)),
        Level(16): replace(last.cells[Level(16)], wide=True),
    }
    wide = {**last.cells, Level(16): replace(last.cells[Level(16)], wide=True)}
    for own, said in (
        (cells, ["doubtful at 4 [a]", "wide at 16"]),
        (wide, ["valid, wide at 16"]),
        (last.cells, ["valid"]),
    ):
        columns = (one.columns[0], replace(last, cells=own))
        lines = screen(replace(found, workloads=(replace(one, columns=columns),))).splitlines()
        (at,) = [index for index, line in enumerate(lines) if line.startswith("trust")]
        assert lines[at].split(None, 1)[1].startswith("doubtful [a]")
        assert [line.split("  ")[-1].strip() for line in map(str.rstrip, lines[at : at + len(said)])] == said


def test_a_stretch_that_is_left_out_of_numbers_shown_is_on_the_first_screen():
    meaning = CATALOG["machine_shared"].meaning
    shared = Remark(code="machine_shared", meaning=meaning, remedy="", places=("vllm at 4 users",), mark=True)
    text = screen(replace(answer(2, [4]), remarks=(*REMARKS, shared)))
    assert "left out of all estimates: vllm at 4 users (machine_shared)" in " ".join(text.split())
    (hidden,) = [line for line in text.splitlines() if line.startswith("more with -v")] or [""]
    assert "machine_shared" not in hidden
