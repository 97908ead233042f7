"""Questions about a few documents."""

from collections import Counter
from functools import partial

import pytest
from pydantic import TypeAdapter, ValidationError

from servebench.contracts.settings import LengthSettings
from servebench.util.errors import ConfigError
from servebench.workload.build.seeding import zipf
from servebench.workload.rag_prefix import RagPrefixSettings, RagPrefixWorkload
from support.workloads import requests_of, workload_of

workload = partial(workload_of, RagPrefixWorkload)
asked = partial(requests_of, RagPrefixWorkload)


def documents(requests, text_of):
    return [text_of(request).split("\n\n")[0] for request in requests]


def questions(requests, text_of):
    return [text_of(request).split("\n\n")[-1] for request in requests]


@pytest.mark.parametrize(("total", "share"), [(512, 0.75), (512, 0.95), (200, 0.5), (64, 0.25), (65, 0.37)])
@pytest.mark.parametrize("cache", ["cold", "warm", "as_is"])
def test_exact_lengths(any_tokenizer, text_of, total, share, cache):
    """The document has exactly round(share * input_tokens) tokens, the prompt exactly input_tokens."""
    requests = asked(any_tokenizer, 20, input_tokens=total, share=share, cache=cache)
    assert set(any_tokenizer.count(documents(requests, text_of))) == {round(share * total)}
    assert set(any_tokenizer.count([text_of(request) for request in requests])) == {total}
    assert {request.prompt_tokens for request in requests} == {total}


def test_defaults(pieces):
    """512 tokens in, 64 out, exactly; eight documents, three quarters of the prompt, all alike popular."""
    settings = RagPrefixSettings(name="rag_prefix")
    assert (settings.documents, settings.share, settings.skew) == (8, 0.75, 0.0)
    assert {(r.prompt_tokens, r.output_tokens, r.exact_output) for r in asked(pieces)} == {(512, 64, True)}


@pytest.mark.parametrize("cache", ["warm", "as_is"])
def test_streams_share_documents(pieces, text_of, cache):
    """Warm-up and all points ask about the same documents, however many requests and whichever documents each has."""
    streams = [
        documents(asked(pieces, count, stream, cache=cache, documents=4), text_of)
        for stream, count in (("warmup-c1-0", 200), ("c1-0", 50), ("c4-0", 3))
    ]
    assert len(set(streams[0])) == 4
    assert set(streams[0]) >= set(streams[1]) | set(streams[2])


def test_cold_streams_share_nothing(pieces, text_of):
    """With `cold` no prompt of a stream begins like one of another stream, while within it documents are shared."""
    streams = [
        set(documents(asked(pieces, 200, stream, cache="cold", documents=4), text_of))
        for stream in ("warmup-c1-0", "c1-0", "c1-1", "c1-0-use1")
    ]
    assert [len(some) for some in streams] == [4] * 4
    assert len({document[:12] for some in streams for document in some}) == 16


@pytest.mark.parametrize("cache", ["cold", "as_is"])
def test_documents_differ_from_their_first_words(pieces, text_of, cache):
    """Two documents, and those of two seeds, share no beginning."""
    both = [documents(asked(pieces, 100, cache=cache, documents=6, seed=seed), text_of) for seed in (0, 1)]
    assert len({document[:12] for some in both for document in some}) == 12


@pytest.mark.parametrize("share", [0.0, 0.75])
def test_questions_are_unique(pieces, text_of, share):
    """No two questions of any stream begin alike."""
    starts = [
        question[:12]
        for stream in ("warmup-c1-0", "c1-0")
        for question in questions(asked(pieces, 200, stream, share=share, input_tokens=64), text_of)
    ]
    assert len(set(starts)) == 400


def test_no_share(any_tokenizer, text_of):
    """A share of 0 is a question alone, of the whole length."""
    requests = asked(any_tokenizer, 10, share=0, input_tokens=40)
    assert not any("\n" in text_of(request) for request in requests)
    assert set(any_tokenizer.count([text_of(request) for request in requests])) == {40}


def test_chosen_is_what_is_asked_about(pieces, text_of):
    """`chosen` tells which document each request is about."""
    rag = workload(documents=5, skew=1.0)
    chosen = rag.documents_of(60, stream="c1-0")
    texts = documents(list(rag.requests(60, stream="c1-0", tokenizer=pieces)), text_of)
    assert len(set(zip(chosen, texts, strict=True))) == len(set(chosen)) == len(set(texts)) == 5


def test_lengths_from_a_distribution(pieces, text_of):
    """A distribution is drawn once a document: its questions all make prompts of one length, with its share."""
    spec = LengthSettings(kind="uniform", min=100, max=400)
    requests = asked(pieces, 100, input_tokens=spec, share=0.5, documents=5)
    by_document = dict(zip(documents(requests, text_of), (r.prompt_tokens or 0 for r in requests), strict=True))
    assert len(by_document) == 5
    assert len(set(by_document.values())) > 1
    for request, document in zip(requests, documents(requests, text_of), strict=True):
        assert request.prompt_tokens == by_document[document] == pieces.count([text_of(request)])[0]
        assert pieces.count([document]) == [round(by_document[document] / 2)]


@pytest.mark.parametrize(
    ("skew", "expected"),
    [
        (0.0, [0.25] * 4),
        (1.0, [12 / 25, 6 / 25, 4 / 25, 3 / 25]),
        (2.0, [144 / 205, 36 / 205, 16 / 205, 9 / 205]),
        (5000.0, [1, 0, 0, 0]),
        (float("inf"), [1, 0, 0, 0]),
    ],
)
def test_zipf(skew, expected):
    """p(k) is proportional to 1 / k^skew and sums to 1, also where the powers leave the range of floats."""
    assert zipf(4, skew) == pytest.approx(expected)


@pytest.mark.parametrize("skew", [0.0, 1.0, 1.5])
def test_popularity(skew):
    """Documents are asked about as often as Zipf's law says (chi square of 7 degrees of freedom under 24.3, p 0.001)."""
    count = 8000
    found = Counter(workload(skew=skew).documents_of(count, stream="c1-0"))
    chi = sum((found[k] - count * p) ** 2 / (count * p) for k, p in enumerate(zipf(8, skew)))
    assert chi < 24.3


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"input_tokens": 20}, "makes documents of 15 tokens; distinct documents need at least 16"),
        ({"input_tokens": 60}, "leaves 15 tokens for the question; unique questions need at least 16"),
        ({"input_tokens": 100, "share": 0.95}, "leaves 5 tokens for the question; unique questions need at least 16"),
        ({"input_tokens": 15, "share": 0.0}, "leaves 15 tokens for the question; unique questions need at least 16"),
        ({"input_tokens": LengthSettings(kind="uniform", min=40, max=60)}, "leaves"),
    ],
)
def test_check(pieces, keys, fault):
    """Parts with no room for a salt are refused before anything starts, and again when asked for."""
    (line,) = workload(**keys).check()
    assert fault in line
    assert "workload.share=" in line
    with pytest.raises(ConfigError, match=r"workload\.share="):
        asked(pieces, **keys)


@pytest.mark.parametrize("keys", [{}, {"input_tokens": 64}, {"share": 0.95}, {"share": 0.0, "input_tokens": 16}])
def test_check_finds_nothing(keys):
    """What has room is fine, to the last token."""
    assert workload(**keys).check() == []


@pytest.mark.parametrize("keys", [{"documents": 0}, {"share": 0.96}, {"share": -0.1}, {"skew": -1}, {"shares": 0.5}])
def test_settings_out_of_range(keys):
    """Values that mean nothing, and unknown keys, are refused by the settings themselves."""
    with pytest.raises(ValidationError):
        TypeAdapter(RagPrefixSettings).validate_python({"name": "rag_prefix", **keys})
