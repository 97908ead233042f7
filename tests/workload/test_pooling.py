"""Texts to embed and documents to rank: how many, and how long."""

from functools import partial

import pytest

from servebench.workload.pooling import EmbeddingsWorkload, RerankWorkload
from support.workloads import requests_of, workload_of


def test_a_request_has_its_batch_of_texts(pieces):
    """Each of the length that is set, and none twice."""
    asked = partial(requests_of, EmbeddingsWorkload, pieces, 5, input_tokens=40)
    for batch in (1, 3):
        made = asked(batch_size=batch)
        texts = [text for one in made for text in (one.prompt, *one.inputs)]
        assert len(set(texts)) == 5 * batch
        assert set(pieces.count(texts)) == {40}
        assert {one.prompt_tokens for one in made} == {40 * batch}
        assert {one.api for one in made} == {"embeddings"}


def test_a_query_counts_with_each_document(pieces):
    made = requests_of(RerankWorkload, pieces, 4, input_tokens=40, query_tokens=20, batch_size=3)
    assert {len(one.inputs) for one in made} == {3}
    assert {one.prompt_tokens for one in made} == {3 * (40 + 20)}
    assert set(pieces.count([one.prompt for one in made])) == {20}


@pytest.mark.parametrize("kind", [EmbeddingsWorkload, RerankWorkload])
def test_they_have_an_api_of_their_own(kind):
    assert workload_of(kind).check() == []
    assert len(workload_of(kind, api="chat").check()) == 1
