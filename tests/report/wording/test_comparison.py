"""The sentence of a comparison of equal engines: what the bound is of, and which rows it does not cover."""

from __future__ import annotations

from dataclasses import replace

from servebench.analysis.verdict.model import EQUAL, METRICS, OPEN, Comparison, ComparisonRow
from servebench.contracts.level import Level
from servebench.report.wording.comparison import summary_of

THROUGHPUT, TPOT = (
    next(one for one in METRICS if one.name == name) for name in ("output_throughput_tok_s", "tpot_ms_p50")
)


def row(metric, result, bound):
    return ComparisonRow(level=Level(1), metric=metric, baseline=1.0, candidate=1.0, result=result, bound=bound)


def test_the_bound_of_a_decided_study_is_that_of_its_first_question():
    first = replace(row(THROUGHPUT, EQUAL, 0.042), overall=True)
    rows = (row(THROUGHPUT, OPEN, 0.08), row(TPOT, EQUAL, 0.03))
    decided = Comparison(baseline="a", candidate="b", rows=rows, margin=0.05, result=EQUAL, bound=0.042, first=first)
    assert summary_of(decided) == (
        "they differ by at most 4.2% in output throughput on average over the levels (1 of 2 single rows are open)"
    )
    # of a fixed number of starts it is the largest of the rows that have one
    fixed = replace(decided, bound=0.03)
    assert summary_of(fixed) == "they differ by at most 3.0% (1 of 2 single rows are open)"
    assert summary_of(replace(fixed, rows=rows[1:])) == "they differ by at most 3.0%"
