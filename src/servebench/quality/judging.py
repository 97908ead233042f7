"""Asks a judge that may be down, slow or hostile: each reply within its time and size, and no more once it has failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from servebench.quality.exchange import client, completion, count, line, post_told, said

REPLY_BYTES_MAX = 1 << 20
LINE_MAX = 160
BUSY = (429, 503)
PAUSE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Call:
    """How the judge is asked. `timeout_s` bounds a reply whole, from connecting to its last byte. `schema` is what a reply is
    held to, by a judge that can do that."""

    base_url: str
    model: str
    key: str | None
    concurrency: int
    timeout_s: float
    give_up_after: int
    max_tokens: int
    verify_tls: bool = True
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the judge said. `error` is one line when it said nothing, and `outcome` a word for it: `refused`, `timeout`,
    `http_error`, `reset`, `protocol`, or `not_asked` after it was given up. Tokens are its own usage."""

    text: str = ""
    error: str | None = None
    outcome: str = "ok"
    input_tokens: int | None = None
    output_tokens: int | None = None


def call_all(
    prompts: Sequence[str],
    call: Call,
    *,
    on_reply: Callable[[int, Reply], None] | None = None,
    watch: Callable[[int], None] | None = None,
) -> list[Reply]:
    """A reply to each prompt, in order. Never raises for what the judge does. `on_reply` is told each with its place, as it
    comes; `watch` how many there are, and what it raises ends the asking."""
    return asyncio.run(_all(prompts, call, on_reply, watch)) if prompts else []


async def _all(
    prompts: Sequence[str],
    call: Call,
    on_reply: Callable[[int, Reply], None] | None,
    watch: Callable[[int], None] | None,
) -> list[Reply]:
    replies: dict[int, Reply] = {}
    left = iter(enumerate(prompts))
    failures = 0
    last = ""
    headers = {} if call.key is None else {"Authorization": f"Bearer {call.key}"}
    try:
        http = client(headers, timeout_s=call.timeout_s, verify_tls=call.verify_tls)
    except (ValueError, UnicodeError) as problem:
        # a key that cannot be sent in a header
        return [Reply(error=_line(problem, call), outcome="protocol")] * len(prompts)

    async def stream() -> None:
        nonlocal failures, last
        for place, prompt in left:
            if failures >= call.give_up_after:
                words = f"the judge failed {failures} times in a row and was asked no more; the last time: {last}"
                replies[place] = Reply(error=words, outcome="not_asked")
                continue
            reply = await _one(http, prompt, call)
            replies[place] = reply
            failures, last = (failures + 1, reply.error) if reply.error else (0, "")
            if on_reply is not None:
                on_reply(place, reply)
            if watch is not None:
                watch(len(replies))

    async with http:
        await asyncio.gather(*(stream() for _ in range(min(call.concurrency, len(prompts)))))
    return [replies[place] for place in range(len(prompts))]


async def _one(http: httpx.AsyncClient, prompt: str, call: Call) -> Reply:
    body = {
        "model": call.model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": call.max_tokens,
    }
    if call.schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": call.schema}}
    try:
        url = f"{call.base_url}/chat/completions"
        status, data = await _posted(http, url, body, call)
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, UnicodeError, OSError) as problem:
        return _failed(problem, call)
    if status != httpx.codes.OK:
        words = _line(said(data, 4 * LINE_MAX), call)
        return Reply(error=f"HTTP {status}: {words or 'no words'}", outcome="http_error")
    return _read(data, call)


async def _posted(http: httpx.AsyncClient, url: str, body: Mapping[str, Any], call: Call) -> tuple[int, bytes]:
    """As `post`; a judge that says it is busy is asked again after a pause, as long as the reply's time lasts."""
    ends = time.monotonic() + call.timeout_s
    pause = PAUSE_S
    while True:
        left = ends - time.monotonic()
        status, data, wait = await post_told(http, url, body, timeout_s=max(left, 0.0), bytes_max=REPLY_BYTES_MAX)
        pause = max(pause, wait or 0.0)
        if status not in BUSY or time.monotonic() + pause >= ends:
            return status, data
        await asyncio.sleep(pause)
        pause *= 2


def _failed(problem: Exception, call: Call) -> Reply:
    match problem:
        case TimeoutError() | httpx.TimeoutException():
            return Reply(error=f"no whole reply within {call.timeout_s:g} s", outcome="timeout")
        case httpx.ConnectError():
            return Reply(error=f"{call.base_url} cannot be reached: {_line(problem, call)}", outcome="refused")
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            return Reply(error=f"the connection broke: {_line(problem, call)}", outcome="reset")
    return Reply(error=f"no HTTP: {_line(problem, call)}", outcome="protocol")


def _read(data: bytes, call: Call) -> Reply:
    if len(data) > REPLY_BYTES_MAX:
        return Reply(error=f"a reply of more than {REPLY_BYTES_MAX} bytes", outcome="protocol")
    try:
        _, text, usage = completion(data)
    except ValueError as problem:
        return Reply(error=f"not a chat completion: {_line(problem, call)}", outcome="protocol")
    return Reply(
        text=text, input_tokens=count(usage.get("prompt_tokens")), output_tokens=count(usage.get("completion_tokens"))
    )


def _line(problem: object, call: Call) -> str:
    """One short line; a server may repeat the key that it was given."""
    words = str(problem) or type(problem).__name__
    if call.key:
        words = words.replace(call.key, "***")
    return line(words, LINE_MAX)
