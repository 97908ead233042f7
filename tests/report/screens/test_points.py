"""Cells and notes of tables of points."""

import pytest

from servebench.contracts.point_row import PointRow, columns_shown
from servebench.contracts.results import Doubt, Point
from servebench.report.blocks import Table
from servebench.report.charts.specs import tips_of
from servebench.report.screens.points import cell_text, live_table, points_blocks, repeats_blocks, warning_items
from support.screens import screen_of


def texts(items):
    return [line.text for line in items.lines]


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("ttft_ms_p99", {"ttft_ms_n": 735}, "~120"),
        ("ttft_ms_p99", {"ttft_ms_n": 736}, "123"),
        ("ttft_ms_p95", {"ttft_ms_n": 71}, "~120"),
        ("ttft_ms_p95", {"ttft_ms_n": 72}, "123"),
        ("ttft_ms_p50", {"ttft_ms_n": 3}, "123"),
        ("e2e_ms_p99", {"e2e_ms_n": 400}, "~120"),
        ("e2e_ms_p99_all", {"e2e_ms_n": 700, "requests_ok": 700, "requests_failed": 36}, "123"),
        ("e2e_ms_p99_all", {"e2e_ms_n": 700, "requests_ok": 700, "requests_failed": 35}, "~120"),
        # many gaps of few requests
        ("itl_ms_p99", {"itl_ms_n": 5000}, "~120"),
        ("itl_ms_p99", {"itl_ms_n": 5000, "itl_ms_p99_low": 100.0, "itl_ms_p99_high": 140.0}, "123"),
        # imported from a tool that only says how many requests there were
        ("ttft_ms_p99", {"requests_ok": 5000}, "123"),
        ("itl_ms_p99", {"requests_ok": 5000}, "123"),
    ],
)
def test_a_percentile_of_too_few_requests_is_marked(column, values, text):
    row = PointRow(concurrency=1, **{column: 123.0}, **values)
    assert cell_text(row, column) == text
    *_, note = points_blocks([("run", row)], "report")
    if any(one.name == column for one in columns_shown("report")) and not column.endswith("_all"):
        assert ("~" in note.text) == text.startswith("~")
    if not column.endswith("_all") and column in tips_of("run", [row]):
        assert tips_of("run", [row])[column].startswith("~") == text.startswith("~")


def test_live_points_of_a_long_label_take_a_line_each_at_80_columns():
    row = PointRow(concurrency=32, repeat=2, output_throughput_tok_s=44_250.0, ttft_ms_p50=26.0, requests_failed=12)
    points = [(f"sglang · structured_json {number}", Point(row=row)) for number in range(3)]
    shown = screen_of([live_table(points)]).splitlines()
    assert [line.split(" 32 ")[0].strip() for line in shown[-3:]] == [run for run, _ in points]


def test_live_points_have_the_column_of_their_runs_from_the_first_on():
    point = Point(row=PointRow(concurrency=1, output_throughput_tok_s=43.1))
    assert live_table([("a", point)]).columns[0].title == "run"
    assert live_table([("", point)]).columns[0].title == "load"


def test_a_percentile_that_is_not_known_has_no_mark():
    assert cell_text(PointRow(), "ttft_ms_p99") == "-"


def warned(concurrency, message, repeat=0):
    doubt = Doubt(code="too_few", message=message, remedy="send more")
    return Point(row=PointRow(concurrency=concurrency, repeat=repeat), doubts=(doubt,) if message else ())


def test_a_warning_whose_figures_differ_names_the_level_of_those_it_shows():
    same = [warned(1, "5 requests"), warned(2, "5 requests")]
    assert texts(warning_items(same)) == ["too_few (at 1, 2): 5 requests; send more"]
    different = [warned(1, "5 requests"), warned(2, "4 requests")]
    assert texts(warning_items(different)) == ["too_few (at 1, 2): at 1, 5 requests; send more"]


def test_a_warning_that_needs_no_action_has_none():
    doubt = Doubt(code="shared", message="left out", remedy="", mark=True)
    assert texts(warning_items([Point(row=PointRow(concurrency=1), doubts=(doubt,))])) == ["shared (at 1): left out"]


def test_a_warning_names_the_repeat_of_its_figures():
    twice = [warned(1, "5 requests", 0), warned(1, "5 requests", 1)]
    assert texts(warning_items(twice)) == ["too_few (at 1): 5 requests; send more"]
    for second in ("4 requests", ""):
        lines = texts(warning_items([warned(1, "5 requests", 0), warned(1, second, 1)]))
        assert lines == ["too_few (at 1): at 1, repeat 0, 5 requests; send more"]


@pytest.mark.parametrize(
    ("values", "more", "cells"),
    [
        ([100.0, 110.0, 121.0], {}, ["4", "3", "110 [86.8, 139]"]),
        ([200.0, 202.0], {}, ["4", "2", "201"]),
        ([100.0, 0.0], {}, ["4", "2", "-"]),
        ([100.0], {}, None),
        ([100.0, 90.0], {"verdict": "void"}, None),
    ],
)
def test_a_level_with_several_points_has_their_mean_and_its_interval(values, more, cells):
    """Student's, on logarithms: with two repeats there is none."""
    rows = [
        PointRow(concurrency=4, repeat=at, output_throughput_tok_s=value, **{"verdict": "valid", **more})
        for at, value in enumerate(values)
    ]
    tables = [block for block in repeats_blocks([("", rows)]) if isinstance(block, Table)]
    assert [[cell.text for cell in own[:3]] for table in tables for own in table.rows] == ([cells] if cells else [])


def test_in_an_open_loop_the_mean_of_ttft_is_from_the_schedule_on():
    """The table of points has TTFT from sent."""
    times = {"ttft_ms_p50": 40.0, "ttft_from_schedule_ms_p50": 48.0}
    rows = [PointRow(rate=5.0, repeat=at, verdict="valid", **times) for at in range(3)]
    (table,) = (block for block in repeats_blocks([("", rows)]) if isinstance(block, Table))
    assert table.rows[0][3].text.startswith("48")


def test_repeats_of_embeddings_have_their_own_columns():
    rows = [PointRow(concurrency=2, repeat=n, input_throughput_texts_s=9.0, e2e_ms_p50=5.0 + n) for n in (0, 1)]
    (table,) = (block for block in repeats_blocks([("", rows)]) if isinstance(block, Table))
    assert [one.title for one in table.columns][2:] == ["texts, texts/s", "E2E p50, ms"]
