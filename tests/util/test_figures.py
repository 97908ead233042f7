"""Figures as text."""

import pytest

from servebench.util.figures import number, rough, short_number, with_interval


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (153.4, 143.43, 163.37, "153 ±10"),
        (78.4, 62.4, 94.4, "78 ±16"),
        (2063.0, 1903.0, 2223.0, "2,060 ±160"),
        (99.24, 97.7, 100.7, "99.2 ±1.5"),
        (434.0, 430.1, 437.9, "434.0 ±3.9"),
        (100.0, None, None, "100"),
        (100.0, 100.0, 100.0, "100 ±0"),
        (None, 1.0, 2.0, "-"),
    ],
)
def test_a_value_has_no_digit_beyond_its_interval(value, low, high, text):
    assert with_interval({"x": value, "x_low": low, "x_high": high}, "x") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (99.97, "100"),
        (100.2, "100"),
        (9.996, "10.0"),
        (0.9996, "1.00"),
        (99.4, "99.4"),
        (-99.97, "-100"),
        (0.01, "0.010"),
        (0.0042, "0.00420"),
        (-0.000123456, "-0.000123"),
        (1e-12, "0.000000000"),
    ],
)
def test_a_number_that_is_rounded_up_has_as_many_digits_as_its_neighbours(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(3586.0, "3,600"), (0.1234, "0.12"), (58.1, "58"), (None, "-"), (0.0, "0")]
)
def test_a_rough_figure_has_two_digits(value, text):
    assert rough(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (97.0, "97"),
        (0.2, "0.2"),
        (0, "0"),
        (15.31, "15.3"),
        (1959.6, "1,960"),
        (999.7, "1,000"),
        (-4321.0, "-4,320"),
    ],
)
def test_a_short_number_has_no_exponent_and_no_zeros_at_its_end(value, text):
    assert short_number(value) == text
