"""The best that a prefix cache can do for a sequence of prompts."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter

import numpy as np

from servebench.contracts.point_row import PointRow
from servebench.contracts.request import Request, Tokenizer
from servebench.contracts.results import Record
from servebench.util.common_prefix import common_prefix_length
from servebench.util.stretches import outside

BLOCK_TOKENS = 16
"""The default block size of vLLM's prefix cache."""

IDEAL_REQUESTS_MAX = 2000
"""Points of more requests get no ideal rate: counting them would delay the next point."""


def whole_text(request: Request, answer: str | None = None) -> str:
    """Return a request's prompt as one text: a chat's messages with their roles, similar to a template. With its `answer` it is
    how the next turn of its session begins."""
    if request.messages is None:
        return (request.prompt or "") + (answer or "")
    lines = [f"{message.role}: {message.content}" for message in request.messages]
    return "\n".join(lines if answer is None else [*lines, f"assistant: {answer}"])


def ideal_hits(
    requests: Sequence[Request],
    tokenizer: Tokenizer,
    block_tokens: int = BLOCK_TOKENS,
    *,
    answers: Sequence[tuple[int, Request, str]] = (),
    served: Sequence[int | None] = (),
) -> list[tuple[int, int]]:
    """Return (tokens in the cache, tokens of the prompt) of each request, in order.

    The cache is empty at first and never evicts. It holds a request's prompt once it was sent, and its answer from
    `answers`: (how many requests were sent before it ended, the request, the answer). It holds whole blocks only, never
    the last token of a prompt (an engine must compute that to continue), and shares nothing between adapters.

    `served` are the tokens of each prompt by the server's count. What a chat's template adds is taken to be in the cache: it is
    the same for all, and the warm-up has left it there.
    """
    shared: list[str] = []
    texts: list[str] = []
    seen: dict[object, list[str]] = {}
    to_learn = deque(sorted(answers, key=itemgetter(0)))
    for sent, request in enumerate(requests):
        while to_learn and to_learn[0][0] <= sent:
            _, asked, answer = to_learn.popleft()
            insort(seen.setdefault(asked.extra.get("model"), []), whole_text(asked, answer))
        text = whole_text(request)
        known = seen.setdefault(request.extra.get("model"), [])
        place = bisect_left(known, text)
        # among sorted texts the nearest neighbours share the longest prefix
        nearest = [common_prefix_length(text, known[at]) for at in (place - 1, place) if 0 <= at < len(known)]
        shared.append(text[: max(nearest, default=0)])
        texts.append(text)
        insort(known, text)
    counts = tokenizer.count(texts)
    added = [
        max(0, (tokens or 0) - count) if request.messages is not None else 0
        for request, tokens, count in zip(requests, served or [None] * len(requests), counts, strict=True)
    ]
    return [
        (min(common + more, max(0, count + more - 1)) // block_tokens * block_tokens, count + more)
        for common, more, count in zip(tokenizer.count(shared), added, counts, strict=True)
    ]


def hit_rate(hits: Sequence[tuple[int, int]]) -> float | None:
    """Return the share of all prompt tokens that was in the cache, 0 to 1; None without tokens."""
    total = sum(tokens for _, tokens in hits)
    return sum(hit for hit, _ in hits) / total if total else None


def ideal_hits_of(
    requests: Sequence[Request], records: Sequence[Record], tokenizer: Tokenizer
) -> dict[str, tuple[int, int]]:
    """Return, by id, the tokens of each prompt sent that the best cache would have found, and all of them, for a cache that is
    empty when the point begins. Nothing for more than IDEAL_REQUESTS_MAX requests, with a tokenizer that only estimates, and with
    images: the server counts their tokens with those of the template.

    Prompts contain the real answers that were sent; an answer is in the cache from its end on. The cache holds single tokens: an
    engine with larger blocks finds less.
    """
    sent = {r.request_id: r for r in records if r.sent_ns is not None and r.measured}
    if len(sent) > IDEAL_REQUESTS_MAX or not tokenizer.exact or any(one.images for one in requests):
        return {}
    sent_requests = sorted((r for r in requests if r.request_id in sent), key=lambda r: sent[r.request_id].sent_ns or 0)
    needed = {answer.of for request in requests for answer in request.answers}
    texts = {r.request_id: r.text for r in records}
    sent_requests = [request.filled(texts) for request in sent_requests]
    times = [sent[request.request_id].sent_ns or 0 for request in sent_requests]
    answers = [
        (bisect_left(times, sent[request.request_id].ended_ns), request, texts[request.request_id])
        for request in sent_requests
        if request.request_id in needed
    ]
    served = [sent[request.request_id].prompt_tokens for request in sent_requests]
    hits = ideal_hits(sent_requests, tokenizer, 1, answers=answers, served=served)
    return {request.request_id: hit for request, hit in zip(sent_requests, hits, strict=True)}


def ideal_columns(
    hits: Mapping[str, tuple[int, int]], records: Sequence[Record], row: PointRow
) -> dict[str, float | None]:
    """Return `prefix_cache_hit_rate_ideal` of a point from the hits of its requests: the best possible rate, over the same
    requests (ok, sent inside the window) as the engine's own. Nothing without hits."""
    start_ns, end_ns = row.window_start_ns, row.window_end_ns
    sent = {r.request_id: r for r in records if r.sent_ns is not None and r.measured}
    if start_ns is None or end_ns is None or not hits:
        return {}
    moments = np.array([sent[name].sent_ns for name in hits], dtype=np.int64)
    counts = (moments >= start_ns) & (moments <= end_ns) & outside(moments, row.not_counted)
    inside = [hit for (name, hit), one in zip(hits.items(), counts, strict=True) if one and sent[name].outcome == "ok"]
    return {"prefix_cache_hit_rate_ideal": hit_rate(inside)}
