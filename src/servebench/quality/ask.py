"""Send items to an OpenAI-compatible endpoint, several at a time."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx

from servebench.contracts.engine import Dialect
from servebench.contracts.quality import Endpoint, Item, ItemAnswer
from servebench.contracts.request import Message
from servebench.contracts.results import Outcome
from servebench.protocol.errors import error_text
from servebench.protocol.kinds.kind import RequestKind
from servebench.protocol.kinds.table import kind_named
from servebench.quality.exchange import bounded_client, bounded_post
from servebench.util.safe_text import in_one_line
from servebench.util.units import NS_PER_MS

WATCH_S = 0.25
LINE_MAX = 200
ANSWER_BYTES_BASE, ANSWER_BYTES_PER_TOKEN = 4 << 20, 4096
"""An answer longer than its tokens can explain is cut off; most of its bytes are log-probabilities."""

USUAL = Dialect()

Watch = Callable[[int], None]
"""Called a few times a second with the number of finished items; an exception ends the requests."""


def ask(
    items: Sequence[Item],
    endpoint: Endpoint,
    *,
    concurrency: int,
    timeout_s: float = 120.0,
    api: str = "chat",
    dialect: Dialect = USUAL,
    on_answer: Callable[[Item, ItemAnswer], None] | None = None,
    watch: Watch | None = None,
    give_up_after: int | None = None,
) -> list[ItemAnswer]:
    """Return one answer for each item, in order, at temperature 0. A failed request is an answer with `error`.

    `timeout_s` limits a whole answer. `api` is the kind of the requests, which are sent in the engine's `dialect`. `on_answer`
    is called with each answer as it comes. An endpoint that is not measured itself has `give_up_after`: after so many failures
    in a row it is not asked any more, and while it is busy it is asked again.
    """
    session = _AskSession(
        endpoint, kind_named(api), dialect, timeout_s, on_answer=on_answer, give_up_after=give_up_after
    )
    return asyncio.run(session.ask_all(items, concurrency, watch))


def ask_once(
    items: Sequence[Item],
    endpoint: Endpoint,
    part: str,
    *,
    concurrency: int,
    timeout_s: float,
    api: str,
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
        kind: RequestKind,
        dialect: Dialect,
        timeout_s: float,
        *,
        on_answer: Callable[[Item, ItemAnswer], None] | None,
        give_up_after: int | None,
    ) -> None:
        self._client = bounded_client(endpoint.headers, timeout_s=timeout_s, verify_tls=endpoint.verify_tls)
        self._url = f"{endpoint.base_url}{kind.path_of(dialect)}"
        self._model = endpoint.model
        self._timeout_s = timeout_s
        self._kind = kind
        self._dialect = dialect
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
        fields = {"output_tokens": item.max_tokens, "extra": item.body}
        request = self._kind.request(item.prompt, item.item_id, **fields)
        if item.messages and request.messages is not None:
            request = replace(request, messages=tuple(Message(**one) for one in item.messages))
        return self._kind.body(request, self._model, self._dialect, streamed=False)

    def _read(self, status: int, data: bytes, bytes_max: int) -> dict[str, Any]:
        if not 200 <= status < 300:
            error = f"HTTP {status}: {error_text(data, LINE_MAX) or 'no message'}"
            return {"text": "", "error": error, "outcome": "http_error", "http_status": status}
        try:
            if len(data) > bytes_max:
                raise ValueError(f"longer than {bytes_max} bytes")
            answer = self._kind.read_whole(data)
        except ValueError as problem:
            error = f"not a {self._kind.title}: {problem}"[:LINE_MAX]
            return {"text": "", "error": error, "outcome": "protocol", "http_status": status}
        return {"http_status": status, **answer._asdict()}


def _outcome(problem: Exception) -> Outcome:
    if isinstance(problem, httpx.TimeoutException):
        return "timeout"
    if isinstance(problem, httpx.ConnectError):
        return "refused"
    return "reset" if isinstance(problem, httpx.NetworkError) else "protocol"
