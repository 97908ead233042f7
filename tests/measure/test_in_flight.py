"""Requests that the engine holds though nobody waits for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from servebench.contracts.results import Record
from servebench.measure.in_flight import excess_and_freed

S = 1_000_000_000
Make = Callable[..., Record]


def abandoned(make: Make, count: int, every_s: float, after_s: float) -> list[Record]:
    times = [n * every_s for n in range(count)]
    return [make(1000 * t, [], 1000 * (t + after_s), outcome="abandoned") for t in times]


def whole(make: Make, count: int, seconds: float) -> list[Record]:
    return [make(1000 * n, [1000 * n + 1], 1000 * (n + seconds)) for n in range(count)]


@pytest.mark.parametrize(("held_on", "freed"), [(0.0, True), (9.0, False)])
def test_an_engine_that_goes_on_holds_what_was_left(make: Make, held_on: float, *, freed: bool) -> None:
    """Each second one request is left 1 s after it was sent; whole ones take 10 s: 9 more would be held at any time."""
    records = [*whole(make, 30, 10.0), *abandoned(make, 30, 1.0, 1.0)]
    # at half past each second: ten whole ones, one that is about to be abandoned, and what the engine kept
    samples = [(int((n + 0.5) * S), 10 + 1 + held_on) for n in range(12, 28)]
    excess, found = excess_and_freed(records, samples, 10 * S, 30 * S)
    assert excess == pytest.approx(held_on)
    assert found is freed


def test_what_cannot_be_told(make: Make) -> None:
    records = whole(make, 30, 10.0)
    assert excess_and_freed(records, [(15 * S, 10.0)], 10 * S, 30 * S) == (pytest.approx(0.0, abs=1.0), None)
    assert excess_and_freed(records, [], 10 * S, 30 * S) == (None, None)
    assert excess_and_freed(records, [(15 * S, 10.0)], None, None) == (None, None)
    # they leave when they are nearly done: nothing much would be held
    late = [*whole(make, 30, 10.0), *abandoned(make, 2, 10.0, 9.9)]
    assert excess_and_freed(late, [(15 * S, 11.0)], 10 * S, 30 * S)[1] is None
