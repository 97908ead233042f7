"""Send items to an OpenAI-compatible endpoint, several at a time. It may be slow or hostile: every answer is bounded in time and
size."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack
from urllib.parse import urlencode

import httpx

from servebench.contracts.engine import Dialect
from servebench.contracts.quality import Endpoint, Item, ItemAnswer
from servebench.contracts.request import Message
from servebench.contracts.results import BUSY, Outcome
from servebench.protocol.errors import error_text, retry_after_s
from servebench.protocol.kinds.table import kind_named
from servebench.util.safe_text import in_one_line
from servebench.util.tls import Trust, tls_context
from servebench.util.units import NS_PER_MS

WATCH_S = 0.25
LINE_MAX = 200
PAUSE_S = 0.5
ANSWER_BYTES_BASE, ANSWER_BYTES_PER_TOKEN = 4 << 20, 4096
"""An answer longer than its tokens can explain is cut off; most of its bytes are log-probabilities."""

USUAL = Dialect()

Watch = Callable[[int], None]
"""Called a few times a second with the number of finished items; an exception ends the requests."""


class AskOptions(TypedDict, total=False):
    """The options of `ask`."""

    timeout_s: float
    api: str
    dialect: Dialect
    on_answer: Callable[[Item, ItemAnswer], None] | None
    give_up_after: int | None


def ask(
    items: Sequence[Item],
    endpoint: Endpoint,
    *,
    concurrency: int,
    watch: Watch | None = None,
    **options: Unpack[AskOptions],
) -> list[ItemAnswer]:
    """Return one answer for each item, in order, at temperature 0 where there is one. A failed request is an answer with `error`.

    `options` are `timeout_s`, which limits a whole answer; `api`, the kind of the requests, and the engine's `dialect` in which
    they are sent; `on_answer`, which is called with each answer as it comes; and for an endpoint that is not measured itself
    `give_up_after`: after this number of failures in a row it is not asked any more, and while it is busy it is asked again.
    """
    return asyncio.run(_AskSession(endpoint=endpoint, **options).ask_all(items, concurrency, watch))


def ask_once(items: Sequence[Item], endpoint: Endpoint, part: str, **options: Any) -> list[ItemAnswer]:
    """Return answers as `ask` does with these options, reusing those in the endpoint's memory and storing each new one there
    immediately.

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

    fresh = iter(ask(left, endpoint, on_answer=keep, watch=report, **options))
    return [known[key] if key in known else next(fresh) for key in keys]


@dataclass(kw_only=True)
class _AskSession:
    endpoint: Endpoint
    timeout_s: float = 120.0
    api: str = "chat"
    dialect: Dialect = USUAL
    on_answer: Callable[[Item, ItemAnswer], None] | None = None
    give_up_after: int | None = None

    def __post_init__(self) -> None:
        one, self.kind = self.endpoint, kind_named(self.api)
        self.dialect = replace(self.dialect, names=one.names or self.dialect.names)
        self._client = bounded_client(
            {**self.kind.headers, **one.headers}, timeout_s=self.timeout_s, verify_tls=one.verify_tls
        )
        query = f"?{urlencode(list(one.query))}" if one.query else ""
        self._url = f"{one.base_url}{self.kind.path_of(self.dialect)}{query}"
        self._failed: list[str | None] = []
        """The errors of the last requests in a row."""
        self._answers: dict[int, ItemAnswer] = {}

    async def ask_all(self, items: Sequence[Item], concurrency: int, watch: Watch | None) -> list[ItemAnswer]:
        left = iter(enumerate(items))

        async def stream() -> None:
            for place, item in left:
                answer = self._given_up(item) or await self._one(item)
                self._answers[place] = answer
                if self.on_answer is not None:
                    self.on_answer(item, answer)

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
        if self.give_up_after is None or failures < self.give_up_after:
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
                timeout_s=self.timeout_s,
                bytes_max=bytes_max,
                patient=self.give_up_after is not None,
            )
        except TimeoutError:
            fields = {"text": "", "error": f"no complete answer within {self.timeout_s:g} s", "outcome": "timeout"}
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
        fields: dict[str, Any] = {"output_tokens": item.max_tokens, "extra": item.body}
        if "max_tokens" in self.dialect.names:
            # OpenAI's models that think take none
            fields["temperature"] = None
        request = self.kind.request(item.prompt, item.item_id, **fields)
        if item.messages and request.messages is not None:
            request = replace(request, messages=tuple(Message(one["role"], one["content"]) for one in item.messages))
        return self.kind.body(request, self.endpoint.model, self.dialect, streamed=False)

    def _read(self, status: int, data: bytes, bytes_max: int) -> dict[str, Any]:
        if not 200 <= status < 300:
            error = f"HTTP {status}: {error_text(data, LINE_MAX) or 'no message'}"
            return {"text": "", "error": error, "outcome": "http_error", "http_status": status}
        try:
            if len(data) > bytes_max:
                raise ValueError(f"longer than {bytes_max} bytes")
            answer = self.kind.read_whole(data)
        except ValueError as problem:
            error = f"not a {self.kind.title}: {problem}"[:LINE_MAX]
            return {"text": "", "error": error, "outcome": "protocol", "http_status": status}
        return {"http_status": status, **answer._asdict()}


def _outcome(problem: Exception) -> Outcome:
    if isinstance(problem, httpx.TimeoutException):
        return "timeout"
    if isinstance(problem, httpx.ConnectError):
        return "refused"
    return "reset" if isinstance(problem, httpx.NetworkError) else "protocol"


def bounded_client(headers: Mapping[str, str], *, timeout_s: float, verify_tls: Trust) -> httpx.AsyncClient:
    """Return a client that accepts no encoding (a small compressed answer may expand without end) and uses no proxy of the
    environment. Raises ValueError, UnicodeError for a header that cannot be sent."""
    return httpx.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        timeout=timeout_s,
        verify=tls_context(verify_tls),
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
    )


async def bounded_post(
    http: httpx.AsyncClient,
    url: str,
    body: Mapping[str, Any],
    *,
    timeout_s: float,
    bytes_max: int,
    patient: bool = False,
) -> tuple[int, bytes]:
    """Return status and body. A body longer than `bytes_max` is cut a little behind it. With `patient`, a server that is busy is
    asked again after a pause, as long as `timeout_s` lasts.

    Raises TimeoutError when the whole body has not come in `timeout_s`, and httpx.HTTPError.
    """
    ends_s, pause_s = time.monotonic() + timeout_s, PAUSE_S
    while True:
        content = bytearray()
        left_s = max(0.0, ends_s - time.monotonic())
        async with asyncio.timeout(left_s), http.stream("POST", url, json=dict(body)) as response:
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > bytes_max:
                    break
        pause_s = max(pause_s, retry_after_s(response.headers, time.time()) or 0.0)
        if not patient or response.status_code not in BUSY or time.monotonic() + pause_s >= ends_s:
            return response.status_code, bytes(content)
        await asyncio.sleep(pause_s)
        pause_s *= 2
