import math
from collections.abc import Callable
from typing import Any

import pytest

from servebench.contracts.exchange import ClientFloor, FloorStage, PhaseReport
from servebench.contracts.point_row import POINT_COLUMNS, PointRow
from servebench.contracts.results import Record
from servebench.contracts.settings import SloSettings
from servebench.measure.points import PointSample, point_sample, with_intervals
from support.records import HEADLINES, phase_report, summary_of

Make = Callable[..., Record]
NO_SLO = SloSettings()
COLUMNS = list(POINT_COLUMNS)
PUBLIC = [
    *("run_id", "engine", "engine_version", "launch", "model", "gpu", "gpu_count", "workload", "concurrency", "rate"),
    *("repeat", "requests_planned", "requests_ok", "requests_failed", "window_s", "output_throughput_tok_s"),
    *("output_throughput_whole_run_tok_s", "request_throughput_req_s", "goodput_req_s"),
]


def summary(
    records: list[Record], slo: SloSettings = NO_SLO, told: PhaseReport | None = None, **changes: Any
) -> tuple[PointRow, PointSample]:
    known = {"run_id": "run", "point": "c1", "engine_version": "0.33.0", "gpu": "h100", "gpu_count": 2}
    return summary_of(records, told, slo, **(known | changes))


def row_of(records: list[Record], slo: SloSettings = NO_SLO, **changes: Any) -> PointRow:
    return summary(records, slo, **changes)[0]


def test_columns_come_in_the_published_order(make: Make) -> None:
    """The public columns come first, as published, then more of ours, each once; every row has them all."""
    row = row_of([make(0, [10, 20])])
    assert list(row.as_dict()) == COLUMNS
    assert COLUMNS[: len(PUBLIC)] == PUBLIC
    latencies = [
        f"{name}_{statistic}"
        for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
        for statistic in ("mean", "p50", "p90", "p95", "p99", "min", "max", "n")
    ]
    rest = ["lateness_ms_p99", "prefix_cache_hit_rate", "json_compliance", "energy_j_per_token", "cost_usd_per_mtok"]
    start = len(PUBLIC)
    assert COLUMNS[start : start + len(latencies) + 6] == [*latencies, *rest, "emulated"]
    low = [column for column in COLUMNS if column.endswith("_low")]
    assert low == ["json_compliance_low", *(f"{name}_low" for name in HEADLINES)]


def test_identity_is_that_of_the_context(make: Make) -> None:
    """What the point is stands in the row as it was told."""
    row = row_of([make(0, [10])], repeat=2, point="c1-r2")
    assert (row["engine"], row["gpu_count"], row["concurrency"], row["rate"]) == ("vllm", 2, 1, None)
    assert (row["repeat"], row["point"], row["requests_planned"]) == (2, "c1-r2", 3)


def test_values_are_plain_python(make: Make) -> None:
    """No NumPy scalar leaves: a row goes to JSON and to Parquet as it is."""
    row = row_of([make(0, [10, 20, 40]), make(50, [70, 90])], SloSettings(ttft_ms=15), price_usd_per_hour=2.0)
    assert {type(value) for value in row.as_dict().values()} <= {str, int, float, bool, list, type(None)}


def test_latencies_by_hand(make: Make) -> None:
    """Two requests, each number worked out by hand."""
    row = row_of([make(0, [10, 20, 40], 41), make(50, [70, 90], 91)])
    assert (row["ttft_ms_mean"], row["ttft_ms_min"], row["ttft_ms_max"], row["ttft_ms_n"]) == (15, 10, 20, 2)
    assert (row["itl_ms_mean"], row["itl_ms_p50"], row["itl_ms_n"]) == (pytest.approx(50 / 3), 20, 3)
    assert (row["tpot_ms_mean"], row["tpot_ms_p90"]) == (17.5, pytest.approx(19.5))
    assert (row["e2e_ms_mean"], row["e2e_ms_p50"]) == (40, 40)
    assert row["window_s"] == pytest.approx(0.091)
    assert row["output_throughput_tok_s"] == pytest.approx(5 / 0.091)
    assert row["output_throughput_whole_run_tok_s"] == pytest.approx(5 / 0.091)
    assert row["request_throughput_req_s"] == pytest.approx(2 / 0.091)
    assert (row["output_tokens_total"], row["output_tokens_mean"], row["input_tokens_mean"]) == (5, 2.5, 10)


def test_gaps_never_cross_requests(make: Make) -> None:
    """The time between one request's last event and the next one's first is no ITL, with empty requests between too."""
    empty = make(100, [], 101, asked_output_tokens=0)
    records = [make(0, [1, 2], 3), empty, make(200, [210], 211), make(300, [301, 304, 306], 307)]
    _, sample = summary(records)
    assert sample.itl_ms.tolist() == [1, 3, 2]
    assert sample.itl_counts.tolist() == [1, 0, 0, 2]


def test_only_what_was_sent_and_arrived_inside_the_window_counts(make: Make) -> None:
    """Latencies are of requests sent inside the window, throughput of tokens that arrived inside it."""
    records = [
        make(0, [10, 20, 30], 100),  # sent before the level of 2 was reached
        make(15, [25, 35, 110], 200),  # its last token comes after the level was left
        make(120, [130], 140),
    ]
    row = row_of(records, concurrency=2)
    # in flight 2 from 15 to 100, then again from 120 to 140
    assert (row["window_start_ns"], row["window_end_ns"]) == (15_000_001, 140_000_000)
    # the request at 15 completes the opening wave, and is no part of the window
    assert row["ttft_ms_n"] == 1
    assert row["output_throughput_tok_s"] == pytest.approx(6 / 0.125)
    assert row["output_throughput_whole_run_tok_s"] == pytest.approx(7 / 0.2)
    assert row["request_throughput_req_s"] == pytest.approx((2 / 3 + 1 + 1) / 0.125, rel=1e-6)
    assert (row["level_reached"], row["average_in_flight"]) == (True, pytest.approx((125 + 85 + 20) / 125))


def test_a_level_that_was_never_reached_uses_the_whole_run(make: Make) -> None:
    """All ok requests count when there is no window; the row says that the level was not reached."""
    row = row_of([make(0, [10], 20), make(30, [40], 50)], concurrency=9)
    assert (row["level_reached"], row["ttft_ms_n"], row["window_s"]) == (False, 2, pytest.approx(0.05))


def test_failed_requests_are_counted_and_their_tokens_are_not(make: Make) -> None:
    """A timed-out request's tokens and times stay out of every number but the counts and the run's length."""
    records = [make(0, [10, 20], 20), make(30, [40, 50, 60], 1000, outcome="timeout"), make(None, outcome="refused")]
    row = row_of(records)
    assert (row["requests_ok"], row["requests_failed"], row["ttft_ms_n"]) == (1, 2, 1)
    assert row["output_throughput_tok_s"] == pytest.approx(2 / 1.0)
    assert (row["events"], row["output_tokens_total"]) == (2, 2)


def test_warmup_records_are_left_out(make: Make) -> None:
    """Warm-up requests are in no number."""
    row = row_of([make(0, [500], 501, warmup=True), make(600, [610], 611)])
    assert (row["requests_ok"], row["ttft_ms_max"], row["output_tokens_total"]) == (1, 10, 1)


@pytest.mark.parametrize("outcomes", [[], ["timeout"], ["refused", "reset"]])
def test_no_ok_request_gives_none_never_zero(make: Make, outcomes: list[str]) -> None:
    """Without an ok request every time is None, and every count is a count."""
    row, sample = summary([make(0, ended=10, outcome=outcome, output_tokens=None) for outcome in outcomes])
    assert (row["requests_ok"], row["requests_failed"]) == (0, len(outcomes))
    for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
        assert row[f"{name}_n"] == 0
        assert [row[f"{name}_{s}"] for s in ("mean", "p50", "p99", "min", "max")] == [None] * 5
    assert row["goodput_req_s"] is None
    assert row["ttfo_ms_mean"] is None
    assert row["input_tokens_mean"] is None
    assert sample.ttft_ms.size == 0


def test_nothing_sent_has_no_window_and_no_rate(make: Make) -> None:
    """A point whose every connection was refused has no window at all."""
    row = row_of([make(None, outcome="refused", output_tokens=None)])
    names = ("window_s", "output_throughput_tok_s", "request_throughput_req_s", "lateness_ms_p99", "average_in_flight")
    assert [row[name] for name in names] == [None] * 5


def test_one_token_answers_have_no_tpot_and_no_itl(make: Make) -> None:
    """One-token answers leave TPOT and ITL empty instead of 0."""
    row = row_of([make(0, [10], 11), make(20, [30], 31)])
    assert (row["ttft_ms_n"], row["itl_ms_n"], row["tpot_ms_n"], row["tpot_ms_mean"]) == (2, 0, 0, None)


def test_tokens_of_events(make: Make) -> None:
    """An event's tokens are those told, the rest of usage goes to the last; else equal shares."""
    told = make(0, [10, 20], 21, event_tokens=[1, 3], output_tokens=6)
    shared = make(30, [40, 50], 51, output_tokens=5)
    _, sample = summary([told, shared])
    assert sample.arrival_tokens is not None
    assert sample.arrival_tokens.tolist() == [1, 5, 2.5, 2.5]


def test_an_unknown_count_makes_throughput_unknown(make: Make) -> None:
    """A sum with an unknown part is None, not a smaller number."""
    row, sample = summary([make(0, [10], 11), make(20, [30], 31, output_tokens=None, counted_by=None)])
    assert (row["output_throughput_tok_s"], row["output_tokens_total"], sample.arrival_tokens) == (None, None, None)
    assert row["request_throughput_req_s"] is not None
    assert row["output_tokens_mean"] == 1


GOOD = {
    "no limit": (SloSettings(), None),
    "all meet": (SloSettings(ttft_ms=100, e2e_ms=1000), 3),
    "ttft": (SloSettings(ttft_ms=15), 2),
    "ttft at the limit": (SloSettings(ttft_ms=20), 3),
    "e2e": (SloSettings(e2e_ms=12), 1),
    "tpot leaves the one-token answer in": (SloSettings(tpot_ms=15), 2),
    "none meets": (SloSettings(ttft_ms=1), 0),
}


@pytest.mark.parametrize(("slo", "good"), GOOD.values(), ids=GOOD)
def test_goodput(make: Make, slo: SloSettings, good: int | None) -> None:
    """Requests a second that met every limit set; a failed one never does; without a limit there is none."""
    records = [
        make(0, [10, 20], 25),
        make(30, [50, 70], 75),
        make(80, [90], 95),
        make(96, [97, 98], 100, outcome="stream_error"),
    ]
    assert row_of(records, slo)["goodput_req_s"] == (None if good is None else pytest.approx(good / 0.1))


def test_goodput_at_a_rate_is_a_share_of_it(make: Make) -> None:
    """One of two requests inside the window is good: half of the rate, however many arrived just then."""
    records = [make(0, [10], 15), make(50, [60], 65), make(60, [90], 95), make(100, [110], 115)]
    slo = SloSettings(ttft_ms=20)
    row = row_of(records, slo, concurrency=None, rate=30.0, offered_req_s=30.0)
    assert (row["slo_good"], row["slo_requests"]) == (1, 2)
    assert row["goodput_req_s"] == pytest.approx(15.0)


@pytest.mark.parametrize(
    ("second", "good", "tested"),
    [
        ({"events": [60], "ended": 65}, 2, 2),
        ({"ended": 65, "outcome": "reset"}, 1, 2),
        ({"sent": None, "scheduled_ns": 50_000_000, "outcome": "refused"}, 1, 2),
        ({"ended": 65, "outcome": "abandoned"}, 1, 1),
    ],
)
def test_a_request_that_fails_or_is_refused_lowers_the_goodput_of_a_rate(
    make: Make, second: dict[str, Any], good: int, tested: int
) -> None:
    """Two requests inside the window, at 30 a second, of which the first is good."""
    middle = make(**{"sent": 50, "events": [], **second})
    records = [make(0, [10], 15), make(45, [50], 55), middle, make(100, [110], 115)]
    row = row_of(records, SloSettings(ttft_ms=20), concurrency=None, rate=30.0, offered_req_s=30.0)
    assert (row["slo_good"], row["slo_requests"]) == (good, tested)
    assert row["goodput_req_s"] == pytest.approx(15.0 * good)


def test_an_open_loop_says_how_many_were_in_flight(make: Make) -> None:
    """When each request was sent, without itself, and over its life, with itself; a closed loop has no arrivals."""
    records = [make(0, [5], 10), make(100, [105, 140], 140), make(110, [115], 120), make(300, [305], 310)]
    found = point_sample(records, None, offered_req_s=10.0).arrivals
    assert found is not None
    assert found.in_flight.tolist() == [0, 1]
    assert found.waiting.tolist() == [0, 0]
    assert found.in_flight_mean.tolist() == pytest.approx([1.25, 2.0])
    assert found.ttft_ms.tolist() == pytest.approx([5.0, 5.0])
    assert point_sample(records, 1).arrivals is None


def test_hit_rate_is_over_prompts_that_tell(make: Make) -> None:
    """Cached over prompt tokens, where both are told; None where none tells; a true 0 stays 0."""
    silent = make(0, [10], 11)
    told = make(20, [30], 31, cached_tokens=5, prompt_tokens=20)
    assert row_of([silent])["prefix_cache_hit_rate"] is None
    assert row_of([silent, told])["prefix_cache_hit_rate"] == 0.25
    assert row_of([make(20, [30], 31, cached_tokens=0)])["prefix_cache_hit_rate"] == 0


def test_cost_is_of_all_gpus(make: Make) -> None:
    """Dollars a million output tokens: price an hour times GPUs, over the tokens of an hour."""
    records = [make(0, [100 * n for n in range(1, 11)], 1000)]
    assert row_of(records, price_usd_per_hour=3.6)["cost_usd_per_mtok"] == pytest.approx(2 * 3.6 / 36_000 * 1e6)
    assert row_of(records)["cost_usd_per_mtok"] is None
    assert row_of(records, price_usd_per_hour=3.6, gpu_count=0)["cost_usd_per_mtok"] is None


def test_cost_of_good_requests(make: Make) -> None:
    """Dollars a million requests that met the SLO: two a second here, of which one was quick enough."""
    records = [make(0, [100, 1000], 1000), make(0, [900, 1000], 1000)]
    slo = SloSettings(ttft_ms=500, tpot_ms=None, e2e_ms=None, attainment=0.99)
    row = row_of(records, slo, concurrency=1, price_usd_per_hour=3.6)
    assert row["goodput_req_s"] == pytest.approx(1.0)
    assert row["cost_usd_per_mgood"] == pytest.approx(2 * 3.6 / 3600 * 1e6)
    assert row_of(records, price_usd_per_hour=3.6)["cost_usd_per_mgood"] is None


def test_a_failed_request_is_worse_than_any_latency(make: Make) -> None:
    """Beside the percentiles of those that got through: one of three failed, so the median is the slower of two, and the
    99th percentile infinite. What the client itself gave up is not there."""
    good = [make(0, [10, 20], 100), make(0, [30, 40], 100)]
    row = row_of([*good, make(0, ended=100, outcome="reset")])
    assert (row["ttft_ms_p50"], row["ttft_ms_p99"]) == (20, pytest.approx(29.8))
    assert (row["ttft_ms_p50_all"], row["ttft_ms_p99_all"]) == (30, math.inf)
    assert (row["e2e_ms_p50_all"], row["e2e_ms_p99_all"]) == (40, math.inf)
    ours = row_of([*good, make(0, ended=100, outcome="cancelled")])
    assert (ours["ttft_ms_p50_all"], ours["ttft_ms_p99_all"]) == (20, pytest.approx(29.8))
    half = row_of([good[0], make(0, ended=100, outcome="reset")])
    assert half["ttft_ms_p50_all"] == math.inf
    assert row_of([make(0, ended=100, outcome="reset")])["ttft_ms_p50_all"] == math.inf


def test_the_client_tells_of_itself(make: Make) -> None:
    """Lateness is of all sent requests, failed ones too; CPU is the share of a core a worker."""
    records = [make(10, [20], 21, scheduled_ns=9_000_000), make(30, ended=40, outcome="reset", scheduled_ns=27_000_000)]
    told = phase_report(clock_step_ns=-2_500_000, stamp_source="user", workers=2)
    row, _ = summary(records, told=told)
    assert row["lateness_ms_p99"] == pytest.approx(1 + 0.99 * 2)
    assert (row["client_cpu_share"], row["loop_lag_ms_p99"]) == (0.125, 0.25)
    assert (row["clock_step_ms"], row["stamp_source"]) == (-2.5, "user")


def test_an_open_loop_is_measured_from_its_schedule_too(make: Make) -> None:
    """With a rate the window is that of sending less its edges, and the wait from schedule stands beside TTFT."""
    records = [make(10 * n, [10 * n + 4], 10 * n + 5, scheduled_ns=(10 * n - 1) * 1_000_000) for n in range(1, 12)]
    row = row_of(records, concurrency=None, rate=100.0)
    assert (row["ttft_ms_p50"], row["ttft_from_schedule_ms_p50"], row["window_s"]) == (4, 5, pytest.approx(0.0875))


def test_intervals_are_merged_by_name(make: Make) -> None:
    """Each interval fills `_low` and `_high`; one that could not be had leaves None; nothing else changes."""
    row = row_of([make(0, [10, 20])])
    merged = with_intervals(row, {"ttft_ms_mean": (1.0, 2.0), "itl_ms_p99": None})
    assert (merged["ttft_ms_mean_low"], merged["ttft_ms_mean_high"], merged["itl_ms_p99_low"]) == (1.0, 2.0, None)
    assert row["ttft_ms_mean_low"] is None


STAGES = tuple(
    FloorStage(
        streams=50, events_s=rate, ttft_error_ms=error, itl_error_ms=error / 2, lateness_ms=1.0, merged_share=0.0
    )
    for rate, error in ((1.0, 0.04), (100.0, 0.06))
)
FLOOR = ClientFloor(
    stages=STAGES, streams=50, events_s=100.0, limit_seen=False, stamp_source="kernel", measured_s=0.0, seconds=2.0
)


@pytest.mark.parametrize(
    ("told", "merged", "ttft", "itl"),
    [
        ({}, 0, 0.06, 0.03),
        ({"elapsed_s": 100.0}, 0, 0.04, 0.02),
        ({"stamp_source": "user"}, 0, 0.31, 0.28),
        ({"nap_ms": 1.0}, 1, 0.06, 0.03 + 0.25 * 1.25),
    ],
)
def test_the_error_bar_of_the_client(make: Make, told: dict[str, Any], merged: int, ttft: float, itl: float) -> None:
    """The self-check's error at that many events a second; user stamps are late by the lag, merged ones by the nap too."""
    record = make(0, [10, 20, 30, 40], 50, reads_merged=merged)
    row, _ = summary([record], told=phase_report(**told), floor=FLOOR)
    assert row["client_error_ms_ttft"] == pytest.approx(ttft)
    assert row["client_error_ms_itl"] == pytest.approx(itl)
    assert row_of([record])["client_error_ms_ttft"] is None


def test_attainment_counts_what_failed_and_not_what_we_cancelled(make: Make) -> None:
    """In an open loop the wait in the client is the user's too."""
    slo = SloSettings(ttft_ms=6.0)
    records = [
        make(0, [5], 6),
        make(10, [17], 18),
        make(20, ended=21, outcome="reset"),
        make(22, ended=23, outcome="cancelled"),
        make(30, [34], 35, scheduled_ns=27_000_000),
    ]
    edges = [make(-40, [-39], -38), make(60, [61], 62)]
    row = row_of([*records, *edges], slo, concurrency=None, rate=1.0)
    assert (row["slo_good"], row["slo_requests"]) == (1, 4)
    row = row_of(records, slo)
    assert (row["slo_good"], row["slo_requests"]) == (2, 4)
    assert row_of(records)["slo_requests"] is None


@pytest.mark.parametrize(("stays", "expected"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
def test_kept_up_is_what_does_not_stay_in_flight(make: Make, stays: float, expected: float) -> None:
    """A request each 10 ms; every answer takes 50 ms, and that much longer than the one before, as a queue grows."""
    records = [make(10 * n, [10 * n + 40], 10 * n + 50 + stays / (1.001 - stays) * 10 * n) for n in range(300)]
    found = row_of(records, concurrency=None, rate=100.0)["kept_up"]
    assert found == pytest.approx(expected, abs=0.03)


def test_a_burst_of_long_answers_is_kept_up_with(make: Make) -> None:
    """Requests in flight go up and down without growing."""
    records = [make(10 * n, [10 * n + 5], 10 * n + (500 if 100 <= n % 250 < 150 else 20)) for n in range(1000)]
    assert row_of(records, concurrency=None, rate=100.0)["kept_up"] == 1.0


@pytest.mark.parametrize(("outcome", "kept_up"), [("http_error", 0.5), ("cancelled", 0.5), ("abandoned", 1.0)])
def test_dropped_requests_are_not_kept_up_with(make: Make, outcome: str, kept_up: float) -> None:
    """Half of the requests end at once: those that the load plans to abandon do not show that the engine is behind."""
    records = [make(10 * n, [10 * n + 5], 10 * n + 9, outcome="ok" if n % 2 else outcome) for n in range(300)]
    assert row_of(records, concurrency=None, rate=100.0)["kept_up"] == pytest.approx(kept_up, abs=0.02)


def varied(make: Make, **changes: Any) -> list[Record]:
    """Three answers of 1, 2 and 3 tokens one after another, as long as they were asked to be."""
    sent = (0, 10, 30)
    return [
        make(at, [at + 5 + step for step in range(count)], asked_output_tokens=count, **changes)
        for at, count in zip(sent, (1, 2, 3), strict=True)
    ]


def test_lengths_of_answers_are_known_with_their_mean_in_the_long_run(make: Make) -> None:
    """One for each E2E."""
    sample = summary(varied(make), mean_tokens=2.5)[1]
    assert sample.lengths is not None
    assert (sample.lengths.tokens.tolist(), sample.lengths.mean) == ([1, 2, 3], 2.5)
    assert sample.e2e_ms.size == 3
    same = point_sample(varied(make), 1, mean_tokens=2.5).lengths
    assert same is not None
    assert same.tokens.tolist() == [1, 2, 3]


def test_lengths_are_unknown_without_their_mean_in_an_open_loop_and_where_answers_end_by_themselves(make: Make) -> None:
    known = varied(make)
    assert summary(known)[1].lengths is None
    assert summary(known, mean_tokens=2.5, concurrency=None)[1].lengths is None
    assert summary([*known[:2], make(30, [35, 36, 37], asked_output_tokens=4)], mean_tokens=2.5)[1].lengths is None
