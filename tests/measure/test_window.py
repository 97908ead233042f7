from collections.abc import Callable
from typing import Any

import pytest

from servebench.contracts.results import Record
from servebench.measure.window import Window, find_window

MS = 1_000_000
Make = Callable[..., Record]

# (sent, ended) in ms; concurrency; warm-up in ms; start, end in ms; reached; average in flight
CASES = {
    "one after another": ([(0, 10), (11, 20), (21, 30)], 1, 0, 0, 30, True, 28 / 30),
    "ramp up and drain are cut": ([(0, 50), (10, 30), (30.5, 60), (50.5, 90)], 2, 0, 10, 60, True, (100 - 1) / 50),
    "a dip inside is kept": ([(0, 10), (0, 10), (40, 60), (40, 60)], 2, 0, 0, 60, True, 60 / 60),
    "more in flight than asked": ([(0, 40), (5, 30), (10, 20)], 2, 0, 5, 30, True, (25 + 25 + 10) / 25),
    "warm-up is cut in front": ([(0, 100), (0, 100)], 2, 40, 40, 100, True, 2.0),
    "warm-up longer than the run": ([(0, 100), (0, 100)], 2, 400, 100, 100, True, None),
    "never reached": ([(0, 50), (10, 30)], 3, 40, 0, 50, False, (50 + 20) / 50),
    "ends and begins at one moment": ([(0, 10), (10, 20)], 1, 0, 0, 20, True, 1.0),
    "never both at one moment": ([(0, 10), (10, 20)], 2, 0, 0, 20, False, 1.0),
    "a rate": ([(0, 4), (10, 14), (20, 24), (30, 34), (40, 44)], None, 0, 6, 36, True, 12 / 30),
    "a rate with long answers": ([(0, 50), (10, 30), (39, 200)], None, 0, 19.5, 29.25, True, 2.0),
}


@pytest.mark.parametrize(
    ("spans", "concurrency", "warmup", "start", "end", "reached", "average"), CASES.values(), ids=CASES
)
def test_window(
    make: Make,
    spans: list[tuple[float, float]],
    concurrency: int | None,
    warmup: float,
    start: float,
    end: float,
    reached: bool,
    average: float | None,
) -> None:
    """From the first moment at the level to the moment it is left for good, less warm-up; else the whole run."""
    found = find_window([make(sent, ended=ended) for sent, ended in spans], concurrency, warmup / 1000)
    assert found is not None
    # the request that completes the level is not inside
    opened = reached and (concurrency or 0) > 1 and found.end_ns > found.start_ns
    assert (found.start_ns - opened, found.end_ns, found.reached) == (round(start * MS), round(end * MS), reached)
    assert found.average_in_flight == (None if average is None else pytest.approx(average))
    shared = average is not None and concurrency is not None
    assert found.share == (pytest.approx(average / concurrency) if shared else None)


def test_warmup_requests_and_unsent_ones_are_not_in_flight(make: Make) -> None:
    """Only measured requests that were sent count, failed ones too."""
    records = [
        make(0, ended=10, warmup=True),
        make(20, ended=30),
        make(None, ended=500, outcome="refused"),
        make(40, ended=60, outcome="timeout"),
    ]
    found = find_window(records, 1)
    assert found is not None
    assert (found.start_ns, found.end_ns) == (20 * MS, 60 * MS)


def test_nothing_sent_has_no_window(make: Make) -> None:
    """No window is made up where no request was sent."""
    assert find_window([], 4) is None
    assert find_window([make(None, outcome="refused"), make(0, ended=5, warmup=True)], 4) is None


def test_length_in_seconds() -> None:
    """`seconds` is the length of the window."""
    window = Window(start_ns=5, end_ns=2_500_000_005, reached=True, average_in_flight=1.0, share=1.0)
    assert window.seconds == 2.5


@pytest.mark.parametrize(
    ("cut", "start", "end"),
    [
        ({}, 0, 100),
        ({"cooldown_s": 0.02}, 0, 80),
        ({"cooldown_requests": 2}, 0, 80),
        ({"cooldown_requests": 99}, 0, 0),
        ({"cooldown_s": 9.0}, 0, 0),
        ({"cooldown_requests": 2, "cooldown_s": 0.01, "warmup_s": 0.01}, 10, 70),
    ],
)
def test_a_cool_down_is_cut_from_the_back(make: Make, cut: dict[str, Any], start: int, end: int) -> None:
    """By time, or from the sending of the last requests on; never past the beginning."""
    records = [make(10 * n, [10 * n + 1], 10 * n + 10) for n in range(10)]
    window = find_window(records, 1, cut.pop("warmup_s", 0.0), **cut)
    assert window is not None
    assert (round(window.start_ns / 1e6), round(window.end_ns / 1e6)) == (start, end)
