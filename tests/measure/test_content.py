"""What prompts and answers say beside times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from servebench.contracts.engine import Dialect, Engine
from servebench.contracts.point_row import PointRow
from servebench.contracts.request import Request
from servebench.run.point import content_columns, content_doubts
from servebench.util.proportions import wilson

SCHEMA = {"type": "array"}


def answer(request_id: str, text: str) -> Any:
    return SimpleNamespace(
        request_id=request_id,
        text=text,
        reasoning="",
        outcome="ok",
        measured=True,
        sent_ns=1,
        first_event_ns=2,
        last_event_ns=2,
    )


class Strict(Engine):
    name = "strict"


class Lax(Engine):
    name = "lax"
    dialect = Dialect(json_schema=False)


def test_compliance_has_an_interval() -> None:
    """Wilson's, over the answers that were judged."""
    requests = [Request(request_id=str(n), prompt="", schema=SCHEMA) for n in range(4)]
    records = [answer(str(n), "[]" if n else "none") for n in range(4)]
    row = content_columns(requests, records, {}, PointRow())
    assert (row["json_compliance"], row["json_compliance_n"]) == (0.75, 4)
    assert (row["json_compliance_low"], row["json_compliance_high"]) == wilson(3, 4)


def test_nothing_to_say() -> None:
    """Plain requests have none of it."""
    assert content_columns([Request(request_id="0", prompt="")], [answer("0", "x")], {}, PointRow()) == {}


@pytest.mark.parametrize(("engine", "schema", "doubted"), [(Strict, SCHEMA, 0), (Lax, SCHEMA, 1), (Lax, None, 0)])
def test_a_schema_that_nobody_enforces(engine: type[Engine], schema: Any, doubted: int) -> None:
    """Told where an engine takes no schema and the workload has one."""
    found = content_doubts([Request(request_id="0", prompt="", schema=schema)], engine())
    assert [doubt.code for doubt in found] == ["schema_not_enforced"] * doubted
