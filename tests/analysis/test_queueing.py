"""What requests of an open loop wait in the long run."""

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest

from servebench.analysis.queueing import find_knee, is_random, long_run
from servebench.measure.in_flight import in_flight_at, mean_in_flight
from servebench.measure.points import Arrivals

ANSWER_MS, TTFT_MS = 1000.0, 50.0


def served(rate: float, running_max: int, requests: int, seed: int = 0, *, regular: bool = False) -> Arrivals:
    """Requests of an engine that runs so many answers at once, of one second on average; the others wait in a queue."""
    rng = np.random.default_rng(seed)
    gaps = np.full(requests, 1 / rate) if regular else rng.exponential(1 / rate, requests)
    sent = np.cumsum(gaps)
    free = [0.0] * running_max
    waits, ends = [], []
    for at, seconds in zip(sent, rng.exponential(ANSWER_MS / 1000, requests), strict=True):
        begun = max(at, heapq.heappop(free))
        heapq.heappush(free, begun + seconds)
        waits.append(begun - at)
        ends.append(begun + seconds)
    sent_ns, begun_ns, ended_ns = (
        np.round(np.array(times) * 1e9).astype(np.int64) for times in (sent, sent + np.array(waits), ends)
    )
    e2e_ms = (ended_ns - sent_ns) / 1e6
    return Arrivals(
        rate_req_s=rate,
        sent_s=sent,
        in_flight=np.maximum(in_flight_at(sent_ns, sent_ns, ended_ns) - 1, 0),
        waiting=np.maximum(in_flight_at(sent_ns, sent_ns, begun_ns) - 1, 0),
        in_flight_mean=mean_in_flight(sent_ns, ended_ns, sent_ns, ended_ns),
        ttft_ms=np.array(waits) * 1000 + np.minimum(TTFT_MS, e2e_ms),
        tpot_ms=np.full(requests, 10.0),
        e2e_ms=e2e_ms,
        prompt_tokens=np.full(requests, 100.0),
    )


def mean_wait_ms(rate: float, running_max: int) -> float:
    """Return Erlang's mean wait."""
    offered = rate * ANSWER_MS / 1000
    last = offered**running_max / math.factorial(running_max) * running_max / (running_max - offered)
    waits = last / (sum(offered**n / math.factorial(n) for n in range(running_max)) + last)
    return waits * ANSWER_MS / (running_max - offered)


def test_a_limit_of_running_requests_is_found():
    queue = served(6.5, 8, 3000)
    knee = find_knee(queue, queue.in_flight)
    assert knee.before == 7
    assert knee.step_ms == pytest.approx(ANSWER_MS / 8, rel=0.25)
    idle = served(3.0, 50, 3000)
    assert find_knee(idle, idle.in_flight) is None


@pytest.mark.parametrize("rate", [4.0, 6.0, 7.0])
def test_the_long_run_is_that_of_the_queue(rate):
    """From many requests the mean TTFT is that of theory, and at its upper side."""
    found = long_run(served(rate, 8, 20_000))
    wait = mean_wait_ms(rate, 8)
    assert 0.9 * wait - 2 < found.mean - TTFT_MS < 1.6 * wait + 2
    assert found.shares.sum() == pytest.approx(1)


def read_in_turn(rate: float, requests: int, seed: int = 0) -> Arrivals:
    """Requests of an engine that reads one prompt after another, each for 100 ms, and writes answers of 2 s beside it."""
    rng = np.random.default_rng(seed)
    sent = np.cumsum(rng.exponential(1 / rate, requests))
    free, first = 0.0, []
    for at in sent:
        free = max(at, free) + 0.1
        first.append(free)
    sent_ns, first_ns = (np.round(np.array(times) * 1e9).astype(np.int64) for times in (sent, first))
    ended_ns = first_ns + np.round(rng.uniform(1.5e9, 2.5e9, requests)).astype(np.int64)
    return Arrivals(
        rate_req_s=rate,
        sent_s=sent,
        in_flight=np.maximum(in_flight_at(sent_ns, sent_ns, ended_ns) - 1, 0),
        waiting=np.maximum(in_flight_at(sent_ns, sent_ns, first_ns) - 1, 0),
        in_flight_mean=mean_in_flight(sent_ns, ended_ns, sent_ns, ended_ns),
        ttft_ms=(first_ns - sent_ns) / 1e6,
        tpot_ms=np.full(requests, 10.0),
        e2e_ms=(ended_ns - sent_ns) / 1e6,
        prompt_tokens=np.full(requests, 4000.0),
    )


@pytest.mark.parametrize("rate", [5.0, 8.0])
def test_prompts_that_are_read_in_turn_are_a_queue_of_one_server(rate):
    """Pollaczek and Khinchine's mean, at its upper side."""
    use = rate * 0.1
    truth = 100 + 100 * use / (1 - use) / 2
    found = long_run(read_in_turn(rate, 4000))
    assert 0.93 * truth < found.mean < 1.3 * truth
    short = [long_run(read_in_turn(rate, 200, seed)) for seed in range(40)]
    assert sum(one is not None and one.mean < 0.95 * truth for one in short) <= 3


def test_a_short_window_holds_the_long_run():
    """Windows of 300 requests at 0.75 of the capacity often lack long queues: at most one of twenty is below the truth."""
    truth = TTFT_MS + mean_wait_ms(6.0, 8)
    found = [(one.ttft_ms.mean(), long_run(one)) for one in (served(6.0, 8, 300, seed) for seed in range(60))]
    assert sum(mean < truth for mean, _ in found) > 20
    assert sum(queue is not None and queue.mean < truth for _, queue in found) <= 3


def test_percentiles_are_ordered_and_beyond_the_mean():
    found = long_run(served(6.5, 8, 4000))
    assert found.percentile(50) < found.mean < found.percentile(95) < found.percentile(99)


def test_an_engine_that_may_not_keep_up_has_no_long_run():
    assert long_run(served(7.9, 8, 300)) is None


def test_an_engine_in_which_everybody_waits_has_no_knee():
    """Nothing shows where waiting began; whether the queue grows is another question (`kept_up`)."""
    rng = np.random.default_rng(0)
    in_flight = rng.integers(40, 80, 200)
    whole = served(2.0, 50, 200)
    waiting = replace(whole, in_flight=in_flight, ttft_ms=100.0 * in_flight, in_flight_mean=in_flight.astype(float))
    knee = find_knee(waiting, in_flight)
    assert knee is None or knee.before >= in_flight.min()


def test_nobody_waits_at_a_low_rate():
    arrivals = served(2.0, 50, 600)
    assert long_run(arrivals).mean == pytest.approx(arrivals.ttft_ms.mean(), rel=0.1)


def test_regular_arrivals_and_a_handful_say_nothing_of_queues():
    assert is_random(served(4.0, 8, 100))
    assert not is_random(served(4.0, 8, 100, regular=True))
    assert not is_random(served(4.0, 8, 8))
