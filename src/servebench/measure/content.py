"""What answers contain: whether they match their JSON schema, and the facts that are hidden in long prompts."""

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from servebench.contracts.request import Request
from servebench.contracts.results import Record
from servebench.measure import derive
from servebench.util.json_schema import compliance
from servebench.util.thinking import split_thinking


def json_columns(records: Sequence[Record], requests: Sequence[Request]) -> dict[str, float | None]:
    """Return the columns of a point about JSON schemas; empty when no request has one.

    `json_compliance`: the share of ok requests with an enforced schema whose answer fits it, without its thinking; an answer cut
    at its maximum length does not, one that ends inside its thinking is left out. `json_compliance_n`: the number of those
    requests. `json_compliance_unconstrained`: the same share of their twins, which have the schema only in the prompt.
    `constraint_ttft_ms` and `constraint_tpot_ms`: the mean over pairs, both ok, of the constrained request's time less its
    twin's. Warm-up records are left out.
    """
    ok = {r.request_id: r for r in records if r.measured and r.outcome == "ok"}
    bound = [r for r in requests if r.schema is not None]
    if not bound:
        return {}
    twins = [
        r for r in requests if r.schema is None and isinstance(r.reference, Mapping) and r.reference.get("twin_of")
    ]
    pairs = [
        (ok[twin.reference["twin_of"]], ok[twin.request_id])
        for twin in twins
        if twin.request_id in ok and twin.reference["twin_of"] in ok
    ]
    answers = {key: rest for key, one in ok.items() if (rest := split_thinking(one.text, one.reasoning)[1]) is not None}
    constrained = [(answers[r.request_id], r.schema or {}) for r in bound if r.request_id in answers]
    return {
        "json_compliance": _share(constrained),
        "json_compliance_n": len(constrained),
        "json_compliance_unconstrained": _share(
            [(answers[r.request_id], r.reference["schema"]) for r in twins if r.request_id in answers]
        ),
        "constraint_ttft_ms": _difference([(derive.ttft_ms(a), derive.ttft_ms(b)) for a, b in pairs]),
        "constraint_tpot_ms": _difference([(derive.tpot_ms(a), derive.tpot_ms(b)) for a, b in pairs]),
    }


def _share(answers: Sequence[tuple[str, Mapping[str, Any]]]) -> float | None:
    return fmean(compliance(text, schema).valid for text, schema in answers) if answers else None


def _difference(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    known = [a - b for a, b in pairs if a is not None and b is not None]
    return fmean(known) if known else None


def needles_found(text: str, reference: Mapping[str, object]) -> list[bool]:
    """Return for each needle of a request's reference, in order, whether its number is in the answer."""
    needles = reference.get("needles")
    assert isinstance(needles, Sequence)
    numbers = set(re.findall(r"\d+", text.replace(",", "")))
    return [needle["answer"] in numbers for needle in needles]


def needle_columns(records: Sequence[Record], requests: Sequence[Request]) -> dict[str, float | None]:
    """Return `needle_recall`: the share of the needles of ok requests that their answers contain. Empty without needles.

    Only the number is checked, not what the answer says about it; not in thinking. Warm-up records are left out.
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
        for hit in needles_found(split_thinking(record.text, record.reasoning)[1] or "", asked[record.request_id])
    ]
    return {"needle_recall": fmean(found) if found else None}
