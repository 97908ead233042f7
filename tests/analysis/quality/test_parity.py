"""Whether two engines differ by more than one differs from itself."""

from __future__ import annotations

import json
import random

import pandas as pd
import pytest

from servebench.analysis.quality.parity import AnswerText, compare_parity, parities, text_difference
from servebench.report.wording.comparison import parity_text


def said(text, tokens=None, logprobs=None):
    return AnswerText(text=text, tokens=tokens, logprobs=logprobs)


def tokens_of(words, start=-0.5):
    return said("".join(words), tuple(words), tuple(start - 0.1 * place for place in range(len(words))))


@pytest.mark.parametrize(
    ("first", "second", "unit", "places"),
    [
        (tokens_of(["The", " cat", " sat"]), said("The cat sat"), "tokens", ()),
        (tokens_of(["The", " cat", " sat"]), said("The cat ran"), "tokens", (2,)),
        (tokens_of(["The", " cat", " sat"]), said("A cat"), "tokens", (0,)),
        (tokens_of(["The", " cat", " sat"]), said("The ca"), "tokens", (1,)),
        (tokens_of(["The", " cat"]), said("The cat and more"), "tokens", (2,)),
        (said("The cat sat"), said("The cat ran"), "words", (2,)),
        (said("", ()), said("x"), "tokens", (0,)),
        # a stop token behind the text is no fault, tokens that do not spell it are
        (said("The cat", ("The", " cat", "<end>")), said("The dog"), "tokens", (1,)),
        (said("The cat", ("\u0120The", "\u0120cat")), said("The dog"), "words", (1,)),
    ],
)
def test_where_answers_part(first, second, unit, places):
    found = text_difference([(first, second)])
    assert (found.unit, found.first) == (unit, places)
    assert found.equal == (not places)


def test_log_probabilities_are_compared_up_to_where_tokens_part():
    first = said("a b c", ("a", " b", " c"), (-0.1, -0.2, -0.3))
    second = said("a b d", ("a", " b", " d"), (-0.1, -0.5, -9.0))
    found = text_difference([(first, second), (said("x"), said("x"))])
    assert found.logprob_gap_mean == pytest.approx(0.15)
    assert found.logprob_gap_max == pytest.approx(0.3)
    assert text_difference([(said("x"), said("x"))]).logprob_gap_mean is None
    infinite = said("a", ("a",), (float("-inf"),))
    assert text_difference([(infinite, infinite)]).logprob_gap_mean is None


def run(count, own, other, seed=0):
    """Prompts of which a share `own` changes under load, and a share `other` is other than the first run's."""
    rng = random.Random(seed)
    found = {}
    for key in range(count):
        text = f"answer {key}" + (" otherwise" if rng.random() < other else "")
        found[str(key)] = (said(text), said(text + (" shaken" if rng.random() < own else "")))
    return found


def test_the_same_answers_are_the_same():
    found = compare_parity(run(40, 0, 0), run(40, 0, 0))
    assert (found.finding, found.across.equal, found.p_value) == ("the same", 40, 1.0)
    assert "100.0% of 40" in parity_text(found)


def test_engines_that_differ_by_more_than_themselves_are_found():
    found = compare_parity(run(60, 0.05, 0), run(60, 0.05, 0.5, seed=1))
    assert found.finding == "more than itself"
    assert found.p_value < 0.05
    assert found.across.share < found.own_first.share


def test_engines_that_are_as_unsteady_themselves_are_not_blamed():
    found = compare_parity(run(600, 0.3, 0), run(600, 0.02, 0.3, seed=1))
    assert found.finding == "no more than itself"
    assert found.own_first.share < found.own_second.share


def test_a_few_prompts_do_not_tell():
    found = compare_parity(run(12, 0, 0), run(12, 0, 0.2, seed=3))
    assert 0 < found.across.equal < 12
    assert found.finding == "too small to tell"
    assert found.n_needed > 12
    assert f"about {found.n_needed} prompts" in parity_text(found)


def test_prompts_that_one_did_not_answer_do_not_count():
    first, second = run(5, 0, 0), run(4, 0, 0)
    del second["0"]
    assert compare_parity(first, second).across.n == 3
    assert compare_parity(first, {}) is None


def test_two_equal_engines_are_rarely_said_to_differ():
    """The finding is a test: with no true difference beyond themselves, at most one in twenty may be told."""
    rng = random.Random(5)

    def flip(share):
        return " other" if rng.random() < share else ""

    told = 0
    for _ in range(200):
        first, second = {}, {}
        for key in range(50):
            first[str(key)] = (said("a"), said("a" + flip(0.3)))
            second[str(key)] = (said("a" + flip(0.3)),) * 2
        told += compare_parity(first, second).finding == "more than itself"
    assert told <= 10


def frame(rows):
    columns = ["benchmark", "outcome", "item_id", "item_digest", "concurrency", "answer", "extracted", "detail"]
    return pd.DataFrame(rows, columns=columns)


def row(item, answer, loaded, *, level=8, digest="d", benchmark="parity", outcome="ok", tokens=None):
    detail = json.dumps({"alone": {"tokens": tokens, "logprobs": None}, "loaded": {"tokens": None, "logprobs": None}})
    return (benchmark, outcome, item, digest, level, answer, loaded, detail)


def test_stored_answers_are_compared_at_each_shared_concurrency():
    first = frame(
        [
            row("a", "x y", "x y", tokens=["x", " y"]),
            row("b", "x", None),
            row("c", "x", "x", digest="old"),
            row("d", "x", "x", outcome="timeout"),
            row("a", "x y", "x y", level=16),
            row("a", "A", "A", benchmark="mmlu"),
        ]
    )
    second = frame([row(name, "x z", "x z", tokens=["x", " z"]) for name in "abcd"])
    (found,) = parities(first, second)
    assert (found.at, found.across.n, found.across.unit, found.across.first) == ("concurrency 8", 1, "tokens", (1,))
    assert parities(first, frame([])) == []
