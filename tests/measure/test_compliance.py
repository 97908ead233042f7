"""Schema validity of answers, and the cost of enforcing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from servebench.contracts.request import Request
from servebench.contracts.results import Record
from servebench.measure.content import json_columns

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
Make = Callable[..., Record]


def asked(request_id: str, *, twin_of: str | None = None) -> Request:
    reference = {"schema": SCHEMA, "twin_of": twin_of}
    return Request(request_id=request_id, prompt="", schema=None if twin_of else SCHEMA, reference=reference)


def answer(make: Make, request_id: str, text: str, stamps: list[float], outcome: str = "ok") -> Record:
    return replace(make(0, stamps), request_id=request_id, text=text, outcome=outcome)


def test_columns(make: Make) -> None:
    """Shares over ok requests only; costs over pairs of which both are ok."""
    requests = [asked("a"), asked("a-free", twin_of="a"), asked("b"), asked("b-free", twin_of="b"), asked("c")]
    records = [
        answer(make, "a", '{"n": 1}', [30, 40]),
        answer(make, "a-free", "well: 1", [10, 16]),
        answer(make, "b", '{"n": ', [90, 95]),
        answer(make, "b-free", "", [10], outcome="timeout"),
        answer(make, "c", "{}", [5], outcome="reset"),
    ]
    found = json_columns(records, requests)
    assert (found["json_compliance"], found["json_compliance_n"]) == (0.5, 2)
    assert found["json_compliance_unconstrained"] == 0.0
    assert found["constraint_ttft_ms"] == pytest.approx(20)
    assert found["constraint_tpot_ms"] == pytest.approx(4)


def test_nothing_to_say(make: Make) -> None:
    """Without schemas there is no column; without ok answers there is no share."""
    plain = Request(request_id="a", prompt="", reference={"answer": 4})
    assert json_columns([answer(make, "a", "4", [1])], [plain]) == {}
    assert set(json_columns([], [asked("a")]).values()) == {None, 0}
