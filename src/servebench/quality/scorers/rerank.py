"""Rerank: whether an engine ranks the documents first that answer a query."""

import json
from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

from servebench.contracts.quality import Grade, Item, ItemAnswer
from servebench.quality.rows import PROMPTS, RowScorer
from servebench.util.json_schema import TEXT, object_of, require

API = "rerank"
_INDICES = {"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 0}}
CUTOFFS = (1, 3, 10)
DEPTH = 10


def recall_at(ranking: Sequence[int], relevant: Sequence[int], k: int) -> float:
    """Return the share of the relevant documents that are among the first k of a ranking, from 0 to 1."""
    return len(set(ranking[:k]) & set(relevant)) / len(relevant)


def ndcg_at(ranking: Sequence[int], relevant: Sequence[int], k: int) -> float:
    """Return the normalized discounted cumulative gain of the first k, from 0 to 1, with a gain of 1 for a relevant document
    (Järvelin and Kekäläinen 2002, ACM Trans. Inf. Syst. 20)."""
    gain = sum(1 / log2(place + 2) for place, index in enumerate(ranking[:k]) if index in relevant)
    return gain / sum(1 / log2(place + 2) for place in range(min(k, len(relevant))))


class RerankScorer(RowScorer):
    """Queries with documents. Rows have `query`, `documents` and `relevant`, the indices of those that answer it; `id` is
    optional. The score is nDCG@10; nothing is right or wrong. The answers have no thinking."""

    name = "rerank"
    method = "nDCG@10 of the documents by their relevance scores, binary gains"
    source = PROMPTS / "rerank.jsonl"
    row_schema = object_of(
        query=TEXT, documents={"type": "array", "items": {"type": "string"}}, relevant={**_INDICES, "minItems": 1}
    )

    def check(self) -> list[str]:
        """See Scorer.check."""
        return [] if self.settings.api == API else [f"quality.api must be {API} (got '{self.settings.api}')"]

    def item(self, row: Mapping[str, Any], item_id: str) -> Item:
        """See RowScorer.item."""
        if max(row["relevant"]) >= len(row["documents"]):
            raise ValueError(
                f"relevant has {max(row['relevant'])}, and there are {len(row['documents'])} documents from 0 on"
            )
        expected, body = json.dumps(row["relevant"]), {"documents": row["documents"]}
        return Item(item_id=item_id, prompt=row["query"], expected=expected, max_tokens=1, body=body)

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """See Scorer.grade. The text of an answer is the list of the indices, best first."""
        relevant = json.loads(item.expected)
        try:
            ranking = json.loads(answer.text)
            require(ranking, {**_INDICES, "items": {"enum": list(range(len(item.body["documents"])))}})
        except (ValueError, RecursionError):
            return Grade(correct=None, extracted=None, score=0.0, note="not a ranking of the documents")
        detail = {f"recall_at_{k}": recall_at(ranking, relevant, k) for k in CUTOFFS}
        return Grade(correct=None, extracted=answer.text, score=ndcg_at(ranking, relevant, DEPTH), detail=detail)
