import numpy as np
import pytest

from servebench.analysis import rates
from servebench.analysis import statistics as stats
from servebench.measure.points import HEADLINES, PointSample


def sample(requests: int = 40, gaps: int = 20, seed: int = 0) -> PointSample:
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0, 10, requests * (gaps + 1)))
    return PointSample(
        ttft_ms=rng.lognormal(3, 0.5, requests),
        tpot_ms=rng.normal(10, 1, requests),
        e2e_ms=rng.normal(300, 20, requests),
        itl_ms=rng.exponential(10, requests * gaps),
        itl_counts=np.full(requests, gaps),
        arrival_s=arrivals,
        arrival_tokens=np.ones(arrivals.size),
        window_s=10.0,
    )


def test_every_headline_has_an_interval_around_its_estimate() -> None:
    """The names are those of the columns, each interval holds the number that it belongs to, the same each time."""
    drawn = sample()
    found = stats.headline_intervals(drawn)
    assert tuple(found) == HEADLINES
    estimates = {
        "output_throughput_tok_s": 84.0,
        "ttft_ms_mean": drawn.ttft_ms.mean(),
        "ttft_ms_p50": np.percentile(drawn.ttft_ms, 50),
        "ttft_ms_p99": np.percentile(drawn.ttft_ms, 99),
        "itl_ms_mean": drawn.itl_ms.mean(),
        "itl_ms_p99": np.percentile(drawn.itl_ms, 99),
        "tpot_ms_mean": drawn.tpot_ms.mean(),
        "e2e_ms_mean": drawn.e2e_ms.mean(),
    }
    for name, interval in found.items():
        assert interval is not None
        low, high = interval
        assert low < estimates[name] < high
        assert type(low) is float
    assert stats.headline_intervals(drawn) == found
    assert stats.headline_intervals(drawn, seed=1) != found


def test_nothing_to_resample_gives_none() -> None:
    """Fewer than two requests have no interval, and neither has a throughput of unknown counts."""
    empty = np.empty(0)
    none = PointSample(
        ttft_ms=np.array([5.0]), tpot_ms=empty, e2e_ms=np.array([9.0]), itl_ms=np.array([1.0, 2.0]),
        itl_counts=np.array([2, 0]), arrival_s=np.array([1.0, 2.0]), arrival_tokens=None, window_s=3.0,
    )  # fmt: skip
    assert set(stats.headline_intervals(none).values()) == {None}


def test_equal_values_have_an_interval_without_width() -> None:
    """What never varied leaves nothing unsure."""
    assert stats.bootstrap_interval(np.full(10, 4.0), stats.mean) == (4.0, 4.0)
    assert stats.clustered_interval(np.full(10, 4.0), np.array([4, 6]), 99) == (4.0, 4.0)
    assert stats.clustered_interval(np.full(10, 4.0), np.array([4, 6]), None) == (4.0, 4.0)


def test_confidence_widens() -> None:
    """More confidence asks for a wider interval."""
    values = np.random.default_rng(3).normal(0, 1, 50)
    narrow = stats.bootstrap_interval(values, stats.mean, confidence=0.5)
    wide = stats.bootstrap_interval(values, stats.mean, confidence=0.99)
    assert narrow is not None
    assert wide is not None
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_the_mean_agrees_with_the_textbook() -> None:
    """For a mean of many normal values the interval is close to mean +- 1.96 standard errors."""
    values = np.random.default_rng(7).normal(100, 15, 400)
    interval = stats.bootstrap_interval(values, stats.mean, resamples=4000)
    error = 1.96 * values.std(ddof=1) / 20
    assert interval == pytest.approx((values.mean() - error, values.mean() + error), abs=0.15)


def covered(draw: object, truth: float, rounds: int = 100) -> int:
    hits = 0
    for seed in range(rounds):
        interval = draw(np.random.default_rng(seed))  # type: ignore[operator]
        hits += interval[0] <= truth <= interval[1]
    return hits


def test_intervals_of_pooled_gaps_cover_when_requests_differ() -> None:
    """Requests that are slow as a whole widen the interval: it covers the true mean about as often as it says.

    Resampling the gaps alone, as if they were independent, would cover in far fewer rounds.
    """
    counts = np.full(40, 30)

    def gaps(rng: np.random.Generator) -> np.ndarray:
        return np.repeat(rng.normal(10, 3, 40), 30) + rng.normal(0, 1, 1200)

    def clustered(rng: np.random.Generator) -> object:
        return stats.clustered_interval(gaps(rng), counts, None, resamples=400)

    def independent(rng: np.random.Generator) -> object:
        return stats.bootstrap_interval(gaps(rng), stats.mean, resamples=400)

    assert covered(clustered, 10.0) >= 87
    assert covered(independent, 10.0) <= 60


def closed_loop(
    rng: np.random.Generator, streams: int, rounds: int, *, length: int = 64, unlike: float = 0.0, wander: float = 0.02
) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """A hundred points at once of an engine with continuous batching: (stamps, tokens of each step, window's length).

    A step serves all streams and takes longer with each of them, and with each prompt that begins in it; its time has noise,
    and the engine's speed wanders over 50 steps. `unlike` is how much answers differ in length (sigma of a lognormal).
    """
    points, at_once = 100, (100, streams)

    def lengths() -> np.ndarray:
        drawn = rng.lognormal(np.log(length) - unlike**2 / 2, unlike, at_once)
        return np.maximum(2, np.round(drawn)).astype(int)

    left, fresh = lengths(), np.ones(at_once, bool)
    begun, now = np.full(points, streams), np.zeros(points)
    speed, stay = rng.normal(0, wander, points), np.exp(-1 / 50)
    stamps, tokens, ended = [], [], np.full(points, np.inf)
    while np.isinf(ended).any():
        speed = stay * speed + np.sqrt(1 - stay**2) * rng.normal(0, wander, points)
        cost = (1 + 0.02 * streams + 0.3 * fresh.sum(1)) * np.exp(speed)
        now = now + cost * rng.gamma(100, 0.01, points)
        stamps.append(now.copy())
        tokens.append(np.full(points, float(streams)))
        left -= 1
        fresh = left == 0
        begun += fresh.sum(1)
        left = np.where(fresh, lengths(), left)
        ended = np.where(np.isinf(ended) & (begun > streams * rounds), now, ended)
    at, brought = np.array(stamps), np.array(tokens)
    return [(at[at[:, i] <= end, i], brought[at[:, i] <= end, i], float(end)) for i, end in enumerate(ended)]


def open_loop(rng: np.random.Generator, requests: int = 150) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """A hundred points of Poisson arrivals, one a second, of answers of 64 tokens in 3.2 s each."""
    found = []
    for _ in range(100):
        sent = np.cumsum(rng.exponential(1, requests))
        stamps = np.sort((sent[:, None] + 0.05 * np.arange(1, 65)).ravel())
        stamps = stamps[(stamps > sent[0]) & (stamps <= sent[-1])] - sent[0]
        found.append((stamps, np.ones(stamps.size), float(sent[-1] - sent[0])))
    return found


@pytest.mark.parametrize(
    "how",
    [
        {"streams": 1, "rounds": 50},
        {"streams": 8, "rounds": 10},
        {"streams": 32, "rounds": 10},
        {"streams": 8, "rounds": 10, "unlike": 0.5},
        {"streams": 32, "rounds": 10, "unlike": 0.5},
        {"streams": 8, "rounds": 10, "unlike": 0.8, "wander": 0.0},
        {"streams": 32, "rounds": 30, "unlike": 0.3, "wander": 0.05},
        {"open": True},
    ],
    ids=str,
)
def test_throughput_intervals_hold_the_truth_and_are_not_too_long(how: dict[str, float]) -> None:
    """The true rate of an engine, known from long windows, lies in the intervals of short ones about as often as they say,
    and they are not much longer than with the true error known; streams in step and Poisson arrivals alike."""
    if how.get("open"):
        points, truth = open_loop(np.random.default_rng(1)), 64.0
    else:
        points = closed_loop(np.random.default_rng(1), **how)  # type: ignore[arg-type]
        long = closed_loop(np.random.default_rng(2), **{**how, "rounds": 4 * how["rounds"]})  # type: ignore[arg-type]
        truth = float(np.mean([tokens.sum() / window_s for _, tokens, window_s in long]))
    found = np.array([rates.rate_interval(*point) for point in points])
    seen = np.array([tokens.sum() / window_s for _, tokens, window_s in points])
    ideal = 2 * 1.96 * seen.std(ddof=1)
    covered = ((found[:, 0] <= truth) & (truth <= found[:, 1])).mean()
    # a share of 100 rounds is itself unsure by some percent
    assert 0.86 <= covered <= 1.0
    assert (found[:, 1] - found[:, 0]).mean() <= 1.4 * ideal


@pytest.mark.parametrize("percent", [50, 90, 99])
@pytest.mark.parametrize("seed", range(4))
def test_pooled_percentiles_are_those_of_the_gaps_laid_out(percent: float, seed: int) -> None:
    """The weighted percentile of a resample equals the percentile of its gaps written out one by one."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 40, 30)
    values = rng.exponential(10, counts.sum())
    drawn = rng.multinomial(30, np.full(30, 1 / 30), size=20).astype(np.float64)
    found = stats._Tail.of(values, counts, percent).percentiles(drawn, drawn @ counts)
    parts = np.split(values, np.cumsum(counts)[:-1])
    for row, got in zip(drawn, found, strict=True):
        laid_out = np.sort(np.concatenate([np.tile(part, int(times)) for part, times in zip(parts, row, strict=True)]))
        above = int(laid_out.size * (100 - percent) // 100)
        assert got == laid_out[-above - 1]


@pytest.mark.parametrize("percent", [50, 99])
def test_many_pooled_values_are_weighed_on_a_grid(percent: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a few thousandths of what weighing each value gives."""
    rng = np.random.default_rng(0)
    counts = rng.integers(100, 400, 200)
    values = rng.exponential(10, counts.sum())
    drawn = rng.multinomial(200, np.full(200, 1 / 200), size=20).astype(np.float64)
    on_grid = stats._Tail.of(values, counts, percent, 30_000)
    assert on_grid.grid is not None
    monkeypatch.setattr(stats, "GRID_FROM", 10**9)
    exact = stats._Tail.of(values, counts, percent, 30_000)
    assert exact.grid is None
    totals = drawn @ counts
    assert on_grid.percentiles(drawn, totals) == pytest.approx(exact.percentiles(drawn, totals), rel=0.01)


@pytest.mark.parametrize("statistic", [stats.mean, stats.Percentile(50), stats.Percentile(99)])
def test_the_limit_of_the_bootstrap_is_the_bootstrap(
    statistic: stats.Statistic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many values both intervals agree to a tenth of their width."""
    values = np.random.default_rng(5).gamma(4, 25, stats.LARGE)
    limit = stats.bootstrap_interval(values, statistic)
    monkeypatch.setattr(stats, "LARGE", 10**9)
    drawn = stats.bootstrap_interval(values, statistic)
    assert limit is not None
    assert drawn is not None
    assert limit == pytest.approx(drawn, abs=0.15 * (drawn[1] - drawn[0]))


@pytest.mark.parametrize("percent", [None, 50, 99])
def test_the_limit_of_resampled_requests_is_what_resampling_gives(
    percent: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requests that differ in pace and length, whose gaps hang together."""
    rng = np.random.default_rng(11)
    counts = rng.integers(1, 40, stats.LARGE)
    values = rng.gamma(4, 5, int(counts.sum())) * np.repeat(rng.gamma(20, 0.05, stats.LARGE), counts)
    limit = stats.clustered_interval(values, counts, percent)
    monkeypatch.setattr(stats, "LARGE", 10**9)
    drawn = stats.clustered_interval(values, counts, percent)
    assert limit is not None
    assert drawn is not None
    assert limit == pytest.approx(drawn, abs=0.15 * (drawn[1] - drawn[0]))


def test_one_dominant_request_deepens_the_search() -> None:
    """When every large gap belongs to one request, resamples that draw it often still find their percentile."""
    values = np.concatenate((np.full(500, 100.0), np.arange(9500) / 1000))
    counts = np.array([500, *[500] * 19])
    low, high = stats.clustered_interval(values, counts, 99) or (None, None)
    assert low is not None
    assert 8 < low <= 9.5
    assert high == 100


def test_two_events_tell_next_to_nothing() -> None:
    """They still give an interval: from zero up, for nothing is known."""
    found = rates.rate_interval(np.array([1.0, 9.0]), np.ones(2), 10.0)
    assert found is not None
    assert found[0] == 0
    assert found[1] > 0.2


@pytest.mark.parametrize(("arrivals", "window_s"), [([1.0], 10.0), ([], 10.0), ([1.0, 2.0], 0.0)])
def test_no_rate_without_events_or_time(arrivals: list[float], window_s: float) -> None:
    """One event, or a window without length, has no interval."""
    assert rates.rate_interval(np.array(arrivals), np.ones(len(arrivals)), window_s) is None
