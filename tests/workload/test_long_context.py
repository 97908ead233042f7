"""Long texts with needles, and chronicles to be summarised."""

from functools import partial

import pytest

from servebench.contracts.settings import LengthSettings
from servebench.util.errors import ConfigError
from servebench.workload.long_context import LongContextWorkload
from servebench.workload.summarization import SummarizationWorkload
from support.workloads import requests_of

long_ones = partial(requests_of, LongContextWorkload, input_tokens=2000)
summaries = partial(requests_of, SummarizationWorkload, input_tokens=1500)


@pytest.mark.parametrize("make", [long_ones, summaries])
def test_exact_lengths(any_tokenizer, text_of, make):
    """Exactly as long as asked for, task included, and no two with a common beginning in any stream."""
    spec = LengthSettings(kind="uniform", min=1500, max=2500)
    requests = make(any_tokenizer, 8, input_tokens=spec) + make(any_tokenizer, 8, "c2-0", input_tokens=spec)
    counts = any_tokenizer.count([text_of(request) for request in requests])
    assert counts == [request.prompt_tokens for request in requests]
    assert 1500 <= min(counts) < max(counts) <= 2500
    assert len({text_of(request)[:13] for request in requests}) == 16


def test_needles_are_where_they_should_be(any_tokenizer, text_of):
    """Each number stands once in the text, at its depth, and its thing is asked for at the end."""
    for request in long_ones(any_tokenizer, 8, depths=(0.0, 0.5, 1.0)):
        body, question = text_of(request).split("\n\nQuestion: ")
        for needle, depth in zip(request.reference["needles"], (0.0, 0.5, 1.0), strict=True):
            assert body.count(f"The number of {needle['thing']} is {needle['answer']}.") == 1
            assert needle["thing"] in question
            assert needle["answer"] not in question
            assert needle["depth"] == pytest.approx(depth, abs=0.15)


def test_depths_are_taken_in_turn(pieces):
    """One needle a request goes through the depths, request after request."""
    depths = [r.reference["needles"][0]["depth"] for r in long_ones(pieces, 6, needles=1, depths=(0.1, 0.9))]
    assert all((depth < 0.5) == (index % 2 == 0) for index, depth in enumerate(depths))


def test_no_needles(pieces):
    """Long prompts without anything to find are possible."""
    assert {str(r.reference) for r in long_ones(pieces, 8, needles=0)} == {"{'needles': []}"}


def test_most_of_it_is_prose(pieces, text_of):
    """Random words fill no more than a small rest of the length."""
    for request in long_ones(pieces, 4, input_tokens=4000) + summaries(pieces, 4, input_tokens=4000):
        told = text_of(request).rpartition(".")[0] if request.reference.get("summary") is None else text_of(request)
        body = told.split("\n\nSummarise")[0].split("\n\nQuestion")[0]
        assert len(body.rpartition(".")[0]) > 0.9 * len(body)


def test_summaries_tell_what_the_text_tells(pieces, text_of):
    """Each sentence of the reference has its event in the text, in the same order."""
    for request in summaries(pieces, 8, events=4):
        text = text_of(request)
        assert "in 4 short sentences" in text
        told = [line.split(" is that ", 1)[1] for line in text.split("What ")[1:] if " remembers of " in line]
        short = [line.split(" ", 2)[2].rstrip(".") for line in request.reference["summary"].split(". ")]
        assert len(short) == 4
        assert [any(one.startswith(part) for one in told) for part in short] == [True] * 4
        assert [one.startswith(part) for one, part in zip(told, short, strict=True)] == [True] * 4


@pytest.mark.parametrize("make", [long_ones, summaries])
def test_too_short_is_an_error(pieces, make):
    """Nothing that matters is cut: the error says how long prompts must be."""
    with pytest.raises(ConfigError, match=r"workload.input_tokens=60 .* \d+ or more"):
        make(pieces, input_tokens=60)
