"""The kinds `embeddings` (OpenAI's) and `rerank` (Cohere's and Jina's, as vLLM and llama.cpp have it; that of Text Embeddings
Inference calls the documents `texts`): texts go in, numbers come out in one piece, and nothing is generated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from servebench.contracts.engine import Dialect
from servebench.contracts.request import Request
from servebench.protocol.answer import AnswerScan
from servebench.protocol.errors import error_message
from servebench.protocol.json_values import count_of, object_at
from servebench.protocol.kinds.kind import RequestKind


class PoolingScan(AnswerScan):
    """Reads a list of vectors (`data`) or of scores (`results`). Its arrival is the one content event."""

    __slots__ = ()
    list_name = "results"

    def add_chunk(self, chunk: dict[str, Any], stamp_ns: int, read_index: int) -> None:
        """See AnswerScan.add_chunk."""
        found = chunk.get("data") or chunk.get("results")
        usage = object_at(chunk, "usage")
        # nothing is generated: the total is the prompt's, and some servers give no other (OpenRouter, earlier vLLM)
        self.prompt_tokens = count_of(usage.get("prompt_tokens", usage.get("total_tokens")))
        if found and isinstance(found, list):
            self.add_event(stamp_ns, read_index)
        else:
            self.fail(error_message(chunk) or "the answer has no data and no results")


class _Pooling(RequestKind):
    """What both kinds share."""

    scan = PoolingScan
    lacks = (
        *("ttft", "ttfo", "itl", "tpot", "output_", "hidden_", "events", "cost_", "energy_j_per", "client_error_ms"),
        *("lock_step", "prefix_cache_hit_rate_ideal"),
    )
    answers_text = False
    exact_length = False


class Embeddings(_Pooling):
    """Each text becomes a vector."""

    name = "embeddings"
    path = "/embeddings"
    title = "list of embeddings"
    probe = Request(request_id="probe", api="embeddings", prompt="A text.")

    def body(self, request: Request, model: str, dialect: Dialect, *, streamed: bool = True) -> dict[str, Any]:
        """See RequestKind.body."""
        return {"model": model, "input": [request.prompt, *request.inputs], **request.extra}


class Rerank(_Pooling):
    """Each document is scored by how well it answers the query, which is the prompt."""

    name = "rerank"
    path = "/rerank"
    title = "ranking"
    correctness = "rerank"
    other_names: ClassVar[Mapping[str, str]] = {"documents": "texts"}
    probe = Request(request_id="probe", api="rerank", prompt="A query?", inputs=("A text.",))

    def body(self, request: Request, model: str, dialect: Dialect, *, streamed: bool = True) -> dict[str, Any]:
        """See RequestKind.body."""
        documents = dialect.names.get("documents", "documents")
        return {"model": model, "query": request.prompt, documents: list(request.inputs), **request.extra}

    def whole_problem(self, document: Mapping[str, Any]) -> str | None:
        """See RequestKind.whole_problem."""
        results = document.get("results")
        found = map(object_at, results) if isinstance(results, list) else [{}]
        ranked = all(isinstance(one.get("index"), int) and isinstance(_score(one), int | float) for one in found)
        return None if ranked else error_message(document) or "its results need index and relevance_score"

    def whole_text(self, document: Mapping[str, Any], scan: AnswerScan) -> str:
        """Return the indices of the documents as JSON, best first."""
        best_first = sorted(document["results"], key=_score, reverse=True)
        return json.dumps([one["index"] for one in best_first])


def _score(result: Mapping[str, Any]) -> Any:
    """Return the score of a document, which SGLang and Text Embeddings Inference call otherwise."""
    return result.get("relevance_score", result.get("score"))
