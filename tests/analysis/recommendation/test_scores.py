import numpy as np
import pytest

from servebench.analysis.recommendation.scores import good_requests
from servebench.analysis.verdict.model import ComparedPoint
from servebench.contracts.point_row import PointRow
from servebench.contracts.settings import SloSettings
from servebench.measure import cost

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("ttft", "tpot", "failed", "limits", "expected"),
    [
        (100, 10, False, SloSettings(ttft_ms=100), True),
        (101, 10, False, SloSettings(ttft_ms=100), False),
        (50, NAN, False, SloSettings(tpot_ms=20), True),
        (50, 21, False, SloSettings(tpot_ms=20), False),
        (INF, INF, True, SloSettings(ttft_ms=100), False),
        (INF, INF, True, SloSettings(), False),
        (NAN, 10, False, SloSettings(ttft_ms=100), False),
        (50, 10, False, SloSettings(), True),
    ],
)
def test_what_a_good_request_is(ttft, tpot, failed, limits, expected):
    latencies = {"ttft_ms": ttft, "tpot_ms": tpot, "e2e_ms": ttft, "failed": failed}
    arrays = {name: np.array([value]) for name, value in latencies.items()}
    point = ComparedPoint(row=PointRow(), **arrays)
    assert good_requests([point], limits).tolist() == [expected]


@pytest.mark.parametrize(
    ("rate", "price", "count", "expected"),
    [
        (1000, 3.6, 1, 1.0),
        (1000, 3.6, 2, 2.0),
        (None, 1, 1, None),
        (10, None, 1, None),
        (10, 1, 0, None),
        (0, 1, 1, None),
    ],
)
def test_dollars_for_a_million(rate, price, count, expected):
    assert cost.usd_per_million(rate, price, count) == (None if expected is None else pytest.approx(expected))
