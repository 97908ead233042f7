"""Send items to an OpenAI-compatible endpoint, several at a time."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import httpx

from servebench.contracts.quality import Endpoint, Item, ItemAnswer
from servebench.contracts.results import Outcome
from servebench.protocol.errors import error_text
from servebench.protocol.json_values import count_of, join_text
from servebench.quality.exchange import bounded_client, bounded_post, parse_completion
from servebench.util.safe_text import in_one_line
from servebench.util.units import NS_PER_MS

WATCH_S = 0.25
LINE_MAX = 200
ANSWER_BYTES_BASE, ANSWER_BYTES_PER_TOKEN = 4 << 20, 4096
"""An answer longer than its tokens can explain is cut off; most of its bytes are log-probabilities."""

LOGPROB_MAX = 1e9
"""Engines write about -9999 for an impossible token; a larger magnitude is not a log-probability."""

Watch = Callable[[int], None]
"""Called a few times a second with the number of finished items; an exception ends the requests."""


def ask(
    items: Sequence[Item],
    endpoint: Endpoint,
    *,
    concurrency: int,
    timeout_s: float = 120.0,
    api: Literal["chat", "completions"] = "chat",
    path: str | None = None,
    on_answer: Callable[[Item, ItemAnswer], None] | None = None,
    watch: Watch | None = None,
    give_up_after: int | None = None,
) -> list[ItemAnswer]:
    """Return one answer for each item, in order, at temperature 0. A failed request is an answer with `error`.

    `timeout_s` limits a whole answer. `path` below the base URL defaults to that of the API. `on_answer` is called with
    each answer as it comes. An endpoint that is not measured itself has `give_up_after`: after so many failures in a row it is
    not asked any more, and while it is busy it is asked again.
    """
    usual = "/chat/completions" if api == "chat" else "/completions"
    url = f"{endpoint.base_url}{path or usual}"
    session = _AskSession(endpoint, url, timeout_s, api, on_answer=on_answer, give_up_after=give_up_after)
    return asyncio.run(session.ask_all(items, concurrency, watch))


def ask_once(
    items: Sequence[Item],
    endpoint: Endpoint,
    part: str,
    *,
    concurrency: int,
    timeout_s: float,
    api: Literal["chat", "completions"],
    give_up_after: int | None = None,
) -> list[ItemAnswer]:
    """Return answers as `ask` does, reusing those in the endpoint's memory and storing each new one there immediately.

    `part` separates several rounds of one scorer. Raises what the endpoint's `watch` raises.
    """
    memory, watch = endpoint.memory, endpoint.watch
    known = {} if memory is None else memory.known
    keys = [f"{part} {item.item_id} {item.digest}" for item in items]
    left = [item for item, key in zip(items, keys, strict=True) if key not in known]

    def keep(item: Item, answer: ItemAnswer) -> None:
        if memory is not None:
            memory.add(f"{part} {item.item_id} {item.digest}", answer)

    def report(done: int) -> None:
        if watch is not None:
            watch(f"{part}, {done}/{len(left)} answers")

    fresh = iter(
        ask(
            left,
            endpoint,
            concurrency=concurrency,
            timeout_s=timeout_s,
            api=api,
            on_answer=keep,
            watch=report,
            give_up_after=give_up_after,
        )
    )
    return [known[key] if key in known else next(fresh) for key in keys]


class _AskSession:
    def __init__(
        self,
        endpoint: Endpoint,
        url: str,
        timeout_s: float,
        api: Literal["chat", "completions"],
        *,
        on_answer: Callable[[Item, ItemAnswer], None] | None,
        give_up_after: int | None,
    ) -> None:
        self._client = bounded_client(endpoint.headers, timeout_s=timeout_s, verify_tls=endpoint.verify_tls)
        self._url = url
        self._model = endpoint.model
        self._timeout_s = timeout_s
        self._api = api
        self._on_answer = on_answer
        self._give_up_after = give_up_after
        self._failed: list[str | None] = []
        """The errors of the last requests in a row."""
        self._answers: dict[int, ItemAnswer] = {}

    async def ask_all(self, items: Sequence[Item], concurrency: int, watch: Watch | None) -> list[ItemAnswer]:
        left = iter(enumerate(items))

        async def stream() -> None:
            for place, item in left:
                answer = self._given_up(item) or await self._one(item)
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

    def _given_up(self, item: Item) -> ItemAnswer | None:
        failures = len(self._failed)
        if self._give_up_after is None or failures < self._give_up_after:
            return None
        error = f"the server failed {failures} times in a row and was given up; last error: {self._failed[-1]}"
        return ItemAnswer(item_id=item.item_id, text="", error=error, outcome="abandoned")

    async def _one(self, item: Item) -> ItemAnswer:
        sent_ns, began_ns = time.time_ns(), time.monotonic_ns()
        fields: dict[str, Any]
        try:
            bytes_max = ANSWER_BYTES_BASE + ANSWER_BYTES_PER_TOKEN * item.max_tokens
            status, data = await bounded_post(
                self._client,
                self._url,
                self._body(item),
                timeout_s=self._timeout_s,
                bytes_max=bytes_max,
                patient=self._give_up_after is not None,
            )
        except TimeoutError:
            fields = {"text": "", "error": f"no complete answer within {self._timeout_s:g} s", "outcome": "timeout"}
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as problem:
            reason = in_one_line(str(problem), LINE_MAX) or type(problem).__name__
            if isinstance(problem, httpx.ConnectError):
                reason = f"{self._url} is unreachable: {reason}"
            fields = {"text": "", "error": reason, "outcome": _outcome(problem)}
        else:
            fields = self._read(status, data, bytes_max)
        took_ns = time.monotonic_ns() - began_ns
        self._failed = [*self._failed, fields["error"]] if fields.get("error") else []
        return ItemAnswer(
            item_id=item.item_id, sent_ns=sent_ns, ended_ns=sent_ns + took_ns, latency_ms=took_ns / NS_PER_MS, **fields
        )

    def _body(self, item: Item) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "temperature": 0, "max_tokens": item.max_tokens, **item.body}
        if self._api == "chat":
            body["messages"] = [dict(message) for message in item.messages] or [
                {"role": "user", "content": item.prompt}
            ]
        else:
            body["prompt"] = item.prompt
        return body

    def _read(self, status: int, data: bytes, bytes_max: int) -> dict[str, Any]:
        if not 200 <= status < 300:
            error = f"HTTP {status}: {error_text(data, LINE_MAX) or 'no message'}"
            return {"text": "", "error": error, "outcome": "http_error", "http_status": status}
        try:
            if len(data) > bytes_max:
                raise ValueError(f"longer than {bytes_max} bytes")
            choice, text, usage = parse_completion(data, chat=self._api == "chat")
        except ValueError as problem:
            kind = "chat completion" if self._api == "chat" else "completion"
            error = f"not a {kind}: {problem}"[:LINE_MAX]
            return {"text": "", "error": error, "outcome": "protocol", "http_status": status}
        finish_reason = choice.get("finish_reason")
        return {
            "text": text,
            "http_status": status,
            "finish_reason": join_text([finish_reason]) if isinstance(finish_reason, str) else None,
            "prompt_tokens": count_of(usage.get("prompt_tokens")),
            "output_tokens": count_of(usage.get("completion_tokens")),
            **_logprobs(choice.get("logprobs")),
        }


def _logprobs(value: Any) -> dict[str, Any]:
    """Return tokens with their log-probabilities from either API's form; nothing unless every token has one."""
    if not isinstance(value, dict):
        return {}
    if isinstance(content := value.get("content"), list):
        pairs = [(one.get("token"), one.get("logprob")) for one in content if isinstance(one, dict)]
    else:
        tokens, logprobs = value.get("tokens"), value.get("token_logprobs")
        if not isinstance(tokens, list) or not isinstance(logprobs, list) or len(tokens) != len(logprobs):
            return {}
        pairs = list(zip(tokens, logprobs, strict=True))
    known = [
        (join_text([a]), float(b))
        for a, b in pairs
        if isinstance(a, str) and isinstance(b, int | float) and abs(b) < LOGPROB_MAX
    ]
    if not known or len(known) < len(pairs):
        return {}
    return {"tokens": [token for token, _ in known], "logprobs": [logprob for _, logprob in known]}


def _outcome(problem: Exception) -> Outcome:
    if isinstance(problem, httpx.TimeoutException):
        return "timeout"
    if isinstance(problem, httpx.ConnectError):
        return "refused"
    return "reset" if isinstance(problem, httpx.NetworkError) else "protocol"
