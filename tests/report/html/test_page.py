"""The page of a run or study: whole, safe, and there for broken runs too."""

import json
import re
from html.parser import HTMLParser

import pytest

from servebench.cli.main import dispatch
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt
from servebench.report.html import svg
from servebench.report.html.svg import Axis, Dot, Mark, Series, Span
from support.studies import SimulatedEngine, SimulatedLoad

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"


class Reader(HTMLParser):
    """Which tags and attributes a browser would see."""

    def __init__(self):
        super().__init__()
        self.tags, self.links, self.open, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href", "data", "action")]
        assert not any(k.startswith("on") for k, _ in attrs)
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(path):
    text = path.read_text()
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return text, reader


@pytest.fixture
def study(make_study):
    shape = {"requests": 60, "levels": (2, 8)}
    doubt = Doubt(code="too_short", message="", remedy="")
    return make_study(
        (SimulatedEngine(name="vllm"), SimulatedLoad(**shape, model=f"org/{EVIL}")),
        (SimulatedEngine(name="sglang", slow=1.3, fail_share=0.1), SimulatedLoad(**shape, model=f"org/{EVIL}", version=EVIL)),
        doubts=[doubt],
    )  # fmt: skip


def report(study, *words):
    assert dispatch(["report", str(study), *words]) == 0
    return read(study / "report.html")


def test_the_page_is_self_contained_and_runs_nothing(study, capsys):
    text, seen = report(study)
    assert "script" not in seen.tags
    assert "link" not in seen.tags
    assert "img" not in seen.tags
    assert all(link.startswith("#") for link in seen.links)
    assert "default-src 'none'" in text
    assert not re.search(r"https?://", text)
    assert capsys.readouterr().out.strip() == str(study / "report.html")


def test_what_servers_said_is_shown_as_text(study):
    text, seen = report(study)
    assert EVIL not in text
    assert any(EVIL in part for part in seen.text)


def test_every_part_for_which_there_are_data_is_there(study):
    text, seen = report(study, "--with-doubtful")
    for part in (
        *("summary", "load", "distributions", "points", "comparison", "timeline", "cold", "fairness", "doubts"),
        *("commands",),
    ):
        assert f'<section id="{part}">' in text, part
    assert seen.tags.count("svg") >= 11
    words = " ".join(seen.text)
    assert "too_short" in words
    assert "servebench demo" in words
    assert "sglang serve" in words
    assert "run --lock" in words


def test_a_run_that_failed_and_one_that_is_gone_are_told(study):
    run = study / "01_sglang_unique"
    state = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(state | {"status": "failed", "error": f"the engine died: {EVIL}"}))
    (run / "points.parquet").unlink()
    (run / "requests.parquet").write_bytes(b"broken")
    (run / "engine.log").write_text(f"last words {EVIL}\n")
    for path in (study / "00_vllm_unique").iterdir():
        path.unlink()
    text, seen = report(study)
    assert EVIL not in text
    words = " ".join(seen.text)
    assert "the engine died" in words
    assert "last words" in words
    assert "missing" in words
    assert "No point was measured." in words


def test_one_run_alone_has_a_page_of_its_own(study, tmp_path):
    assert dispatch(["report", str(study / "00_vllm_unique"), "--out", str(tmp_path / "x" / "page.html")]) == 0
    text, _ = read(tmp_path / "x" / "page.html")
    assert '<section id="comparison">' not in text


def test_published_numbers_stand_beside_ones_own(make_study):
    shape = SimulatedLoad(levels=(5,), requests=40, model="Qwen/Qwen2.5-7B-Instruct", gpu="rtx5090")
    _, seen = report(make_study((SimulatedEngine(name="vllm"), shape)))
    words = " ".join(seen.text)
    assert "496 tok/s" in words
    assert "article 1" in words


def test_series_differ_by_more_than_colour():
    drawn = svg.chart(
        [Series(name=f"s{i}", dots=[Dot(x=1, y=i + 1), Dot(x=2, y=i + 2)], index=i) for i in range(4)],
        Axis(title="x"), Axis(title="y"), title="t",
    )  # fmt: skip
    assert len(set(re.findall(r'stroke-dasharray="([^"]*)"', drawn))) == 4
    assert len(set(svg.COLOURS)) == len(svg.COLOURS)
    assert len(set(svg.MARKERS[:7])) == 7


@pytest.mark.parametrize("values", [[1.0], [0.001, 0.001], [1, 1e6], [5, 7], [0.0, 0.0], [-3, 4]])
@pytest.mark.parametrize("log", [True, False])
def test_any_values_have_a_scale_and_stay_inside(values, log):
    scale = svg.scale(values, 0, 100, Axis(title="", log=log))
    assert scale.ticks
    for value in values:
        if value > 0 or not log:
            assert -1 <= scale(value) <= 101


def test_ticks_and_marks_are_inside_the_drawing():
    drawn = svg.chart(
        [Series(name="a", dots=[Dot(x=1, y=10, low=9, high=12), Dot(x=1024, y=20000)])],
        Axis(title="x", log=True), Axis(title="y"), title="t", marks=[Mark(y=500, text="limit")],
    )  # fmt: skip
    for x in re.findall(r'<text[^>]* x="([-\d.]+)"', drawn):
        assert 0 <= float(x) <= svg.WIDTH
    assert "limit" in drawn


def test_a_timeline_of_many_requests_stays_small():
    spans = [Span(sent_s=i * 0.01, first_s=i * 0.01 + 0.1, end_s=i * 0.01 + 1, failed=i % 7 == 0) for i in range(5000)]
    drawn = svg.timeline(spans, [("x", [(0, 1), (1, 2)])], window=(0, 10), title="t")
    assert len(drawn) < 90_000
    assert f"{svg.SPANS_MAX} of 5000 requests" in drawn


@pytest.mark.parametrize(("text", "length", "expected"), [("abc", 5, "abc"), ("abcdefghij", 5, "ab…ij"), ("", 3, "")])
def test_long_names_are_cut_in_the_middle(text, length, expected):
    assert svg.shortened(text, length) == expected


def test_repeats_of_a_level_are_one_mark():
    """Their mean, with a bar from the lowest to the highest; a line through each would run up and down at one load."""
    from servebench.report.html.charts import RunView, _dots

    rows = [
        PointRow(concurrency=load, repeat=repeat, output_throughput_tok_s=value, verdict=verdict)
        for load, repeat, value, verdict in (
            (8, 0, 100.0, "valid"),
            (2, 0, 10.0, "valid"),
            (8, 1, 130.0, "doubtful"),
            (8, 2, 999.0, "void"),
            (16, 0, None, "valid"),
        )
    ]
    first, second = _dots(RunView(name="a", index=0, rows=rows), "output_throughput_tok_s", "tok/s")
    assert (first.x, first.y, first.hollow) == (2, 10.0, False)
    assert (second.x, second.y, second.low, second.high, second.hollow) == (8, 115.0, 100.0, 130.0, True)
    assert "mean of 2 repeats" in second.tip


def test_gaps_between_tokens_of_one_event_do_not_stretch_the_axis():
    """Of four gaps two are no time at all, but for rounding: the axis shows milliseconds, not 1e-14."""
    import numpy as np

    from servebench.report.html.charts import RunView, distribution

    gaps = np.array([0.0, 1e-14, 8.0, 12.0])
    view = RunView(name="a", index=0, rows=(), latencies={"8": {"itl_ms": gaps}})
    drawn = distribution([view], "8", "itl_ms", "gap between tokens, ms", title="gaps")
    assert drawn is not None
    assert "1e-" not in drawn
    assert ">10<" in drawn
