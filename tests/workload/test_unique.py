"""Prompts of exact length that share nothing."""

import random
import re
from functools import partial

import pytest

from servebench.contracts.settings import LengthSettings
from servebench.util.common_prefix import common_prefix_length
from servebench.util.errors import ConfigError
from servebench.workload.build.fill import fill, single_token_words
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.seeding import generator, salt
from servebench.workload.sources.prompts import vocabulary
from servebench.workload.unique import UniqueSettings, UniqueWorkload
from support.workloads import requests_of

asked = partial(requests_of, UniqueWorkload)
SPECS = [
    16,
    128,
    LengthSettings(kind="fixed", mean=33),
    LengthSettings(kind="uniform", min=16, max=90),
    LengthSettings(kind="normal", mean=100, stdev=40, min=16),
    LengthSettings(kind="lognormal", mean=200, stdev=200, min=16, max=1000),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_exact_length(any_tokenizer, text_of, spec):
    """Each prompt has exactly the length drawn for it, by its tokenizer's count, and says so."""
    requests = asked(any_tokenizer, input_tokens=spec)
    wanted = sample_lengths(spec, 60, generator(0, "c1-0"))
    assert any_tokenizer.count([text_of(request) for request in requests]) == wanted
    assert [request.prompt_tokens for request in requests] == wanted


def test_default_lengths(pieces):
    """Null lengths are 128 tokens in and 64 out."""
    assert {(r.prompt_tokens, r.output_tokens) for r in asked(pieces)} == {(128, 64)}


def test_outputs(pieces):
    """Answers are as long as asked, whatever the prompts are."""
    requests = asked(pieces, output_tokens=LengthSettings(kind="uniform", min=5, max=9))
    assert {request.output_tokens for request in requests} == {5, 6, 7, 8, 9}


@pytest.mark.parametrize("tokens", [1, 2, 3, 4])
def test_shorter_than_the_salt(pieces, text_of, tokens):
    """A prompt with no room for its salt is the salt's beginning, of exactly that length."""
    (request,) = asked(pieces, 1, input_tokens=tokens)
    assert salt(0, "c1-0", 0).startswith(text_of(request))
    assert pieces.count([text_of(request)]) == [tokens] == [request.prompt_tokens]


def test_too_short_to_be_unique(quarters, pieces):
    """Prompts that come out the same are refused, with the length that is enough."""
    with pytest.raises(ConfigError, match=r"workload.input_tokens.* 16 or more"):
        asked(pieces, 5000, input_tokens=1)
    assert len(asked(pieces, 5000, input_tokens=16)) == 5000


def test_streams_share_nothing(any_tokenizer, text_of):
    """No two prompts of any stream or seed begin alike: the salt is the first thing in each."""
    starts = [
        text_of(request)[:12]
        for seed in (0, 1)
        for stream in ("warmup-c1-0", "c1-0", "c1-1", "c1-0-use1")
        for request in asked(any_tokenizer, 100, stream, seed=seed, input_tokens=20)
    ]
    assert len(set(starts)) == len(starts) == 800
    assert starts[0] == salt(0, "warmup-c1-0", 0)


def test_words_are_asked_for_once(pieces):
    """An engine that counts takes a call for each word: a second point costs none of them again."""
    workload = UniqueWorkload(UniqueSettings(name="unique"))
    workload.requests(10, stream="a", tokenizer=pieces)
    before = pieces.counted
    workload.requests(10, stream="b", tokenizer=pieces)
    assert pieces.counted - before == 20


def test_single_token_words(pieces, quarters):
    """With an exact tokenizer the words of one token each; all words when it only estimates."""
    assert single_token_words(pieces) == [word for word in vocabulary() if len(word) <= 6]
    assert single_token_words(quarters) == vocabulary()


def test_fill_keeps_each_start(any_tokenizer):
    """Each text begins with its start, whatever its length; a start that is too long is cut to its length."""
    starts = ["3f9a", "a start of several words", "x" * 60]
    texts, counts = fill(starts, [50, 64, 1], random.Random(0), any_tokenizer)
    assert counts == any_tokenizer.count(texts) == [50, 64, 1]
    assert texts[0].startswith(starts[0] + " ")
    assert texts[1].startswith(starts[1] + " ")
    assert starts[2].startswith(texts[2])


def test_fill_with_words_of_many_tokens(pieces):
    """Lengths that no number of words makes are reached by cutting the last word."""
    lengths = list(range(10, 60))
    texts, counts = fill(["ab"] * 50, lengths, random.Random(0), pieces, words=["elephant", "elegance"])
    assert counts == pieces.count(texts) == lengths


@pytest.mark.parametrize(("rate", "tokens"), [(0.5, 64), (0.5, 128), (0.8, 128), (0.8, 512), (0.95, 512)])
def test_a_hit_rate_is_a_shared_beginning(any_tokenizer, text_of, rate, tokens):
    """Whole blocks of 16 tokens that are exactly that share, the same in every stream; the rest is unique."""
    settings = partial(requests_of, UniqueWorkload, any_tokenizer, input_tokens=tokens, hit_rate=rate)
    first, again = settings(20), settings(20, stream="warmup-c1-0")
    texts = [text_of(one) for one in (*first, *again)]
    shared = texts[0][: min(common_prefix_length(texts[0], text) for text in texts[1:])]
    (prompt_tokens,) = {one.prompt_tokens for one in first}
    (counted,) = any_tokenizer.count([shared])
    block = 128 if tokens == 512 else 16
    found = counted // block * block
    assert found / prompt_tokens == pytest.approx(rate, abs=0.02)
    assert counted - found <= 3
    assert prompt_tokens == pytest.approx(tokens, abs=max(8 / rate + 1, 0.1 * tokens))
    assert len(set(texts)) == 40


@pytest.mark.parametrize(
    "wrong",
    [
        {"hit_rate": 0.95, "input_tokens": 128},
        {"hit_rate": 0.01, "input_tokens": 128},
        {"hit_rate": 0.5, "input_tokens": 32},
        {"hit_rate": 0.5, "cache": "cold"},
        {"hit_rate": 0.5, "input_tokens": LengthSettings(kind="uniform", min=100, max=200)},
    ],
    ids=str,
)
def test_a_hit_rate_that_cannot_be_reached_is_refused(wrong):
    """Before anything starts; the length that it names is enough."""
    (line,) = UniqueWorkload(UniqueSettings(name="unique", **wrong)).check()
    enough = re.search(r"input_tokens=(\d+) or more", line)
    if enough:
        fine = UniqueSettings(name="unique", **{**wrong, "input_tokens": int(enough[1])})
        assert UniqueWorkload(fine).check() == []
