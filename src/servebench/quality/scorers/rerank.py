"""Rerank: whether an engine ranks the documents first that answer a query."""

import json
from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from typing import Any

from servebench.contracts.quality import Grade, Item, ItemAnswer, Scorer
from servebench.quality.rows import PROMPTS, read_rows, sample
from servebench.util.errors import ConfigError

API = "rerank"
FORMAT = '{"query": "...", "documents": ["...", "..."], "relevant": [indices of documents]}'
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


class RerankScorer(Scorer):
    """Queries with documents. Rows have `query`, `documents` and `relevant`, the indices of those that answer it; `id` is
    optional. The score is nDCG@10; nothing is right or wrong. The answers have no thinking."""

    name = "rerank"
    method = "nDCG@10 of the documents by their relevance scores, binary gains"
    source = PROMPTS / "rerank.jsonl"

    def check(self) -> list[str]:
        """See Scorer.check."""
        return [] if self.settings.api == API else [f"quality.api must be {API} (got '{self.settings.api}')"]

    def items(self, path: Path, count: int, seed: int) -> Sequence[Item]:
        """See Scorer.items."""
        items = []
        for place, row in sample(read_rows(path), count, seed):
            if not _is_query(row):
                raise ConfigError(f"row {place} of {path} is not a query with documents; the format is {FORMAT}")
            items.append(
                Item(
                    item_id=str(row.get("id") or f"rerank-{place}"),
                    prompt=row["query"],
                    expected=json.dumps(sorted(set(row["relevant"]))),
                    max_tokens=1,
                    body={"documents": row["documents"]},
                )
            )
        return items

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """See Scorer.grade. The text of an answer is the list of the indices, best first."""
        if answer.error is not None:
            return Grade(correct=None, extracted=None)
        relevant = json.loads(item.expected)
        ranking = _indices(answer.text, len(item.body["documents"]))
        if ranking is None:
            return Grade(correct=None, extracted=None, score=0.0, note="not a ranking of the documents")
        detail = {f"recall_at_{k}": recall_at(ranking, relevant, k) for k in CUTOFFS}
        return Grade(correct=None, extracted=answer.text, score=ndcg_at(ranking, relevant, DEPTH), detail=detail)


def _indices(text: str, count: int) -> list[int] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if _are_indices(found, count) else None


def _are_indices(found: Any, count: int) -> bool:
    """Return whether this is a list of different indices of so many documents."""
    return (
        isinstance(found, list)
        and all(type(one) is int and 0 <= one < count for one in found)
        and len(set(found)) == len(found)
    )


def _is_query(row: Mapping[str, Any]) -> bool:
    query, documents, relevant = (row.get(name) for name in ("query", "documents", "relevant"))
    return (
        isinstance(query, str)
        and bool(query.strip())
        and isinstance(documents, list)
        and all(isinstance(one, str) for one in documents)
        and bool(relevant)
        and _are_indices(relevant, len(documents))
    )
