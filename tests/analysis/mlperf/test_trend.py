"""The tests of trend and step, held to figures worked out by hand."""

import math

import numpy as np
import pytest

from servebench.analysis.mlperf.trend import steps, trend

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


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.arange(12.0), True),  # K = |2 * 21 - 6 * 13| = 36, p = 2 exp(-6 * 1296 / 1872) = 0.031
        (np.arange(10.0), False),  # K = 25, p = 2 exp(-3750 / 1100) = 0.066
        (np.array([1.0] * 6 + [2.0] * 6), True),  # ties have their mean rank: K = 36 again
        (np.array([2.0, 1.0] * 6), False),
    ],
)
def test_pettitt_finds_a_step(values, expected):
    assert steps(values) == expected
