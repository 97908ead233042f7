"""Sends items to an OpenAI-compatible endpoint, so many at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import httpx

from servebench.contracts.quality import Answer, Endpoint, Item
from servebench.contracts.results import Outcome
from servebench.quality.exchange import clean, client, completion, count, line, post, said
from servebench.util.units import NS_PER_MS

WATCH_S = 0.25
LINE_MAX = 200
ANSWER_BYTES_BASE, ANSWER_BYTES_PER_TOKEN = 4 << 20, 4096
"""An answer that is longer than any of so many tokens can be is cut off; log-probabilities are the most of it."""

LOGPROB_MAX = 1e9
"""Engines write -9999 or so for a token that cannot be; a number beyond this is none."""

Watch = Callable[[int], None]
"""Told a few times a second how many items are done; what it raises ends the asking."""


def ask(
    items: Sequence[Item],
    endpoint: Endpoint,
    *,
    concurrency: int,
    timeout_s: float = 120.0,
    api: Literal["chat", "completions"] = "chat",
    path: str | None = None,
    on_answer: Callable[[Item, Answer], None] | None = None,
    watch: Watch | None = None,
) -> list[Answer]:
    """One answer an item, in order, at temperature 0. A failed request is an answer with `error`, never an exception.

    `timeout_s` is for a whole answer. `path` below the base URL is the API's usual one when null. `on_answer` is told each
    answer as it comes.
    """
    usual = "/chat/completions" if api == "chat" else "/completions"
    asking = _Asking(endpoint, f"{endpoint.base_url}{path or usual}", timeout_s, api, on_answer)
    return asyncio.run(asking.all(items, concurrency, watch))


def ask_once(
    items: Sequence[Item],
    endpoint: Endpoint,
    part: str,
    *,
    concurrency: int,
    timeout_s: float,
    api: Literal["chat", "completions"],
) -> list[Answer]:
    """As `ask`, but what the endpoint's memory has is not asked again, and what comes is kept there at once. `part` parts
    the askings of one scorer from each other. Raises what the endpoint's `watch` raises."""
    memory, watch = endpoint.memory, endpoint.watch
    known = {} if memory is None else memory.known
    keys = [f"{part} {item.item_id} {item.digest}" for item in items]
    left = [item for item, key in zip(items, keys, strict=True) if key not in known]

    def keep(item: Item, answer: Answer) -> None:
        if memory is not None:
            memory.add(f"{part} {item.item_id} {item.digest}", answer)

    def told(done: int) -> None:
        if watch is not None:
            watch(f"{part}, {done}/{len(left)} answers")

    fresh = iter(ask(left, endpoint, concurrency=concurrency, timeout_s=timeout_s, api=api, on_answer=keep, watch=told))
    return [known[key] if key in known else next(fresh) for key in keys]


class _Asking:
    def __init__(
        self,
        endpoint: Endpoint,
        url: str,
        timeout_s: float,
        api: Literal["chat", "completions"],
        on_answer: Callable[[Item, Answer], None] | None,
    ) -> None:
        self._client = client(endpoint.headers, timeout_s=timeout_s, verify_tls=endpoint.verify_tls)
        self._url = url
        self._model = endpoint.model
        self._timeout_s = timeout_s
        self._api = api
        self._on_answer = on_answer
        self._answers: dict[int, Answer] = {}

    async def all(self, items: Sequence[Item], concurrency: int, watch: Watch | None) -> list[Answer]:
        left = iter(enumerate(items))

        async def stream() -> None:
            for place, item in left:
                answer = await self._one(item)
                self._answers[place] = answer
                if self._on_answer is not None:
                    self._on_answer(item, answer)

        async with self._client:
            pending = {asyncio.create_task(stream()) for _ in range(min(concurrency, len(items)))}
            try:
                while pending:
                    done, pending = await asyncio.wait(pending, timeout=WATCH_S, return_when=asyncio.FIRST_EXCEPTION)
                    for task in done:
                        task.result()
                    if watch is not None:
                        watch(len(self._answers))
            finally:
                for task in pending:
                    task.cancel()
                await asyncio.gather(*pending, return_exceptions=True)
        return [self._answers[place] for place in range(len(items))]

    async def _one(self, item: Item) -> Answer:
        sent_ns, began_ns = time.time_ns(), time.monotonic_ns()
        told: dict[str, Any]
        try:
            bytes_max = ANSWER_BYTES_BASE + ANSWER_BYTES_PER_TOKEN * item.max_tokens
            status, data = await post(
                self._client, self._url, self._body(item), timeout_s=self._timeout_s, bytes_max=bytes_max
            )
        except TimeoutError:
            told = {"text": "", "error": f"no whole answer within {self._timeout_s:g} s", "outcome": "timeout"}
        except httpx.HTTPError as problem:
            told = {"text": "", "error": _line(problem), "outcome": _outcome(problem)}
        else:
            told = self._read(status, data, bytes_max)
        took_ns = time.monotonic_ns() - began_ns
        return Answer(
            item_id=item.item_id,
            sent_ns=sent_ns,
            ended_ns=sent_ns + took_ns,
            latency_ms=took_ns / NS_PER_MS,
            **told,
        )

    def _body(self, item: Item) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "temperature": 0, "max_tokens": item.max_tokens, **item.body}
        if self._api == "chat":
            body["messages"] = [dict(one) for one in item.messages] or [{"role": "user", "content": item.prompt}]
        else:
            body["prompt"] = item.prompt
        return body

    def _read(self, status: int, data: bytes, bytes_max: int) -> dict[str, Any]:
        if not 200 <= status < 300:
            error = f"HTTP {status}: {said(data, LINE_MAX) or 'no words'}"
            return {"text": "", "error": error, "outcome": "http_error", "http_status": status}
        try:
            if len(data) > bytes_max:
                raise ValueError(f"longer than {bytes_max} bytes")
            choice, text, usage = completion(data, chat=self._api == "chat")
        except ValueError as problem:
            kind = "chat completion" if self._api == "chat" else "completion"
            error = f"not a {kind}: {problem}"[:LINE_MAX]
            return {"text": "", "error": error, "outcome": "protocol", "http_status": status}
        finish_reason = choice.get("finish_reason")
        return {
            "text": text,
            "http_status": status,
            "finish_reason": clean(finish_reason) if isinstance(finish_reason, str) else None,
            "prompt_tokens": count(usage.get("prompt_tokens")),
            "output_tokens": count(usage.get("completion_tokens")),
            **_logprobs(choice.get("logprobs")),
        }


def _logprobs(told: Any) -> dict[str, Any]:
    """Tokens with their log-probabilities, in either API's form; nothing where there are none, or not one for each."""
    if not isinstance(told, dict):
        return {}
    if isinstance(content := told.get("content"), list):
        pairs = [(one.get("token"), one.get("logprob")) for one in content if isinstance(one, dict)]
    else:
        tokens, logprobs = told.get("tokens"), told.get("token_logprobs")
        if not isinstance(tokens, list) or not isinstance(logprobs, list) or len(tokens) != len(logprobs):
            return {}
        pairs = list(zip(tokens, logprobs, strict=True))
    known = [
        (clean(a), float(b))
        for a, b in pairs
        if isinstance(a, str) and isinstance(b, int | float) and abs(b) < LOGPROB_MAX
    ]
    if not known or len(known) < len(pairs):
        return {}
    return {"tokens": [token for token, _ in known], "logprobs": [logprob for _, logprob in known]}


def _line(problem: httpx.HTTPError) -> str:
    return line(str(problem), LINE_MAX) or type(problem).__name__


def _outcome(problem: httpx.HTTPError) -> Outcome:
    if isinstance(problem, httpx.TimeoutException):
        return "timeout"
    if isinstance(problem, httpx.ConnectError):
        return "refused"
    return "reset" if isinstance(problem, httpx.NetworkError) else "protocol"
