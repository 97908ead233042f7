"""Whether answers contain the facts that are hidden in long prompts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean

from servebench.contracts.request import Request
from servebench.contracts.results import Record


def needles_found(text: str, reference: Mapping[str, object]) -> list[bool]:
    """Return for each needle of a request's reference, in order, whether its number is in the answer."""
    needles = reference.get("needles")
    assert isinstance(needles, Sequence)
    numbers = set(re.findall(r"\d+", text.replace(",", "")))
    return [needle["answer"] in numbers for needle in needles]


def needle_columns(records: Sequence[Record], requests: Sequence[Request]) -> dict[str, float | None]:
    """Return `needle_recall`: the share of the needles of ok requests that their answers contain. Empty without needles.

    Only the number is checked, not what the answer says about it. Warm-up records are left out.
    """
    asked = {
        request.request_id: request.reference
        for request in requests
        if isinstance(request.reference, Mapping) and request.reference.get("needles")
    }
    if not asked:
        return {}
    found = [
        hit
        for record in records
        if record.request_id in asked and record.measured and record.outcome == "ok"
        for hit in needles_found(record.text, asked[record.request_id])
    ]
    return {"needle_recall": fmean(found) if found else None}
