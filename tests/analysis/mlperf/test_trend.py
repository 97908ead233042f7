"""The tests of trend and step, held to figures worked out by hand."""

import math

import numpy as np
import pytest

from servebench.analysis.mlperf.trend import level_step, relative_change, trend, variation

RISING = np.arange(1.0, 6.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (RISING, "up"),  # S = 10, variance 16.67, z = 2.20
        (-RISING, "down"),
        (RISING[:4], "flat"),  # S = 6, variance 8.67, z = 1.70
        (RISING[:3], "flat"),
        (np.ones(8), "flat"),
        (np.array([1.0, 3.0, 2.0, 5.0, 4.0]), "flat"),  # S = 6, z = 1.22
        (np.array([1.0, 2.0, 3.0, 4.0, 4.0, 4.0, 4.0]), "up"),  # S = 15, variance 35.67: ties take 8.67; z = 2.34
    ],
)
def test_a_trend_is_what_ranks_cannot_do_by_chance(values, expected):
    assert trend(values) == expected


def test_autocorrelation_takes_the_significance_of_a_wave():
    """One slow wave has a significant S if its values were independent, and none as they are."""
    wave = np.sin(np.linspace(-0.5 * np.pi, 1.1 * np.pi, 40))
    signs = np.triu(np.sign(wave[None, :] - wave[:, None]), 1).sum()
    plain = (abs(signs) - 1) / math.sqrt(40 * 39 * 85 / 18)
    assert plain > 1.96
    assert trend(wave) == "flat"


def test_pettitt_finds_the_last_value_before_a_step():
    """Ranks 1 to 10 in order: U is largest after 5, K = |2*15 - 5*11| = 25, p = 2 exp(-6*625/1100)."""
    step = level_step(np.arange(10.0))
    assert (step.before, step.p) == (5, pytest.approx(2 * math.exp(-3750 / 1100)))
    tied = level_step(np.array([1.0] * 4 + [2.0] * 8))
    assert tied.before == 4
    assert level_step(np.array([2.0, 1.0, 2.0, 1.0, 2.0, 1.0])).p == 1.0
    assert level_step(RISING[:3]).p == 1.0


def test_change_and_variation_are_shares():
    assert relative_change(RISING) == pytest.approx(4 / 3)
    assert variation(np.array([9.0, 11.0])) == pytest.approx(0.1)
    assert variation(np.array([9.0])) == 0.0
    assert variation(np.zeros(3)) == 0.0
