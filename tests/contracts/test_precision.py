"""What `load.until` may say, and what it means."""

import pytest

from servebench.contracts.precision import half_width, precision_metrics, precision_targets
from support.records import HEADLINES


@pytest.mark.parametrize(
    ("until", "open_loop", "expected"),
    [
        (None, False, {}),
        ("5%", False, {"output_throughput_tok_s": 0.05, "ttft_ms_p50": 0.05}),
        (0.1, True, {"ttft_ms_p50": 0.1, "itl_ms_mean": 0.1}),
        ({"ttft_ms_p95": "10%", "e2e_ms_mean": 0.2}, False, {"ttft_ms_p95": 0.1, "e2e_ms_mean": 0.2}),
    ],
)
def test_targets(until, open_loop, expected):
    assert precision_targets(until, open_loop=open_loop) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("until", "named"),
    [
        ("5", "5"),
        (-0.1, "-0.1"),
        ("soon", "soon"),
        ("nan", "nan"),
        ({"ttft_ms_p51": 0.1}, "ttft_ms_p51"),
        ({"e2e_ms_mean": "0%"}, "0%"),
    ],
)
def test_what_is_no_share_or_no_metric_is_refused_by_name(until, named):
    with pytest.raises(ValueError, match=named.replace("%", ".")):
        precision_targets(until, open_loop=False)


def test_every_headline_number_can_be_named():
    assert set(HEADLINES) <= set(precision_metrics())


def test_half_width():
    assert half_width(90.0, 110.0) == pytest.approx(0.1)
    assert half_width(0.0, 0.0) == float("inf")
