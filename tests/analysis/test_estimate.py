from typing import Any

import numpy as np
import pytest

from servebench.analysis.estimate import THROUGHPUT, best_level, estimate_level, levels_of, mean_of
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow


def row(value: float | None = 100.0, start: str = "a", share: float | None = 0.1, **more: Any) -> PointRow:
    """A point whose interval reaches `share` to each side."""
    ends = {} if share is None or value is None else {"low": value * (1 - share), "high": value * (1 + share)}
    own = {f"output_throughput_tok_s_{end}": at for end, at in ends.items()}
    return PointRow(**{"concurrency": 8, "verdict": "valid", "start_id": start, THROUGHPUT: value, **own, **more})


def test_starts_count_once_however_many_points_they_have() -> None:
    found = estimate_level([row(100.0), row(100.0), row(200.0, "b")], THROUGHPUT)
    assert found is not None
    assert found.value == pytest.approx(20_000**0.5)
    assert np.exp(found.starts) == pytest.approx((100.0, 200.0))
    assert (found.points, found.level.load) == (3, 8.0)


@pytest.mark.parametrize(
    ("rows", "low", "high"),
    [
        ([row()], 90.0, 110.0),
        ([row(share=None)], None, None),
        # two points of one start: their own ends in quadrature; one without an interval: none
        ([row(), row()], 100 * 0.9 ** (2**-0.5), 100 * 1.1 ** (2**-0.5)),
        ([row(), row(share=None)], None, None),
        # three that differ more than they say: Student's t(2) = 4.3027 on logarithms
        ([row(100.0), row(110.0), row(121.0)], 110 * 1.1 ** (-4.3027 / 3**0.5), 110 * 1.1 ** (4.3027 / 3**0.5)),
        ([row(share=None), row(share=None), row(share=None)], 100.0, 100.0),
    ],
)
def test_the_interval_is_that_of_what_varies(rows: list[PointRow], low: float | None, high: float | None) -> None:
    found = estimate_level(rows, THROUGHPUT)
    assert found is not None
    assert found.interval is None if low is None else found.interval == pytest.approx((low, high), rel=1e-4)


def test_a_cost_falls_as_its_rate_rises() -> None:
    found = estimate_level([row(cost_usd_per_mtok=2.0, goodput_req_s=5.0)], "cost_usd_per_mtok")
    assert found is not None
    assert found.interval == pytest.approx((2 / 1.1, 2 / 0.9))
    goodput = estimate_level([row(goodput_req_s=5.0)], "goodput_req_s")
    assert goodput is not None
    assert goodput.interval == pytest.approx((4.5, 5.5))


def test_two_starts_have_an_interval_that_says_something() -> None:
    """Student's would be 64 to 75 tok/s plus or minus 120."""
    found = estimate_level([row(64.0), row(75.0, "b")], THROUGHPUT)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert 45 < found.low < 64 < 75 < found.high < 105


@pytest.mark.parametrize("rows", [[], [row(None)], [row(), row(None)], [row(), row(0.0)], [row(float("inf"))]])
def test_without_a_positive_value_in_each_point_there_is_none(rows: list[PointRow]) -> None:
    assert estimate_level(rows, THROUGHPUT) is None


def test_counts_and_shares_have_plain_means() -> None:
    rows = [row(json_compliance=0.0, requests_failed=0), row(json_compliance=1.0, requests_failed=3)]
    assert mean_of(rows, "json_compliance") == 0.5
    assert mean_of(rows, "requests_failed") == 1.5
    assert mean_of(rows, "ttft_ms_p50") is None
    # whether or not one of them is 0
    rows = [row(json_compliance=0.25, requests_failed=1), row(json_compliance=1.0, requests_failed=100)]
    assert (mean_of(rows, "json_compliance"), mean_of(rows, "requests_failed")) == (0.625, 50.5)


def test_the_mean_of_what_failed_in_one_point_is_infinite() -> None:
    rows = [row(ttft_ms_p99_all=100.0), row(ttft_ms_p99_all=float("inf"))]
    assert mean_of(rows, "ttft_ms_p99_all") == float("inf")


def test_void_points_count_only_where_a_level_has_no_others() -> None:
    rows = [row(concurrency=16), row(900.0, verdict="void"), row(), row(5.0, concurrency=2, verdict="void")]
    assert {level: [one[THROUGHPUT] for one in own] for level, own in levels_of(rows).items()} == {
        Level(2): [5.0],
        Level(8): [100.0],
        Level(16): [100.0],
    }
    best = best_level([*rows, row(999.0, concurrency=32, verdict="doubtful")])
    assert best is not None
    assert (best.level, best.value) == (Level(8), 100.0), "of equal levels the lowest"
    assert best_level([row(7.0, verdict="void")]) is None
