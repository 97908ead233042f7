"""What a point says in a race."""

import pytest

from servebench.analysis.tuning.ledger import result_of_point
from servebench.contracts.point_row import PointRow
from servebench.contracts.tuning import OBJECTIVES


@pytest.mark.parametrize(
    ("columns", "void"),
    [
        ({"requests_ok": 40, "ttft_ms_p50_all": 20.0}, False),
        ({"requests_ok": 40, "ttft_ms_p50_all": None}, True),
        ({"requests_ok": 0, "requests_failed": 40}, False),
    ],
)
def test_a_latency_that_others_disturbed_in_all_requests_is_unknown_and_not_infinite(columns, void):
    """One that no request has because all failed is."""
    assert result_of_point(PointRow(verdict="doubtful", **columns), OBJECTIVES["ttft_p50"], 20.0).void is void
