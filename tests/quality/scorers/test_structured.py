import json
import random

import pytest

from servebench.contracts.quality import Item, ItemAnswer
from servebench.contracts.request import Message, Request
from servebench.quality.scorers.structured import JsonScorer, document_of, field_accuracy
from servebench.workload.structured_json import StructuredJsonSettings, StructuredJsonWorkload

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["n", "s"]}
EXPECTED = {"n": 1, "s": "Oslo"}


@pytest.mark.parametrize(
    ("expected", "found", "figures"),
    [
        ({"a": 1, "b": {"c": [1, 2]}}, {"a": 1, "b": {"c": [1, 2]}}, (4 - 1, 3)),
        ({"a": 1}, {"a": 1.0}, (1, 1)),
        ({"a": True}, {"a": 1}, (0, 1)),
        ({"a": None}, {}, (0, 2)),  # an empty document is one field of its own
        ({"a": None}, {"a": None}, (1, 1)),
        ({"a": "x "}, {"a": " x"}, (1, 1)),
        ({"a": 1}, {"a": 1, "b": 2}, (1, 2)),
        ({"a": [1, 2]}, {"a": [2, 1]}, (0, 2)),
        ({"a": [1]}, {"a": [1, 2]}, (1, 2)),
        ({"a": []}, {"a": []}, (1, 1)),
        ({"a": {"b": 1}}, "words", (0, 2)),
        ([1], {"0": 1}, (0, 2)),
    ],
)
def test_field_accuracy(expected, found, figures):
    assert field_accuracy(expected, found) == figures


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"n": 1}', ({"n": 1}, True)),
        (' {"n": 1}\n', ({"n": 1}, True)),
        ('Sure:\n```json\n{"n": 1}\n```', ({"n": 1}, False)),
        ('Here: {"n": 1}. Done {', ({"n": 1}, False)),
        ('```\n{"n": 1', None),
        ("none", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_document_of(text, read):
    assert document_of(text) == read


def _request(name, *, bound=True, twin_of=None, expected=EXPECTED):
    return Request(
        request_id=name,
        messages=(Message("user", "notes"),),
        schema=SCHEMA if bound else None,
        reference={"schema": SCHEMA, "expected": expected, "name": "city", "tier": "flat", "twin_of": twin_of},
    )


def test_twins_are_told_apart_and_failures_have_no_grade(record):
    requests = [
        _request("a"),
        _request("a-free", bound=False, twin_of="a"),
        _request("b"),
        _request("c", expected=None),
        _request("d"),
        Request(request_id="e", prompt="something else"),
    ]
    records = [
        record("a", '{"n": 1, "s": "Oslo"}'),
        record("a-free", '```json\n{"n": 1, "s": "Bergen"}\n```'),
        record("b", "", outcome="timeout", error="no event for 60 s"),
        record("c", '{"n": 1', finish_reason="length"),
        record("d", '{"n": "x", "s": "Oslo"}'),
        record("e", "words"),
        record("w", "{}", warmup=True),
        record("stranger", "{}"),
    ]
    judged = {one.item.item_id: one for one in JsonScorer().grade_load(requests, records)}
    assert set(judged) == {"a", "a-free", "b", "c", "d"}
    assert [judged[name].item.task for name in ("a", "a-free")] == ["constrained", "unconstrained"]
    grades = {name: (one.grade.correct, one.grade.score) for name, one in judged.items()}
    assert grades == {
        "a": (True, 1.0),
        "a-free": (False, 0.5),
        "b": (None, None),
        "c": (False, None),
        "d": (False, 0.5),
    }
    assert judged["a-free"].grade.detail["twin_of"] == "a"
    assert judged["a-free"].grade.detail["in_words"] is True
    assert judged["b"].answer.error == "no event for 60 s"
    assert judged["c"].grade.note.startswith("cut at")
    assert "$.n" in judged["d"].grade.note
    assert judged["a"].answer.latency_ms == 5.0


def test_the_workloads_own_documents_are_right_in_every_field(record):
    """What the workload expects fits its schema and scores one; a document of another request does not."""

    class Count:
        name, exact = "words", True

        def count(self, texts):
            return [len(text.split()) for text in texts]

        def truncate(self, text, tokens):
            return " ".join(text.split()[:tokens])

    workload = StructuredJsonWorkload(StructuredJsonSettings(name="structured_json", twins=True))
    requests = workload.requests(40, stream="point-1-0", tokenizer=Count())
    own = [record(one.request_id, json.dumps(one.reference["expected"])) for one in requests]
    judged = JsonScorer().grade_load(requests, own)
    assert len(judged) == 40
    assert all(one.grade.correct and one.grade.score == 1.0 for one in judged)
    assert {one.item.task for one in judged} == {"constrained", "unconstrained"}
    texts = [one.text for one in own]
    random.Random(1).shuffle(texts)
    shuffled = [record(one.request_id, text) for one, text in zip(requests, texts, strict=True)]
    scores = [one.grade.score for one in JsonScorer().grade_load(requests, shuffled)]
    assert sum(scores) / len(scores) < 0.5


def test_a_lone_item_is_graded_by_its_fields():
    item = Item(item_id="i", prompt="", expected=json.dumps(EXPECTED), max_tokens=9)
    assert JsonScorer().grade(item, ItemAnswer(item_id="i", text='{"n": 1}')).score == 0.5
