"""What a run's points say beside times."""

from dataclasses import replace

import pytest

from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Point
from servebench.report.content import content_lines


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, []),
        ({"prefix_cache_hit_rate": 0.0, "prefix_cache_hit_rate_ideal": 0.0}, []),
        ({"prefix_cache_hit_rate": 0.001, "prefix_cache_hit_rate_ideal": 0.0192}, []),
        ({"prefix_cache_hit_rate_ideal": 0.0192}, []),
        (
            {"prefix_cache_hit_rate": 0.06, "prefix_cache_hit_rate_ideal": 0.0192},
            ["prefix cache: 6% of prompt tokens hit (1.92% at best) (at 4)"],
        ),
        (
            {"prefix_cache_hit_rate": 0.382, "prefix_cache_hit_rate_ideal": 0.4},
            ["prefix cache: 38.2% of prompt tokens hit (40% at best) (at 4)"],
        ),
        (
            {"prefix_cache_hit_rate_ideal": 0.4},
            ["prefix cache: hit rate not reported by the server (40% of prompt tokens at best) (at 4)"],
        ),
        (
            {"json_compliance": 0.5, "json_compliance_n": 8},
            ["JSON (constrained): 4 of 8 answers match their schema (50%) (at 4)"],
        ),
        (
            {
                "json_compliance": 1.0,
                "json_compliance_unconstrained": 0.0,
                "constraint_ttft_ms": 120.4,
                "constraint_tpot_ms": -0.25,
            },
            [
                "JSON (constrained): answers match their schema (100%); unconstrained: 0%; mean cost of the constraint: "
                "TTFT +120 ms, TPOT -0.25 ms (at 4)"
            ],
        ),
        ({"needle_recall": 1 / 3}, ["needles: 33.3% found (at 4)"]),
    ],
)
def test_lines(row, said):
    """A line for what is known, none for what is not."""
    assert content_lines([Point(row=PointRow(concurrency=4, **row))]) == said


def test_small_hit_rates_are_shown_with_verbose():
    row = PointRow(concurrency=4, prefix_cache_hit_rate=0.001, prefix_cache_hit_rate_ideal=0.0192)
    assert content_lines([Point(row=row)], verbose=True) == [
        "prefix cache: 0.1% of prompt tokens hit (1.92% at best) (at 4)"
    ]


def test_points_of_one_level_have_one_line():
    rows = [
        PointRow(concurrency=4, repeat=0, prefix_cache_hit_rate=0.3, json_compliance=0.5, json_compliance_n=8),
        PointRow(concurrency=4, repeat=1, prefix_cache_hit_rate=0.4, json_compliance=1.0, json_compliance_n=24),
        PointRow(concurrency=8, prefix_cache_hit_rate=0.1, json_compliance=1.0, json_compliance_n=3),
        PointRow(concurrency=4, repeat=2, prefix_cache_hit_rate=0.5),
    ]
    rows = [replace(row, prefix_cache_hit_rate_ideal=0.5) for row in rows]
    assert content_lines([Point(row=row) for row in rows]) == [
        "prefix cache: 40% of prompt tokens hit (50% at best) (at 4, mean of 3 points)",
        "prefix cache: 10% of prompt tokens hit (50% at best) (at 8)",
        "JSON (constrained): 28 of 32 answers match their schema (87.5%) (at 4, mean of 3 points)",
        "JSON (constrained): 3 of 3 answers match their schema (100%) (at 8)",
    ]
