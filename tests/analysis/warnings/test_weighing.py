"""What warnings can do to each metric: nothing, at most a share, or nobody knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from servebench.analysis.warnings.catalog import AFFECTS_ALL, CATALOG
from servebench.analysis.warnings.weighing import weigh
from servebench.contracts.point_row import PointRow

UNKNOWN = object()


@pytest.mark.parametrize(
    ("code", "columns", "metric", "error"),
    [
        ("too_few_requests", {"ttft_ms_n": 28}, "ttft_ms_p50", 0.0),
        ("too_few_requests", {"ttft_ms_n": 5}, "ttft_ms_p50", UNKNOWN),
        ("errors", {"requests_ok": 98, "requests_failed": 2}, "output_throughput_tok_s", 2 / 98),
        ("errors", {"requests_ok": 98, "requests_failed": 2}, "failed_share", 0.0),
        ("not_stationary", {"throughput_trend": 0.1, "concurrency": 4}, "output_throughput_tok_s", 0.1),
        ("not_stationary", {"ttft_trend": -0.2, "concurrency": 4}, "ttft_ms_p50", 0.25),
        ("not_stationary", {"itl_trend": 0.1, "rate": 4.0}, "tpot_ms_p50", 0.1),
        ("not_stationary", {"itl_trend": 0.1, "rate": 4.0}, "ttft_ms_p50", UNKNOWN),
        ("client_bound", {"rate": 4.0, "lateness_ms_p99": 8.0, "e2e_ms_p50": 400.0}, "output_throughput_tok_s", 0.02),
        ("client_bound", {"lateness_ms_mean": 8.0, "e2e_ms_mean": 400.0}, "output_throughput_tok_s", 0.02),
        (
            "client_bound",
            {"rate": 4.0, "client_error_ms_ttft": 2.0, "lateness_ms_p99": 8.0, "ttft_ms_p50": 100.0},
            "ttft_ms_p50",
            0.1,
        ),
        ("client_bound", {"client_error_ms_ttft": 2.0, "lateness_ms_mean": 8.0, "ttft_ms_p50": 100.0}, "ttft_ms_p50", 0.02),
        ("client_bound", {"client_error_ms_itl": 1.0, "tpot_ms_p50": 10.0, "output_tokens_mean": 101.0}, "tpot_ms_p50", 0.001),
        ("client_bound", {"client_cpu_share": 0.99, "lateness_ms_p99": 0.1}, "output_throughput_tok_s", UNKNOWN),
        ("cache_contaminated", {"prefix_cache_hit_rate": 0.2}, "ttft_ms_p50", 0.25),
        ("prompt_size_approximate", {"input_tokens_mean": 120.0}, "e2e_ms_p50", 0.02),
        ("prompt_size_approximate", {}, "e2e_ms_p50", UNKNOWN),
        ("cancelled_not_freed", {"server_excess_requests_mean": 2.0, "average_in_flight": 8.0}, "e2e_ms_p50", 0.25),
        ("tokens_disagree", {}, "output_throughput_tok_s", UNKNOWN),
        ("tokens_disagree", {}, "ttft_ms_p50", 0.0),
        ("merged_events", {}, "tpot_ms_p50", 0.0),
        ("wrong_gpu", {}, "output_throughput_tok_s", 0.0),
        ("wrong_gpu", {}, "cost_usd_per_mtok", UNKNOWN),
        ("emulated", {}, "output_throughput_tok_s", 0.0),
        ("supply_exhausted", {}, "output_throughput_tok_s", 0.0),
        ("from_the_future", {}, "e2e_ms_p50", UNKNOWN),
        ("from_the_future", {}, "cold_start", 0.0),
    ],
)  # fmt: skip
def test_each_warning_has_its_weight(code: str, columns: dict[str, Any], metric: str, error: Any) -> None:
    """By the columns of its point."""
    found = weigh([PointRow(doubts=(code,), **columns)], metric)
    assert found.unbounded == ((code,) if error is UNKNOWN else ())
    assert found.bound == pytest.approx(0.0 if error is UNKNOWN else error)
    assert found.bounded == ((code,) if found.bound else ())


def test_warnings_of_a_point_add_up_and_their_mean_over_points_counts() -> None:
    """As factors."""
    one = PointRow(prefix_cache_hit_rate=0.2, requests_ok=90, requests_failed=9)
    rows = [replace(one, doubts=codes) for codes in (("cache_contaminated", "errors"), ("errors",))]
    found = weigh(rows, "ttft_ms_p50")
    assert found.bound == pytest.approx((1.25 * 1.1 + 1.1) / 2 - 1)
    assert found.bounded == ("cache_contaminated", "errors")


@pytest.mark.parametrize(("warned", "counts"), [(1, False), (2, False), (3, True), (5, True)])
def test_a_warning_counts_if_most_starts_have_it(warned: int, counts: bool) -> None:
    """What befalls few of them is part of their spread."""
    points = [PointRow(doubts=("lock_step",) if start < warned else (), start_id=str(start)) for start in range(5)]
    assert bool(weigh(points, "ttft_ms_p50").unbounded) is counts


def test_the_table_names_known_parts() -> None:
    """So that a typing error does not silence a warning."""
    assert {part for kind in CATALOG.values() for part in kind.affects} <= {*AFFECTS_ALL, "quality"}
