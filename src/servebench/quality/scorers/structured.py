"""JSON: whether the answers of the workload `structured_json` match their schema, and how many fields are right."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from servebench.contracts.quality import Grade, Item, ItemAnswer, Judged, Scorer
from servebench.contracts.request import Request
from servebench.contracts.results import Record
from servebench.quality.load_answers import answer_of, answered_requests, item_of
from servebench.util.json_schema import compliance

CONSTRAINED, UNCONSTRAINED = "constrained", "unconstrained"
_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_MISSING = object()


def leaves(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every field with its place: the leaves of objects and lists. An empty object or list is one field."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*place, str(key)))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from leaves(inner, (*place, index))
    else:
        yield place, value


def field_accuracy(expected: Any, found: Any) -> tuple[int, int]:
    """Return how many fields are right, and how many the two documents have together: an invented field costs as much as a
    missing one.

    Numbers are equal by value, true is not 1, and spaces around text do not matter.
    """
    wanted, given = dict(leaves(expected)), dict(leaves(found))
    places = wanted.keys() | given.keys()
    return sum(_equal(wanted.get(place, _MISSING), given.get(place, _MISSING)) for place in places), len(places)


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, str) and isinstance(second, str):
        return first.strip() == second.strip()
    if isinstance(first, bool) != isinstance(second, bool):
        return False
    return bool(first == second)


def document_of(text: str) -> tuple[Any, bool] | None:
    """Return the JSON in an answer and whether the answer is nothing else. A code fence and words around it are ignored;
    None if there is no JSON object or list."""
    try:
        return json.loads(text), True
    except (ValueError, RecursionError):
        pass
    fenced = [match.group(1) for match in _FENCED.finditer(text)]
    decoder = json.JSONDecoder()
    for piece in (*fenced, text):
        start = re.search(r"[{\[]", piece)
        if start is None:
            continue
        try:
            return decoder.raw_decode(piece[start.start() :])[0], False
        except (ValueError, RecursionError):
            continue
    return None


class JsonScorer(Scorer):
    """Grades the load's answers and sends no requests. Right when the whole answer is JSON that matches its schema. The
    score is the share of fields that match the notes, for JSON between words too.

    The task is `constrained` where the engine enforced the schema, `unconstrained` where only the prompt asked for it.
    """

    name = "json"
    method = "schema validity (draft 2020-12) of the load's answers; score: share of equal fields"
    grades_load = True
    load_reference = "schema"

    def grade_load(self, requests: Sequence[Request], records: Sequence[Record]) -> Sequence[Judged]:
        """See Scorer.grade_load. Requests without a schema in their reference are skipped."""
        judged = []
        for request, record in answered_requests(requests, records):
            reference = request.reference
            if not isinstance(reference, Mapping) or not isinstance(reference.get("schema"), Mapping):
                continue
            task = CONSTRAINED if request.schema is not None else UNCONSTRAINED
            expected = reference.get("expected")
            item = item_of(request, "" if expected is None else json.dumps(expected), task)
            answer = answer_of(record)
            judged.append(Judged(item=item, answer=answer, grade=_grade(reference, answer)))
        return judged

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """See Scorer.grade. Only fields are graded: an item has no schema."""
        expected = json.loads(item.expected) if item.expected else None
        return _grade({"schema": {}, "expected": expected}, answer)


def _grade(reference: Mapping[str, Any], answer: ItemAnswer) -> Grade:
    detail = {"schema": reference.get("name"), "tier": reference.get("tier"), "twin_of": reference.get("twin_of")}
    if answer.error is not None:
        return Grade(correct=None, extracted=None, detail=detail)
    fit = compliance(answer.text, reference["schema"])
    document = document_of(answer.text)
    detail |= {"parsed": fit.parsed, "in_words": document is not None and not document[1]}
    expected = reference.get("expected")
    score: float | None = None
    if expected is not None:
        right, count = (
            field_accuracy(expected, document[0]) if document is not None else (0, len(dict(leaves(expected))))
        )
        score = right / count
        detail |= {"fields_right": right, "fields": count}
    note = None if fit.valid else (fit.reason or "does not match its schema")[:200]
    if note is not None and answer.finish_reason == "length":
        note = f"cut at its output length; {note}"[:200]
    extracted = None if document is None else json.dumps(document[0])
    return Grade(correct=fit.valid, extracted=extracted, score=score, note=note, detail=detail)
