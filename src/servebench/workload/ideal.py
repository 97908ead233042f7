"""What a prefix cache could do for a sequence of prompts at best."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

from servebench.contracts.point_row import PointRow
from servebench.contracts.request import Request, Tokenizer
from servebench.contracts.results import Record

BLOCK_TOKENS = 16
"""The block of vLLM's prefix cache by default."""

IDEAL_REQUESTS_MAX = 2000
"""Points of more requests get no ideal: counting them would take longer than is fair between two points."""


def whole_text(request: Request) -> str:
    """A request's prompt as one text: a chat's messages with their roles, as a template would, but in no engine's words."""
    if request.messages is not None:
        return "\n".join(f"{message.role}: {message.content}" for message in request.messages)
    return request.prompt or ""


def answered_text(request: Request, answer: str) -> str:
    """A request's prompt with its answer, as the next turn of its session begins."""
    if request.messages is not None:
        return f"{whole_text(request)}\nassistant: {answer}"
    return whole_text(request) + answer


def ideal_hits(
    requests: Sequence[Request],
    tokenizer: Tokenizer,
    block_tokens: int = BLOCK_TOKENS,
    *,
    answers: Sequence[tuple[int, Request, str]] = (),
) -> list[tuple[int, int]]:
    """For each request, in order: (tokens that a cache would have, tokens of the prompt).

    The cache is empty at first, keeps everything for ever, and knows a request's prompt once it was sent, and its answer
    where `answers` tell it: (how many of the requests were sent before it had ended, what was asked, the answer). It has
    whole blocks only, never the last token of a prompt (an engine must compute that to go on), and nothing in common
    between two adapters.
    """
    shared: list[str] = []
    texts: list[str] = []
    seen: dict[object, list[str]] = {}
    to_learn = deque(sorted(answers, key=lambda one: one[0]))
    for sent, request in enumerate(requests):
        while to_learn and to_learn[0][0] <= sent:
            _, asked, answer = to_learn.popleft()
            insort(seen.setdefault(asked.extra.get("model"), []), answered_text(asked, answer))
        text = whole_text(request)
        known = seen.setdefault(request.extra.get("model"), [])
        place = bisect_left(known, text)
        # of all sorted texts the nearest neighbours share most
        nearest = [_common(text, known[at]) for at in (place - 1, place) if 0 <= at < len(known)]
        shared.append(text[: max(nearest, default=0)])
        texts.append(text)
        insort(known, text)
    counts = tokenizer.count(texts)
    return [
        (min(common, max(0, total - 1)) // block_tokens * block_tokens, total)
        for common, total in zip(tokenizer.count(shared), counts, strict=True)
    ]


def _common(one: str, other: str) -> int:
    """How many characters two texts share at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def hit_rate(hits: Sequence[tuple[int, int]]) -> float | None:
    """The part of all prompt tokens that was in the cache, 0 to 1; None without tokens."""
    total = sum(tokens for _, tokens in hits)
    return sum(hit for hit, _ in hits) / total if total else None


def ideal_columns(
    requests: Sequence[Request], records: Sequence[Record], tokenizer: Tokenizer, row: PointRow
) -> dict[str, float | None]:
    """`prefix_cache_hit_rate_ideal` of a point: what the rate could have been at best, over the same requests (ok, sent
    inside the window) as the engine's own, for a cache that was empty when the point began. None for more than
    IDEAL_REQUESTS_MAX requests, and with a tokenizer that only guesses.

    Prompts with real answers in them are taken as they were sent; answers that are asked about again count as known from
    their end on.
    """
    start_ns, end_ns = row.window_start_ns, row.window_end_ns
    sent = {r.request_id: r for r in records if r.sent_ns is not None and not r.warmup}
    if start_ns is None or end_ns is None or len(sent) > IDEAL_REQUESTS_MAX or not tokenizer.exact:
        return {}
    asked = sorted((r for r in requests if r.request_id in sent), key=lambda r: sent[r.request_id].sent_ns or 0)
    needed = {answer.of for request in requests for answer in request.answers}
    spoken = {r.request_id: r.text for r in records}
    asked = [request.filled(spoken) for request in asked]
    times = [sent[request.request_id].sent_ns or 0 for request in asked]
    answers = [
        (bisect_left(times, sent[request.request_id].ended_ns), request, spoken[request.request_id])
        for request in asked
        if request.request_id in needed
    ]
    hits = ideal_hits(asked, tokenizer, answers=answers)
    inside = [
        hit
        for hit, request in zip(hits, asked, strict=True)
        if (record := sent[request.request_id]).outcome == "ok" and start_ns <= (record.sent_ns or 0) <= end_ns
    ]
    return {"prefix_cache_hit_rate_ideal": hit_rate(inside)}
