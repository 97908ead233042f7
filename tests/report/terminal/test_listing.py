"""The list of stored runs."""

import io

import pytest
from rich.text import Text

from servebench.analysis.estimate import best_level
from servebench.contracts.point_row import PointRow
from servebench.report.terminal import listing
from servebench.report.terminal.tables import CleanConsole
from servebench.store.overview import listed_rows
from servebench.store.studies import load_outputs, number_runs
from support.studies import SimulatedEngine, SimulatedLoad

ROW = (SimulatedEngine(), SimulatedLoad(levels=(1,), requests=10))


@pytest.fixture
def printed(make_study, monkeypatch):
    """Print the runs of three studies of two runs each, as a terminal of 80 columns or another file shows them."""
    for name in ("one", "two", "three"):
        outputs = make_study(ROW, ROW, name=name).parent

    def print_runs(terminal, most):
        class File(io.StringIO):
            def isatty(self):
                return terminal

        file = File()
        monkeypatch.setattr(listing, "console", lambda: CleanConsole(file, width=80, soft_wrap=not terminal))
        studies = load_outputs(outputs, listed_rows)
        listing.list_runs(studies, as_json=False, numbers=number_runs(outputs), most=most)
        return Text.from_ansi(file.getvalue()).plain

    return print_runs


@pytest.mark.parametrize(("terminal", "most", "shown"), [(True, 4, 4), (True, 1, 2), (True, None, 6), (False, 4, 6)])
def test_a_terminal_shows_the_newest_runs_with_their_numbers(printed, terminal, most, shown):
    text = printed(terminal, most)
    numbers = [
        int(words[0]) for words in map(str.split, text.splitlines()) if words[0].isdigit() and "older" not in words
    ]
    assert numbers[-shown:] == list(range(7 - shown, 7))
    assert ("--all" in text) == (shown < 6)
    assert f"{6 - shown} older" in text or shown == 6
    assert max(map(len, text.splitlines())) <= 80


def test_the_best_of_a_run_is_the_mean_over_its_starts_and_not_the_luckiest():
    def row(level, start, value, verdict="valid"):
        return PointRow(
            concurrency=level, start_id=start, output_throughput_tok_s=value, ttft_ms_p50=10.0, verdict=verdict
        )

    rows = [row(4, "a", 90.0), row(4, "b", 40.0), row(1, "a", 61.0), row(1, "b", 62.0), row(8, "a", 999.0, "doubtful")]
    best = best_level(rows)
    assert (best.level, best.points) == ("1", 2)
    assert best.value == pytest.approx((61 * 62) ** 0.5)
    # two repeats of one start are one value
    assert best_level([*rows[:1], *rows[:1], rows[1]]).value == pytest.approx(60.0)
    # what one of three starts has is part of their spread, as in a comparison
    assert best_level([*rows, row(8, "b", 100.0), row(8, "c", 100.0), row(8, "d", 9.0, "void")]).points == 3
    assert best_level(rows[-1:]).level == "8"
    assert best_level([]) is None
