"""Blocks as Markdown: whole emphasis, and nothing from a name that formats, links or loads."""

import re

from servebench.report.blocks import Charts, Fold, Heading, Items, Label, Line, Sides, Span, Table, Verbatim, row, table
from servebench.report.charts.model import Chart, ChartSet
from servebench.report.export.markdown import to_markdown

EVIL = "<img src=x>![x](http://evil/x.png)|`a`\x1b[31m"


def test_neighbouring_strong_spans_are_one_emphasis():
    line = Line.of(Label("verdict", "strong good"), Span(": slower", "strong"), Span(" by 3%"))
    assert to_markdown([line]) == "**verdict: slower** by 3%\n"


def test_what_a_page_folds_or_draws_is_there_in_words():
    chart = ChartSet(name="c", title="C", charts=[Chart(title="", spec={}, words="TTFT: a 3 at 1 user.")])
    sides = Sides([("How far to trust it", [Items([Line.of("one"), Line.of("two")])])])
    text = to_markdown([Fold("more", [Line.of("inside")]), sides, Charts([chart]), Verbatim("log")])
    for part in ("inside", "### How far to trust it", "- one\n- two", "TTFT: a 3 at 1 user.", "log"):
        assert part in text


def test_a_name_formats_and_loads_nothing():
    blocks = [Heading(EVIL, EVIL), Line.of(Label(EVIL, "good")), Items([Line.of(EVIL)]), table((EVIL,), [[EVIL]])]
    text = to_markdown([*blocks, Table([], [row(EVIL)]), Verbatim(EVIL)])
    assert not re.search(r"(?<!\\)[<>\[\]`!]|\x1b", text.replace("!\\[", ""))
