"""Intervals: those of one engine hold its long-run values as often as they say, and what has none says why."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

from servebench.analysis import statistics as stats
from servebench.analysis.serial import SeriesSpan, mean_interval
from servebench.contracts.point_row import PointRow
from servebench.measure.points import AnswerLengths, Arrivals, PointSample
from servebench.util.arrays import Floats
from support.records import HEADLINES

LONG = SeriesSpan(seconds=600.0, rounds=1000.0)


def sample(requests: int = 400, gaps: int = 20, seed: int = 0) -> PointSample:
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0, 40, requests * (gaps + 1)))
    ttft = rng.lognormal(3, 0.5, requests)
    return PointSample(
        ttft_ms=ttft,
        ttfo_ms=ttft,
        tpot_ms=rng.normal(10, 1, requests),
        e2e_ms=rng.normal(300, 20, requests),
        itl_ms=rng.exponential(10, requests * gaps),
        itl_counts=np.full(requests, gaps),
        arrival_s=arrivals,
        arrival_tokens=np.ones(arrivals.size),
        window_s=40.0,
    )


def test_every_headline_has_an_interval_around_its_estimate() -> None:
    """The names are those of the columns, each interval holds the number that it belongs to, the same each time."""
    drawn = sample()
    found = stats.headline_intervals(drawn)
    assert tuple(found) == HEADLINES
    estimates = {
        "output_throughput_tok_s": drawn.arrival_s.size / 40,
        "ttft_ms_mean": drawn.ttft_ms.mean(),
        "ttft_ms_p50": np.percentile(drawn.ttft_ms, 50),
        "ttft_ms_p95": np.percentile(drawn.ttft_ms, 95),
        "ttft_ms_p99": np.percentile(drawn.ttft_ms, 99),
        "ttfo_ms_mean": drawn.ttfo_ms.mean(),
        "itl_ms_mean": drawn.itl_ms.mean(),
        "itl_ms_p99": np.percentile(drawn.itl_ms, 99),
        "tpot_ms_mean": drawn.tpot_ms.mean(),
        "tpot_ms_p50": np.percentile(drawn.tpot_ms, 50),
        "e2e_ms_mean": drawn.e2e_ms.mean(),
        "e2e_ms_p50": np.percentile(drawn.e2e_ms, 50),
        "e2e_ms_p95": np.percentile(drawn.e2e_ms, 95),
    }
    assert found.pop("ttft_ms_p99") is None, "a p99 takes 736 values"
    for name, interval in found.items():
        assert interval is not None, name
        low, high = interval
        assert low < estimates[name] < high
        assert type(low) is float
    assert stats.headline_intervals(drawn) == {**found, "ttft_ms_p99": None}


def open_loop(in_flight: np.ndarray, ttft: np.ndarray, rate: float) -> PointSample:
    """Requests at a rate, of 300 ms each, which came while so many were in flight."""
    rng = np.random.default_rng(1)
    drawn = sample(ttft.size)
    arrivals = Arrivals(
        rate_req_s=rate,
        sent_s=np.cumsum(rng.exponential(40 / ttft.size, ttft.size)),
        in_flight=in_flight,
        waiting=np.zeros(ttft.size, dtype=np.int64),
        in_flight_mean=in_flight.astype(float),
        ttft_ms=ttft,
        tpot_ms=np.full(ttft.size, 10.0),
        e2e_ms=drawn.e2e_ms,
        prompt_tokens=np.full(ttft.size, 100.0),
    )
    return replace(drawn, ttft_ms=ttft, arrivals=arrivals)


def test_rare_queues_raise_the_upper_ends_of_ttft_in_an_open_loop() -> None:
    """Hardly anybody waited, but the limit may be near: the long run has longer queues than the window. Nothing else changes."""
    rng = np.random.default_rng(2)
    drawn = open_loop(np.minimum(rng.poisson(3, 400), 5), rng.normal(50, 2, 400), rate=10.0)
    without, found = stats.headline_intervals(replace(drawn, arrivals=None)), stats.headline_intervals(drawn)
    for name, interval in found.items():
        before = without[name]
        if interval is None or before is None or name not in stats.QUEUED:
            assert interval == before
        else:
            assert interval[0] == pytest.approx(before[0])
            assert interval[1] >= before[1]
    assert found["ttft_ms_mean"] != without["ttft_ms_mean"]


@pytest.mark.parametrize(
    ("prompt_tokens", "rate", "none"), [(100.0, 15.0, False), (2000.0, 15.0, True), (2000.0, 5.0, False)]
)
def test_answers_that_long_prompts_slow_have_no_interval_in_an_open_loop(prompt_tokens, rate, none) -> None:
    """Each prompt takes 40 ms beyond a token: 0.6 of the time at 15 requests/s, 0.2 at 5."""
    rng = np.random.default_rng(2)
    drawn = open_loop(np.minimum(rng.poisson(3, 400), 5), rng.normal(50, 0.5, 400), rate=rate)
    assert drawn.arrivals is not None
    read = replace(drawn.arrivals, prompt_tokens=np.full(400, prompt_tokens))
    found = stats.headline_intervals(replace(drawn, arrivals=read))
    assert {found[name] is None for name in stats.SLOWED} == {none}
    assert found["output_throughput_tok_s"] is not None


def test_no_mean_ttft_where_the_engine_may_not_keep_up() -> None:
    """And the row says why."""
    rng = np.random.default_rng(2)
    found = stats.headline_intervals(open_loop(np.minimum(rng.poisson(3, 400), 4), rng.normal(50, 2, 400), rate=20.0))
    assert {found[name] for name in stats.QUEUED} == {None}
    assert found["itl_ms_mean"] is not None
    row = PointRow(rate=20.0, ttft_ms_mean=50.0, ttft_ms_n=400, e2e_ms_mean=300.0, window_s=40.0)
    assert "capacity" in str(stats.missing_interval(row, "ttft_ms_mean"))


def test_equal_values_have_an_interval_without_width() -> None:
    """What never varied leaves nothing unsure."""
    assert mean_interval(np.full(100, 4.1), LONG) == pytest.approx((4.1, 4.1))
    pooled = mean_interval(stats.linearised(np.full(1000, 4.0), np.full(100, 10)), LONG)
    assert pooled == pytest.approx((4.0, 4.0))


def test_independent_values_cost_a_third_of_width_at_most() -> None:
    """Against the textbook interval of a mean, on average over 100 series."""
    ratios = []
    for seed in range(100):
        values = np.random.default_rng(seed).normal(100, 15, 400)
        low, high = mean_interval(values, LONG) or (0.0, 0.0)
        ratios.append((high - low) / (2 * 1.96 * 15 / 20))
    assert 1.0 < np.mean(ratios) < 1.4


def test_the_order_of_values_matters() -> None:
    """The same values say less about the mean when neighbours are alike: sorted into waves, the interval is much wider."""
    rng = np.random.default_rng(0)
    wave = np.repeat(rng.normal(10, 1, 20), 20)
    ordered = mean_interval(wave, LONG)
    mixed = mean_interval(rng.permutation(wave), LONG)
    assert ordered is not None
    assert mixed is not None
    assert ordered[1] - ordered[0] > 2.5 * (mixed[1] - mixed[0])


@pytest.mark.parametrize(("percent", "needed"), [(50, 6), (95, 72), (99, 736)])
def test_a_percentile_takes_so_many_values(percent: float, needed: int) -> None:
    """With one less there is no two-sided 95% interval, whatever the values are (Hahn and Meeker)."""
    assert stats.values_needed(percent) == needed
    values = np.random.default_rng(1).exponential(10, max(needed, 100))
    assert stats.pooled_percentile_interval(values[: needed - 1], None, percent, LONG) is None
    if needed >= 72:
        assert stats.pooled_percentile_interval(values, None, percent, LONG) is not None


@pytest.mark.parametrize(("sd", "relaxation_s", "least"), [(0.0, 1.0, 0.95), (0.05, 10.0, 0.8)])
def test_a_high_percentile_of_the_long_run_is_that_of_slow_spells(sd: float, relaxation_s: float, least: float) -> None:
    """Two minutes have few spells of 10 s, so their p99 is below that of an hour: 72% of intervals hold that here otherwise."""
    rng, count, seconds = np.random.default_rng(9), 3000, 120.0

    def window() -> Floats:
        keep = np.exp(-seconds / count / relaxation_s)
        speed = lfilter([1.0], [1.0, -keep], rng.normal(0, (1 - keep**2) ** 0.5, count), zi=[keep * rng.normal()])[0]
        found: Floats = (1 + sd * speed) * rng.normal(10, 0.3, count)
        return found

    truth = np.quantile(np.concatenate([window() for _ in range(300)]), 0.99)
    span = SeriesSpan(seconds=seconds, rounds=240.0)
    found = [stats.pooled_percentile_interval(window(), None, 99, span) or (0.0, 0.0) for _ in range(60)]
    assert np.mean([low <= truth <= high for low, high in found]) >= least


def test_too_short_a_window_has_no_interval_and_says_why() -> None:
    """A point of less than three rounds of answers, one with 200 requests for its p99, and one whose tokens are unknown."""
    assert mean_interval(np.arange(100.0), SeriesSpan(seconds=10.0, rounds=2.9)) is None
    row = PointRow.from_dict(
        {"ttft_ms_mean": 10.0, "ttft_ms_p99": 20.0, "ttft_ms_n": 200, "e2e_ms_mean": 3000.0, "window_s": 6.0}
    )
    assert "2 times as long as an answer" in str(stats.missing_interval(row, "ttft_ms_mean"))
    assert "takes 736 values, and the window has 200" in str(stats.missing_interval(row, "ttft_ms_p99"))
    assert stats.missing_interval(row, "itl_ms_mean") is None


def test_thirty_requests_of_one_user_have_an_interval() -> None:
    """Each is a round of its own: more cosines than the values allow are not asked for."""
    rng = np.random.default_rng(1)
    values, span = rng.normal(100, 10, 31), SeriesSpan(seconds=40.0, rounds=31.0)
    low, high = mean_interval(values, span) or (0.0, 0.0)
    assert low < 100 < high
    assert stats.pooled_percentile_interval(values, None, 50, span) is not None


def test_no_rate_without_events_or_tokens() -> None:
    """One event, unknown tokens, or a window without length, have no interval."""
    empty = np.empty(0)
    none = PointSample(
        ttft_ms=np.array([5.0]), ttfo_ms=empty, tpot_ms=empty, e2e_ms=np.array([9.0]), itl_ms=np.array([1.0, 2.0]),
        itl_counts=np.array([2, 0]), arrival_s=np.array([1.0, 2.0]), arrival_tokens=None, window_s=3.0,
    )  # fmt: skip
    assert set(stats.headline_intervals(none).values()) == {None}


MEAN = 60.0
STEP_S, FIRST_S = 0.01, 0.2


def one_user(seed: int, seconds: float = 60.0) -> PointSample:
    """A user of an engine that is always equally fast: 0.2 s to the first token, and 10 ms for each other one."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(10, 111, 500).astype(np.float64)
    ends = np.cumsum(FIRST_S + STEP_S * (drawn - 1))
    sent = np.concatenate([[0.0], ends[:-1]])
    arrivals = np.concatenate(
        [start + FIRST_S + STEP_S * np.arange(count) for start, count in zip(sent, drawn, strict=True)]
    )
    inside = sent < seconds
    tokens, sent = drawn[inside], sent[inside]
    arrivals = arrivals[arrivals < seconds]
    e2e = 1e3 * (ends[inside] - sent) + rng.normal(0, 2, tokens.size)
    return PointSample(
        ttft_ms=np.full(tokens.size, 1e3 * FIRST_S),
        ttfo_ms=np.full(tokens.size, 1e3 * FIRST_S),
        tpot_ms=np.full(tokens.size, 1e3 * STEP_S),
        e2e_ms=e2e,
        itl_ms=np.empty(0),
        itl_counts=np.empty(0, dtype=np.int64),
        arrival_s=arrivals,
        arrival_tokens=np.ones(arrivals.size),
        window_s=seconds,
        lengths=AnswerLengths(tokens=tokens, mean=MEAN),
    )


TRUE_MS = 1e3 * (FIRST_S + STEP_S * (MEAN - 1))


def lengths_of(sample: PointSample) -> AnswerLengths:
    assert sample.lengths is not None
    return sample.lengths


def test_a_mean_is_that_of_the_long_run():
    """What is left scatters by a fraction of what the window's means do."""
    samples = [one_user(seed) for seed in range(40)]
    shown = [sample.e2e_ms.mean() for sample in samples]
    found = [stats.controlled(sample.e2e_ms, lengths_of(sample)).mean() for sample in samples]
    assert np.mean(found) == pytest.approx(TRUE_MS, rel=0.002)
    assert np.std(found) < 0.1 * np.std(shown)


def test_the_interval_is_narrower_and_holds_the_shown_value_and_the_long_run():
    widths, held = [], 0
    for seed in range(20):
        sample = one_user(seed)
        known, without = (
            stats.headline_intervals(one)["e2e_ms_mean"] for one in (sample, replace(sample, lengths=None))
        )
        assert known is not None
        assert without is not None
        assert known[0] - 1e-9 <= sample.e2e_ms.mean() <= known[1] + 1e-9
        held += known[0] <= TRUE_MS <= known[1]
        widths.append((known[1] - known[0]) / (without[1] - without[0]))
    assert held >= 18
    assert np.mean(widths) < 0.75


def test_other_columns_are_as_they_were():
    sample = one_user(1)
    found, without = stats.headline_intervals(sample), stats.headline_intervals(replace(sample, lengths=None))
    changed = {name for name in found if found[name] != without[name]}
    assert changed == {"e2e_ms_mean"}


@pytest.mark.parametrize(("mean", "usual"), [(MEAN, True), (2 * MEAN, False), (MEAN / 2, False)])
def test_lengths_of_another_distribution_change_nothing(mean, usual):
    """Their mean is not that which is known."""
    sample = one_user(1)
    other = replace(sample, lengths=replace(lengths_of(sample), mean=mean))
    assert stats.are_usual(lengths_of(other)) is usual
    assert (stats.headline_intervals(other) == stats.headline_intervals(replace(sample, lengths=None))) is not usual


def test_too_few_answers_explain_nothing():
    few = AnswerLengths(tokens=np.array([50.0, 70.0]), mean=MEAN)
    assert not stats.are_usual(few)
    assert not stats.are_usual(AnswerLengths(tokens=np.empty(0), mean=MEAN))
