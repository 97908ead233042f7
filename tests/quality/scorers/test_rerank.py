"""The measures of a ranking, the shipped queries, and what no ranking is."""

import json
from math import log2

import pytest

from servebench.contracts.quality import ItemAnswer
from servebench.contracts.settings import QualitySettings
from servebench.quality.scorers.rerank import RerankScorer, ndcg_at, recall_at
from servebench.util.errors import ConfigError


def test_recall_is_the_share_of_the_relevant():
    assert [recall_at([4, 2, 0, 1], [2, 1], k) for k in (1, 2, 4, 10)] == [0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("ranking", "relevant", "expected"),
    [
        ([0, 1, 2], [0], 1.0),
        ([1, 0, 2], [0], 1 / log2(3)),
        ([1, 0, 2], [0, 1], 1.0),
        ([2, 0, 1], [0, 1], (1 / log2(3) + 1 / log2(4)) / (1 + 1 / log2(3))),
        ([2], [0], 0.0),
        ([], [0], 0.0),
    ],
)
def test_ndcg(ranking, relevant, expected):
    assert ndcg_at(ranking, relevant, 10) == pytest.approx(expected)


def test_ndcg_looks_at_k_only():
    assert ndcg_at([1, 2, 0], [0], 2) == 0.0
    # more relevant documents than places: the best ranking is still 1
    assert ndcg_at([0, 1], [0, 1, 2], 2) == 1.0


def test_the_shipped_queries_tell_good_from_bad():
    scorer = RerankScorer(QualitySettings(name="rerank", api="rerank"))
    assert scorer.check() == []
    items = scorer.items(scorer.source, 1000, 0)
    assert len(items) >= 30
    for item in items:
        relevant, count = json.loads(item.expected), len(item.body["documents"])
        assert len(set(item.body["documents"])) == count > 10 > len(relevant)
        best = [*relevant, *(one for one in range(count) if one not in relevant)]
        good, bad = (scorer.grade(item, ItemAnswer(item_id="q", text=json.dumps(one))) for one in (best, best[::-1]))
        assert (good.score, good.detail["recall_at_10"]) == (1.0, 1.0)
        assert bad.score == 0.0


@pytest.mark.parametrize("text", ["[0, 0]", "[99]", "[-1]", "[true]", '["0"]', "{}", "0", "x"])
def test_what_is_no_ranking_scores_nothing(text):
    scorer = RerankScorer()
    (item, *_) = scorer.items(scorer.source, 1, 0)
    grade = scorer.grade(item, ItemAnswer(item_id="q", text=text))
    assert (grade.score, grade.extracted) == (0.0, None)


@pytest.mark.parametrize(
    "changes",
    [{"query": ""}, {"documents": "a"}, {"documents": [1]}, {"relevant": []}, {"relevant": [2]}, {"relevant": None}],
)
def test_rows_that_are_no_queries_are_rejected(changes, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"query": "?", "documents": ["a", "b"], "relevant": [0], **changes}))
    with pytest.raises(ConfigError, match=r"row 0 of .*own\.jsonl"):
        RerankScorer().items(path, 1, 0)


def test_it_needs_its_api():
    assert RerankScorer(QualitySettings(name="rerank", api="chat")).check()
