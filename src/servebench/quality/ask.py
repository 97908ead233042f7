"""Sends items to an OpenAI-compatible endpoint, so many at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import httpx

from servebench.contracts.quality import Answer, Item
from servebench.contracts.results import Outcome
from servebench.units import NS_PER_MS

WATCH_S = 0.25
LINE_MAX = 200

Watch = Callable[[int], None]
"""Told a few times a second how many items are done; what it raises ends the asking."""


def ask(
    items: Sequence[Item],
    *,
    base_url: str,
    model: str,
    concurrency: int,
    headers: Mapping[str, str],
    timeout_s: float = 120.0,
    verify_tls: bool = True,
    api: Literal["chat", "completions"] = "chat",
    path: str | None = None,
    on_answer: Callable[[Item, Answer], None] | None = None,
    watch: Watch | None = None,
) -> list[Answer]:
    """One answer an item, in order, at temperature 0. A failed request is an answer with `error`, never an exception.

    `path` below the base URL is the API's usual one when null. `on_answer` is told each answer as it comes.
    """
    usual = "/chat/completions" if api == "chat" else "/completions"
    client = httpx.AsyncClient(
        headers=dict(headers),
        timeout=timeout_s,
        verify=verify_tls,
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
    )
    asking = _Asking(client, f"{base_url}{path or usual}", model, api, on_answer)
    return asyncio.run(asking.all(items, concurrency, watch))


class _Asking:
    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        model: str,
        api: Literal["chat", "completions"],
        on_answer: Callable[[Item, Answer], None] | None,
    ) -> None:
        self._client = client
        self._url = url
        self._model = model
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
            reply = await self._client.post(self._url, json=self._body(item))
        except httpx.HTTPError as problem:
            told = {"text": "", "error": _line(problem), "outcome": _outcome(problem)}
        else:
            told = self._read(reply)
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

    def _read(self, reply: httpx.Response) -> dict[str, Any]:
        if not reply.is_success:
            said = " ".join(reply.text.split())[:LINE_MAX]
            error = f"HTTP {reply.status_code}: {said or 'no words'}"
            return {"text": "", "error": error, "outcome": "http_error", "http_status": reply.status_code}
        try:
            document = reply.json()
            choice = document["choices"][0]
            text = choice["message"]["content"] if self._api == "chat" else choice["text"]
            usage = document.get("usage") or {}
            if text is not None and not isinstance(text, str):
                raise TypeError("its content is no text")
            return {
                "text": text or "",
                "http_status": reply.status_code,
                "finish_reason": choice.get("finish_reason"),
                "prompt_tokens": usage.get("prompt_tokens"),
                "output_tokens": usage.get("completion_tokens"),
                **_logprobs(choice.get("logprobs")),
            }
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
            kind = "chat completion" if self._api == "chat" else "completion"
            return {
                "text": "",
                "error": f"not a {kind}: {problem!r}"[:LINE_MAX],
                "outcome": "protocol",
                "http_status": reply.status_code,
            }


def _logprobs(told: Any) -> dict[str, Any]:
    """Tokens with their log-probabilities, in either API's form; nothing where there are none, or not one for each."""
    if not isinstance(told, dict):
        return {}
    if isinstance(content := told.get("content"), list):
        pairs = [(one.get("token"), one.get("logprob")) for one in content]
    else:
        tokens, logprobs = told.get("tokens"), told.get("token_logprobs")
        if not isinstance(tokens, list) or not isinstance(logprobs, list) or len(tokens) != len(logprobs):
            return {}
        pairs = list(zip(tokens, logprobs, strict=True))
    if not pairs or not all(isinstance(a, str) and isinstance(b, int | float) for a, b in pairs):
        return {}
    return {"tokens": [a for a, _ in pairs], "logprobs": [float(b) for _, b in pairs]}


def _line(problem: httpx.HTTPError) -> str:
    return str(problem).splitlines()[0] if str(problem) else type(problem).__name__


def _outcome(problem: httpx.HTTPError) -> Outcome:
    if isinstance(problem, httpx.TimeoutException):
        return "timeout"
    if isinstance(problem, httpx.ConnectError):
        return "refused"
    return "reset" if isinstance(problem, httpx.NetworkError) else "protocol"
