"""Requests that generate nothing: embeddings and rankings, as vLLM and llama.cpp answer them."""

import json

import pytest

from servebench.contracts.engine import Dialect
from servebench.contracts.request import Request
from servebench.protocol import answer, framing
from servebench.protocol.kinds.table import KINDS

EMBEDDINGS, RERANK = KINDS["embeddings"], KINDS["rerank"]
USAGE = {"prompt_tokens": 4, "total_tokens": 4}
ANSWERS = {
    # of llama.cpp and of vLLM 0.32, shortened
    "llamacpp": (EMBEDDINGS, {"object": "list", "usage": USAGE, "data": [{"embedding": [0.5, -0.1], "index": 0}]}),
    "vllm": (
        EMBEDDINGS,
        {"id": "embd-1", "object": "list", "data": [{"index": 0, "embedding": "kAC5"}], "usage": USAGE},
    ),
    "openrouter rerank": (
        RERANK,
        {
            "id": "gen-1",
            "results": [{"index": 0, "relevance_score": 0.9}],
            "usage": {"search_units": 1, "total_tokens": 4},
        },
    ),
    "llamacpp rerank": (
        RERANK,
        {"object": "list", "usage": USAGE, "results": [{"index": 2, "relevance_score": -1.02}]},
    ),
    "vllm rerank": (
        RERANK,
        {"id": "score-1", "usage": USAGE, "results": [{"index": 0, "document": {"text": "a"}, "relevance_score": 0.9}]},
    ),
}


def read(kind, document):
    body = json.dumps(document).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    scan = kind.scan()
    answer.read(framing.decode([(1, head), (2, body)]), scan)
    return scan


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_one_event_and_its_prompt(name):
    scan = read(*ANSWERS[name])
    assert (scan.event_ns, scan.prompt_tokens, scan.error, scan.said_end) == ([2], 4, None, True)
    assert scan.count() == (None, None)


@pytest.mark.parametrize(
    "document", [{}, {"data": [], "results": []}, {"error": {"message": "no"}}, {"data": 1, "results": {}}]
)
def test_an_answer_without_results_is_an_error(document):
    assert [read(kind, document).error is not None for kind in (EMBEDDINGS, RERANK)] == [True, True]


def test_the_bare_list_of_sglang_is_a_ranking():
    ranking = [{"score": 0.2, "document": "a", "index": 0}, {"score": 0.9, "document": "b", "index": 1}]
    assert (read(RERANK, ranking).event_ns, read(RERANK, ranking).error) == ([2], None)
    assert RERANK.read_whole(json.dumps(ranking).encode()).text == "[1, 0]"
    assert read(KINDS["chat"], ranking).error is not None


def test_a_ranking_is_read_for_scorers():
    results = [
        {"index": 1, "relevance_score": -1.5},
        {"index": 0, "relevance_score": 2},
        {"index": 2, "relevance_score": 0},
    ]
    found = RERANK.read_whole(json.dumps({"results": results, "usage": USAGE}).encode())
    assert (found.text, found.prompt_tokens, found.calls) == ("[0, 2, 1]", 4, None)
    for bad in ({}, {"error": {"message": "no"}}, {"results": [{"index": 0}]}, {"results": [1]}):
        with pytest.raises(ValueError, match=r"results|no"):
            RERANK.read_whole(json.dumps(bad).encode())


def test_what_is_sent():
    request = Request(request_id="r", api="embeddings", prompt="a", inputs=("b", "c"), extra={"dimensions": 8})
    assert EMBEDDINGS.body(request, "m", Dialect()) == {"model": "m", "input": ["a", "b", "c"], "dimensions": 8}
    assert RERANK.body(request, "m", Dialect()) == {
        "model": "m",
        "query": "a",
        "documents": ["b", "c"],
        "dimensions": 8,
    }
