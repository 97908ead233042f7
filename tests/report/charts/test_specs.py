"""Charts as data: what is in which panel, in which colour, and what a reader may switch."""

import json
import re

import numpy as np
import pytest

from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.report.charts import draw, specs
from servebench.report.charts.model import METRICS, STATS, Series
from servebench.report.charts.timeline import PARTS, SPANS_MAX, RequestSpan, Timeline, timeline_chart

METRIC = {one.name: one for one in METRICS}


def row(load, value=100.0, **more):
    latencies = {
        f"{name}_ms_{stat}": None if value is None else value * scale
        for name in ("ttft", "tpot", "itl", "e2e")
        for stat, scale in zip(STATS, (1, 2, 3), strict=True)
    }
    fields = {"concurrency": load, "verdict": "valid", "output_throughput_tok_s": value, "tpot_ms_mean": value}
    return PointRow(**{**latencies, **fields, **more})


def series(name, panel="unique", colour=0, loads=(2, 8), **more):
    return Series(name=name, panel=panel, colour=colour, rows=[row(load) for load in loads], **more)


@pytest.fixture
def four():
    return [
        series(name, panel, colour) for colour, name in enumerate(("vllm", "sglang")) for panel in ("unique", "rag")
    ]


def layers(chart, kind):
    marks = ((one, one["mark"]) for one in chart.spec["layer"])
    return [one for one, mark in marks if kind == (mark if isinstance(mark, str) else mark["type"])]


def values(chart):
    return chart.spec["data"]["values"]


def test_a_panel_for_each_workload_and_a_colour_for_each_engine_on_every_chart(four):
    drawn = specs.comparing(four, {})
    assert {one.name for one in drawn} >= {"output_throughput", "ttft", "tpot", "itl", "e2e"}
    for found in drawn:
        assert [chart.title for chart in found.charts] == ["unique", "rag"]
        for chart in found.charts:
            assert {one["run"] for one in values(chart)} == {"vllm", "sglang"}
            (line,) = layers(chart, "line")
            scale = {"domain": ["vllm", "sglang"], "range": list(specs.COLOURS[:2])}
            assert line["encoding"]["color"]["scale"] == scale
            dashes = line["encoding"]["strokeDash"]["scale"]["range"]
            marks = layers(chart, "point")[0]["encoding"]["shape"]["scale"]["range"]
            assert len({tuple(one) for one in dashes}) == len(set(marks)) == 2


def test_series_differ_by_more_than_colour():
    assert len(set(specs.COLOURS)) == len(specs.COLOURS) == 12
    looks = {(specs.SHAPES[i % len(specs.SHAPES)], tuple(specs.DASHES[i % len(specs.DASHES)])) for i in range(12)}
    assert len(looks) == 12
    assert len(specs.GLYPHS) == len(specs.SHAPES)


def test_every_percentile_is_in_a_latency_chart_and_a_parameter_chooses_one(four):
    found = specs.against_load(four, METRIC["ttft"])
    assert tuple(found.stats) == STATS
    assert [values(found.charts[0])[0][f"y{stat}"] for stat in STATS] == [100, 200, 300]
    framed = draw.framed(found.charts[0], percentile="p90")
    assert {one["name"]: one["value"] for one in framed["params"]} == {"stat": "p90", "hidden": []}
    assert specs.VISIBLE in framed["transform"]
    assert found.charts[0].words.startswith("Time to first token (TTFT) p50 (TTFT, ms): vllm 100 at 2 users")


@pytest.mark.parametrize(("limit", "rules"), [(None, 0), (120.0, 1), (5000.0, 0)])
def test_the_slo_is_a_line_or_a_note_where_it_would_flatten_the_others(four, limit, rules):
    chart = specs.against_load(four, METRIC["ttft"], limit).charts[0]
    assert len(layers(chart, "rule")) == rules
    assert len(layers(chart, "text")) == (limit is not None)


def test_one_level_alone_stands_by_name_and_needs_no_line():
    chart = specs.against_load([series("a", loads=(4,)), series("b", loads=(4,))], METRIC["ttft"]).charts[0]
    assert layers(chart, "line") == layers(chart, "area") == []
    assert layers(chart, "point")[0]["encoding"]["x"]["field"] == "run"


@pytest.mark.parametrize(("runs", "named"), [(6, True), (40, False)])
def test_names_below_an_axis_do_not_overlap(runs, named):
    shown = [series(f"engine_{n}", colour=n, loads=(4,)) for n in range(runs)]
    (chart,) = specs.against_load(shown, METRIC["ttft"]).charts
    axis = layers(chart, "point")[0]["encoding"]["x"]
    assert axis["axis"].get("labels", True) is named
    assert axis["title"] == (None if named else "runs")


def test_repeats_of_a_level_are_one_mark():
    """Their mean and its interval; a line through each would run up and down at one load."""
    rows = [
        row(8, 100.0),
        row(2, 10.0),
        row(8, 130.0, repeat=1, verdict="doubtful", doubts=("too_short",)),
        row(8, 999.0, repeat=2, verdict="void"),
        row(16, None),
    ]
    one = Series(name="a", panel="", colour=0, rows=rows)
    first, second = values(specs.against_load([one], METRIC["output_throughput"]).charts[0])
    assert (first["x"], first["y"], first["verdict"]) == (2, 10.0, "valid")
    assert (second["x"], second["low"], second["high"]) == (8, None, None), "two points without intervals have none"
    assert second["y"] == pytest.approx(13_000**0.5), "the geometric mean"
    assert (second["verdict"], second["trust"]) == ("doubtful", "valid; doubtful")
    assert second["warnings"].startswith("too_short: the window is shorter")
    assert second["load"] == "8 users, mean of 2 repeats"


def test_panels_side_by_side_have_one_kind_of_axis():
    """A workload whose values differ by a factor of a hundred makes the axes of all logarithmic."""

    def kinds(most):
        rows = [row(2), row(8, most)]
        drawn = [series("a", "unique"), Series(name="a", panel="rag", colour=0, rows=rows)]
        charts = specs.against_load(drawn, METRIC["output_throughput"]).charts
        return [layers(chart, "point")[0]["encoding"]["y"]["scale"]["type"] for chart in charts]

    assert kinds(120.0) == ["linear", "linear"]
    assert kinds(12_000.0) == ["log", "log"]


def test_a_point_says_all_its_values_under_the_mouse(four):
    assert specs.tips_of("a", [row(4, requests_ok=1200)])["requests_ok"] == "1,200"
    chart = specs.against_load(four, METRIC["output_throughput"]).charts[0]
    (tips,) = [one["encoding"]["tooltip"] for one in layers(chart, "point") if "tooltip" in one["encoding"]]
    assert {one["field"] for one in tips} >= {"run", "load", "trust", "warnings", "ttft_ms_p99", "e2e_ms_p50"}
    assert {one["field"] for one in tips} <= set(values(chart)[0])


def test_without_values_there_is_no_chart():
    nothing = [Series(name="a", panel="", colour=0, rows=[row(4, verdict="void")])]
    assert specs.comparing(nothing, {}) == []
    assert specs.distributions(nothing, Level(4)) is None
    assert timeline_chart(Timeline(run="a", level=Level(4), spans=[])) is None


def test_gaps_between_tokens_of_one_event_do_not_stretch_the_axis():
    """Of four gaps two are no time at all, but for rounding: the axis shows milliseconds, not 1e-14."""
    one = series("a", latencies={Level(8): {"itl_ms": np.array([0.0, 1e-14, 8.0, 12.0])}})
    (chart,) = specs.distributions([one], Level(8)).charts
    assert min(row["x"] for row in values(chart)) > specs.DRAWN_FROM_MS


def test_a_timeline_of_many_requests_stays_small_and_shows_who_disturbed_it():
    spans = [
        RequestSpan(sent_s=i * 0.01, first_s=i * 0.01 + 0.1, end_s=i * 0.01 + 1, failed=i % 7 == 0) for i in range(5000)
    ]
    more = {"panels": [("x", [(0, 1), (1, 2)])], "window": (0, 10), "disturbed": [(1, 2, "make, pid 7")]}
    found = timeline_chart(Timeline(run="a", level=Level(8), spans=spans, **more))
    assert [chart.title for chart in found.charts] == [f"{SPANS_MAX} of 5000 requests", "x"]
    assert len(json.dumps(draw.framed(found.charts[0]))) < 50_000
    ground, requests = found.charts[0].spec["layer"]
    assert [one["what"] for one in ground["data"]["values"]] == ["measurement window", "make, pid 7"]
    assert {one["part"] for one in requests["data"]["values"]} == set(PARTS)
    assert "make, pid 7" in found.charts[0].words


def every_set(one):
    spans = [RequestSpan(sent_s=0, first_s=0.1, end_s=1)]
    line = Timeline(run=one.name, level=Level(8), spans=spans, panels=[("x", [(0, 1), (1, 2)])])
    own = [one, series("b", one.panel, 1)]
    return [
        *specs.comparing(own, {"ttft_ms": 90.0}),
        timeline_chart(line),
    ]


@pytest.mark.slow
def test_every_spec_is_valid_vega_lite():
    altair = pytest.importorskip("altair")
    for found in every_set(series("a", latencies={})):
        for chart in found.charts:
            altair.Chart.from_dict(draw.framed(chart, width=300) | {"data": chart.spec.get("data", {"values": []})})


def test_pictures_hold_names_as_text_and_no_hostile_characters():
    from xml.etree import ElementTree

    evil = "</script><script>alert(1)</script>\u202e\x1b[2J"
    for found in every_set(series(evil, panel=evil)):
        picture = draw.svg(draw.composed(found, [series(evil)]))
        assert "<script" not in picture
        assert "\u202e" not in picture
        ElementTree.fromstring(picture)


@pytest.mark.parametrize("value", [0.002, 3.5, 700, 45_000, 2e6])
def test_axes_have_plain_numbers(value):
    one = Series(name="a", panel="", colour=0, rows=[row(1, value), row(1024, 2 * value)])
    labels = re.findall(r">([^<]+)</text>", draw.svg(draw.framed(specs.comparing([one], {})[0].charts[0], width=300)))
    assert "1,024" in labels
    assert len([label for label in labels if re.fullmatch(r"[\d,]*\d(\.\d+)?", label)]) >= 5
    assert not [label for label in labels if re.search(r"\de[+-]?\d", label)]


def test_what_only_a_mouse_finds_is_not_in_a_still_picture(four):
    chart = specs.against_load(four, METRIC["ttft"]).charts[0]
    small = draw.still(draw.framed(chart, width=300))
    assert "tooltip" not in json.dumps(small)
    assert len(small["layer"]) == len(chart.spec["layer"]) - 1


def test_the_script_is_kept_but_not_taken_from_a_file_that_others_may_write(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVEBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_, **__: "made()")
    draw.javascript.cache_clear()
    assert draw.javascript() == "made()"
    (kept,) = tmp_path.iterdir()
    kept.write_text("kept()")
    draw.javascript.cache_clear()
    assert draw.javascript() == "kept()"
    kept.chmod(0o666)
    draw.javascript.cache_clear()
    assert draw.javascript() == "made()"
    draw.javascript.cache_clear()


def test_the_mean_of_repeats_is_that_of_the_other_screens():
    """Geometric over starts, after the repeats of each; without a logarithm it is the plain mean."""
    rows = [
        row(4, start_id=start, repeat=at, ttft_ms_p50=value)
        for at, (start, value) in enumerate([("a", 40.0), ("a", 40.0), ("b", 160.0)])
    ]
    assert specs.mean_of(rows, "ttft_ms_p50") == pytest.approx(80.0)
    assert specs.tips_of("a", rows)["ttft_ms_p50"] == "80.0"
    assert specs.mean_of([row(4, json_compliance=0.0), row(4, json_compliance=1.0)], "json_compliance") == 0.5
