"""JSON for other programs."""

import json

import numpy as np
import pytest

from servebench.util.plain_data import to_json


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), np.float64("inf")])
def test_a_number_that_is_not_finite_is_null_wherever_it_stands(value):
    text = to_json({"a": value, "b": [1.5, (value,)], "c": {"d": {"e": value}}})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": [1.5, [None]], "c": {"d": {"e": None}}}


def test_all_else_stays():
    value = {"text": "NaN", "count": 3, "flag": True, "none": None, "share": np.float64(0.25)}
    assert json.loads(to_json(value)) == value
