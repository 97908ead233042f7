"""The list of stored runs."""

import json
from dataclasses import replace
from functools import partial

import pytest

from servebench.analysis.estimate import best_level
from servebench.cli.main import dispatch
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.report.screens.listing import LIST_COLUMNS, list_blocks, run_list
from servebench.store.overview import listed_rows
from servebench.store.studies import load_outputs, number_runs
from support.screens import screen_of
from support.studies import SimulatedEngine, SimulatedLoad

ROW = (SimulatedEngine(), SimulatedLoad(levels=(1,), requests=10))


def lines_of(outputs, width=80, **more):
    """Return what a terminal of some width shows of the studies of a folder, as lines; without a width, what a file has."""
    stored = load_outputs(outputs, partial(listed_rows, columns=LIST_COLUMNS))
    blocks = list_blocks(stored, number_runs(stored), width=width, **more)
    return [line.rstrip() for line in screen_of(blocks, width or 80, soft_wrap=width is None).splitlines()]


@pytest.mark.parametrize(("width", "most", "shown"), [(80, 4, 4), (80, 1, 2), (80, None, 6), (None, None, 6)])
def test_a_terminal_shows_the_newest_runs_with_their_numbers(make_study, width, most, shown):
    for name in ("one", "two", "three"):
        outputs = make_study(ROW, ROW, name=name).parent
    lines = lines_of(outputs, width, most=most)
    numbers = [int(words[0]) for words in map(str.split, lines) if words[0].isdigit() and "older" not in words]
    assert numbers[-shown:] == list(range(7 - shown, 7))
    text = "\n".join(lines)
    assert ("--all" in text) == (shown < 6)
    assert f"{6 - shown} older" in text or shown == 6
    assert width is None or max(map(len, lines)) <= width


def test_a_list_reads_all_columns_that_it_shows(make_study):
    levels = (ROW[0], replace(ROW[1], levels=(1, 4)))
    outputs = make_study(ROW, levels).parent
    few, every = (load_outputs(outputs, partial(listed_rows, **own)) for own in ({"columns": LIST_COLUMNS}, {}))
    assert run_list(few, number_runs(few)) == run_list(every, number_runs(every))


@pytest.mark.parametrize("width", [40, 50, 60])
def test_a_narrow_list_says_which_run_each_line_is(make_study, width):
    """Other columns are left out; the number and the name of a run are what other commands take."""
    found = lines_of(make_study(ROW, (replace(ROW[0], name="beta"), ROW[1])).parent, width)
    assert max(map(len, found)) <= width
    heads = found[0].split()
    assert {"#", "study", "run", "status"} <= set(heads)
    rows = [line.split() for line in found if line.split()[:1] in (["1"], ["2"])]
    assert [row[0] for row in rows] == ["1", "2"]
    assert all("finished" in row for row in rows)
    assert "beta" in "".join(rows[1])


LONG = "a_rather_long_name_of_a_study_that_somebody_chose_for_reasons_of_their_own"


@pytest.mark.parametrize("width", [70, 80, 100, 120, 160, 240])
def test_long_names_never_cut_or_break_the_other_columns(make_study, width):
    path = make_study(ROW, (replace(ROW[0], name=f"another_{LONG}"), ROW[1]), name=LONG)
    found = lines_of(path.parent, width)
    assert max(map(len, found)) <= width
    rows = [line.split() for line in found if line.split()[:1] in (["1"], ["2"])]
    assert [row.count("finished") for row in rows] == [1, 1]
    assert all("1 valid" in " ".join(row) for row in rows)
    heads = found[0].split()
    assert heads[:4] == ["#", "study", "run", "when"]
    # the names are whole, in one line or in several
    start = found[0].index("study")
    assert "".join(line[start : found[0].index("run")].strip() for line in found[2:-1]).startswith(LONG)


def make_tune(make_study, candidates):
    tune = make_study(*[ROW] * candidates, name="1124-5it_tune-vllm")
    state = json.loads((tune / "study.json").read_text())
    (tune / "study.json").write_text(json.dumps(state | {"words": ["tune", "engine=vllm"]}))
    return tune


def test_a_tune_is_one_line_unless_its_candidates_are_asked_for(make_study):
    make_study(ROW, name="before")
    tune = make_tune(make_study, 3)

    def numbers(**more):
        found = lines_of(tune.parent, 100, **more)
        return [line.split()[0] for line in found if line[:4].strip()[:1].isdigit()]

    assert numbers() == ["1", "2", "3", "4"]
    assert numbers(candidates=False) == ["1", "2-4"]
    (line,) = [line for line in lines_of(tune.parent, 100, candidates=False) if "1124-5it " in line and "2-4" in line]
    assert "3 candidates" in line
    assert "3 valid" in line
    # it counts as one of the newest
    assert numbers(candidates=False, most=2) == ["1", "2-4"]


@pytest.mark.parametrize(
    ("words", "lines"), [([], 1), (["--all"], 2), (["study=1124-5it"], 2), (["study=*-vllm"], 2), (["engine=alpha"], 1)]
)
def test_ls_finds_a_study_by_its_short_id_and_shows_candidates_where_a_study_is_named(make_study, capsys, words, lines):
    tune = make_tune(make_study, 2)
    assert dispatch(["ls", *words, "--outputs", str(tune.parent)]) == 0
    found = [line for line in capsys.readouterr().out.splitlines() if line.strip()[:1].isdigit()]
    assert len(found) == lines
    assert dispatch(["ls", *words, "--json", "--outputs", str(tune.parent)]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_the_best_of_a_run_is_the_mean_over_its_starts_and_not_the_luckiest():
    def row(level, start, value, verdict="valid"):
        return PointRow(
            concurrency=level, start_id=start, output_throughput_tok_s=value, ttft_ms_p50=10.0, verdict=verdict
        )

    rows = [row(4, "a", 90.0), row(4, "b", 40.0), row(1, "a", 61.0), row(1, "b", 62.0), row(8, "a", 999.0, "doubtful")]
    best = best_level(rows)
    assert (best.level, best.points) == (Level(1), 2)
    assert best.value == pytest.approx((61 * 62) ** 0.5)
    # two repeats of one start are one value
    assert best_level([*rows[:1], *rows[:1], rows[1]]).value == pytest.approx(60.0)
    # what one of three starts has is part of their spread, as in a comparison
    assert best_level([*rows, row(8, "b", 100.0), row(8, "c", 100.0), row(8, "d", 9.0, "void")]).points == 3
    assert best_level(rows[-1:]).level == Level(8)
    assert best_level([]) is None
