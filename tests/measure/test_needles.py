"""Facts hidden in long prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from servebench.contracts.request import Request
from servebench.contracts.results import Record
from servebench.measure.content import needle_columns, needles_found

REFERENCE = {"needles": [{"answer": "123456"}, {"answer": "654321"}]}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("123456 and 654321", [True, True]),
        ("It is 654,321.", [False, True]),
        ("91234567", [False, False]),
        ("", [False, False]),
    ],
)
def test_found(text: str, found: list[bool]) -> None:
    """A number counts as a whole, with or without separators of thousands."""
    assert needles_found(text, REFERENCE) == found


def test_columns(make: Callable[..., Record]) -> None:
    """A share over the needles of ok requests; none without them."""
    requests = [Request(request_id=name, prompt="", reference=REFERENCE) for name in "ab"]
    ok = replace(make(0, [1]), request_id="a", text="123456")
    bad = replace(make(0, [1]), request_id="b", text="123456 654321", outcome="timeout")
    assert needle_columns([ok, bad], requests) == {"needle_recall": 0.5}
    assert needle_columns([bad], requests) == {"needle_recall": None}
    assert needle_columns([ok], [Request(request_id="a", prompt="", reference="4")]) == {}
