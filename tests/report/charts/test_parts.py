"""The stacked bars of where TTFT and E2E go: whole, comparable, and with all parts in each tooltip."""

import pytest

from servebench.analysis.time_parts import FIRST, TimeParts
from servebench.contracts.level import Level
from servebench.report.charts import draw
from servebench.report.charts.parts import COLOURS, PANELS_MAX, time_charts, time_note
from servebench.report.parts import RunTimes

PARTS = {"client": 1.0, "network": -2.0, "queue": 81.0, "prefill": 20.0}


def times(name="vllm · unique", parts=PARTS, engine="vllm", **more):
    whole = {**parts, "decode": 95.0, "delivery": -5.0}
    found = [
        TimeParts(level=level, metric=metric, n=n, of=300, parts=own)
        for metric, own in (("TTFT", parts), ("E2E", whole))
        for level in (Level(1), Level(64))
        for n in (300, 5)
    ]
    return RunTimes(name=name, engine=engine, parts=found, tails=(), **more)


def rows(chart):
    return chart.spec["data"]["values"]


def test_a_panel_for_each_run_and_a_whole_bar_for_each_group():
    ttft, e2e = time_charts([times(), times("sglang")])
    assert [chart.title for chart in ttft.charts] == ["vllm · unique", "sglang"]
    assert [one["bar"] for one in rows(ttft.charts[0])] == [
        "1 user, all 300", "1 user, slowest 5", "64 users, all 300", "64 users, slowest 5",
    ]  # fmt: skip
    own = ["client", "network, front end", "queue", "prefill"]
    for chart, names in ((ttft.charts[0], own), (e2e.charts[0], [*own, "decode", "delivery"])):
        for one in rows(chart):
            assert sum(one[name] for name in names) == pytest.approx(1.0, abs=0.001)
            assert min(one[name] for name in names) >= 0
    assert "decode" not in rows(ttft.charts[0])[0], "TTFT has no decode"
    assert rows(e2e.charts[0])[0]["total"] == "190 ms"


def test_the_tooltip_has_all_parts_with_their_real_values():
    """Negative ones, too: -2 ms of 100 ms."""
    (ttft, _) = time_charts([times()])
    bars = ttft.charts[0].spec["layer"][0]["layer"][0]["encoding"]
    titles = {one["title"]: one["field"] for one in bars["tooltip"]}
    assert rows(ttft.charts[0])[0][titles["network, front end"]] == "-2.00 ms (-2.0%)"
    assert set(PARTS) - {"network"} <= set(titles)
    assert "network, front end -2.00 ms (-2.0%)" in ttft.charts[0].words


def test_it_is_drawn_and_says_what_engines_do_not_report():
    runs = [times(parts={"client": 1.0, FIRST: 99.0}, engine="tgi")]
    assert "tgi reports no times of its own" in time_note(runs)
    drawn = draw.svg(draw.framed(time_charts(runs)[0].charts[0], width=330))
    assert "until first token 99%" in drawn
    assert "100 ms" in drawn
    assert COLOURS["client"].lower() in drawn.lower()


def test_no_runs_no_charts_and_many_are_cut():
    assert time_charts([]) == []
    many = [times(str(n)) for n in range(PANELS_MAX + 2)]
    assert len(time_charts(many)[0].charts) == PANELS_MAX
    assert f"first {PANELS_MAX} of {PANELS_MAX + 2} runs" in time_note(many)
