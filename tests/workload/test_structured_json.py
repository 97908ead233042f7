"""Notes to be turned into JSON."""

from collections.abc import Mapping
from functools import partial

import pytest
from jsonschema import Draft202012Validator

from servebench.contracts.settings import LengthSettings
from servebench.util.errors import ConfigError
from servebench.workload.sources.schemas import notes
from servebench.workload.structured_json import StructuredJsonWorkload
from support.workloads import requests_of, workload_of

workload = partial(workload_of, StructuredJsonWorkload)
asked = partial(requests_of, StructuredJsonWorkload)


def test_what_is_expected_is_in_the_prompt_and_fits_the_schema(pieces, text_of):
    """The reference document fits the schema that is sent, and all of it stands in the notes."""
    for request in asked(pieces, 100):
        assert isinstance(request.reference, Mapping)
        assert request.schema == request.reference["schema"]
        assert request.schema is not None
        expected = request.reference["expected"]
        assert Draft202012Validator(dict(request.schema)).is_valid(expected)
        assert f"\n{notes(expected)}\n" in text_of(request)
        assert '"additionalProperties":false' in text_of(request)


def test_twins(pieces, text_of):
    """Half of the requests are the others without the schema enforced, next to them, in an order that is drawn."""
    requests = asked(pieces, 200, twins=True)
    by_id = {request.request_id: request for request in requests}
    assert len(by_id) == 200
    twins = [request for request in requests if request.schema is None]
    assert len(twins) == 100
    for twin in twins:
        bound = by_id[twin.reference["twin_of"]]
        assert text_of(bound) == text_of(twin)
        assert bound.schema == twin.reference["schema"]
        assert bound.reference["expected"] == twin.reference["expected"]
        assert abs(requests.index(bound) - requests.index(twin)) == 1
    first = sum(request.schema is None for request in requests[::2])
    assert 30 < first < 70


def test_an_odd_count_ends_with_a_constrained_one(pieces):
    """As many requests as asked for; the one without a twin is constrained."""
    requests = asked(pieces, 7, twins=True)
    assert len(requests) == 7
    assert requests[-1].schema is not None


def test_cold_twins_do_not_share_a_beginning(pieces, text_of):
    """A salt of its own before each: no request profits from another, nor from another stream."""
    texts = [
        text_of(request)[:14]
        for stream in ("warmup-c1-0", "c1-0")
        for request in asked(pieces, 100, stream, twins=True, cache="cold")
    ]
    assert len(set(texts)) == 200


def test_exact_lengths(any_tokenizer, text_of):
    """With a length asked for, prompts are filled up to it exactly; what was there before stays whole."""
    spec = LengthSettings(kind="uniform", min=2500, max=3000)
    for request in asked(any_tokenizer, 10, input_tokens=spec, tiers=("flat",)):
        assert any_tokenizer.count([text_of(request)]) == [request.prompt_tokens]
        assert 2500 <= (request.prompt_tokens or 0) <= 3000
        assert "JSON Schema:" in text_of(request)


def test_counts_of_prompts_as_they_are(any_tokenizer, text_of):
    """Without a length the count is that of the text."""
    requests = asked(any_tokenizer, 20)
    assert [request.prompt_tokens for request in requests] == any_tokenizer.count([text_of(r) for r in requests])


def test_too_short_is_an_error(pieces):
    """A prompt is never cut: the error says how long it must be."""
    with pytest.raises(ConfigError, match=r"up to \d+ tokens"):
        asked(pieces, input_tokens=60)


def test_tiers_choose_schemas(pieces):
    """Only the tiers asked for; all by default."""
    assert {r.reference["tier"] for r in asked(pieces, 50, tiers=("hard", "flat"))} == {"hard", "flat"}
    assert len({r.reference["name"] for r in asked(pieces, 300)}) == 20


def test_the_schema_can_be_kept_from_the_prompt(pieces, text_of):
    """Then only the engine knows it."""
    (request,) = asked(pieces, 1, show_schema=False)
    assert "additionalProperties" not in text_of(request)
    assert request.schema is not None


def test_faults():
    """No tier, or answers that must go on after their end, are told before anything starts."""
    assert ["workload.tiers" in line for line in workload(tiers=()).check()] == [True]
    assert ["workload.exact_output" in line for line in workload(exact_output=True).check()] == [True]
    assert workload().check() == []


def test_own_tasks(pieces, text_of, tmp_path):
    """A user's schemas with their prompts and answers, or without; a schema may be text, as in some data sets."""
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"schema": {"type": "object"}, "prompt": "Say nothing.", "expected": {}}\n\n{"schema": "{\\"type\\": \\"array\\"}"}\n'
    )
    requests = asked(pieces, 40, path=str(path))
    assert workload(path=str(path)).check() == []
    found = {str(r.schema): (text_of(r).split(".")[0], r.reference["expected"]) for r in requests}
    assert found == {
        "{'type': 'object'}": ("Say nothing", {}),
        "{'type': 'array'}": ("Make up a document that fits the schema", None),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": {"type": "objekt"}}', "line 1: not a JSON Schema"),
        ('{"prompt": "x"}', "line 1: not a task"),
        ("{", "line 1: not a task"),
        ("", "has no tasks"),
        (None, "cannot be read"),
    ],
)
def test_own_tasks_that_cannot_be_used(tmp_path, text, said):
    """Told before anything starts, with the line."""
    path = tmp_path / "own.jsonl"
    if text is not None:
        path.write_text(text)
    assert [said in line for line in workload(path=str(path)).check()] == [True]
