"""The shipped schemas and the documents made to fit them."""

import random
from collections import Counter

import pytest
from jsonschema import Draft202012Validator

from servebench.workload.sources.schemas import TIERS, builtin_tasks, instance, notes, sendable


@pytest.mark.parametrize("task", builtin_tasks(), ids=lambda task: task.name)
def test_documents_fit_their_schema(task):
    """Each shipped schema is one, closed to unknown keys, and every document made for it is valid."""
    Draft202012Validator.check_schema(dict(task.schema))
    validator = Draft202012Validator(dict(task.schema))
    rng = random.Random(3)
    documents = [instance(task.source, rng) for _ in range(100)]
    assert not [error.message for document in documents for error in validator.iter_errors(document)]
    assert len({repr(document) for document in documents}) > 50
    assert list(validator.iter_errors({**documents[0], "more": 1}))
    assert "examples" not in repr(task.schema)
    assert "uniqueItems" not in repr(task.schema)


def test_tiers_are_all_there():
    """Four schemas in each tier, each with a name of its own."""
    assert Counter(task.tier for task in builtin_tasks()) == dict.fromkeys(TIERS, 4)
    assert len({task.name for task in builtin_tasks()}) == 20


def test_tiers_are_what_they_say():
    """Flat ones have no list and no object within; lists, enums, depth and references come with their tiers."""
    texts = {tier: [repr(task.schema) for task in builtin_tasks() if task.tier == tier] for tier in TIERS}
    assert not any("'array'" in text or text.count("'object'") > 1 or "enum" in text for text in texts["flat"])
    assert all("enum" in text for text in texts["enum"])
    assert all("'array'" in text for text in texts["array"])
    assert all(text.count("'object'") >= 3 for text in texts["nested"])
    assert all("$ref" in text or "anyOf" in text for text in texts["hard"])


def test_examples_of_a_property_so_called_stay():
    """Only the keyword is taken out, not a property of that name."""
    schema = {"properties": {"examples": {"type": "string", "examples": ["a"]}}}
    assert sendable(schema) == {"properties": {"examples": {"type": "string"}}}


def test_notes_have_every_value():
    """A line for each value, with its place; nothing, yes and no in words."""
    document = {
        "name": "Ada",
        "home_town": {"city": "Oslo"},
        "tags": [{"id": 1}, {"id": 2}],
        "none": [],
        "x": None,
        "y": True,
    }
    assert notes(document).splitlines() == [
        "- name: Ada", "- home town, city: Oslo", "- tags 1, id: 1", "- tags 2, id: 2", "- none: none", "- x: unknown",
        "- y: yes",
    ]  # fmt: skip


def test_unknown_keywords_are_told():
    """A schema of another kind is refused rather than given a wrong document."""
    with pytest.raises(ValueError, match="cannot make"):
        instance({"not": {}}, random.Random(0))
