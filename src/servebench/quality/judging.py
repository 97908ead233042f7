"""Asks a judge that may be down, slow or hostile: each reply within its time and size, and no more once it has failed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

REPLY_BYTES_MAX = 1 << 20
LINE_MAX = 160


@dataclass(frozen=True, kw_only=True)
class Call:
    """How the judge is asked. `timeout_s` bounds a reply whole, from connecting to its last byte."""

    base_url: str
    model: str
    key: str | None
    concurrency: int
    timeout_s: float
    give_up_after: int
    max_tokens: int
    verify_tls: bool = True


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the judge said. `error` is one line when it said nothing, and `outcome` a word for it: `refused`, `timeout`,
    `http_error`, `reset`, `protocol`, or `not_asked` after it was given up. Tokens are its own usage."""

    text: str = ""
    error: str | None = None
    outcome: str = "ok"
    input_tokens: int | None = None
    output_tokens: int | None = None


def call_all(prompts: Sequence[str], call: Call) -> list[Reply]:
    """A reply to each prompt, in order. Never raises for what the judge does."""
    return asyncio.run(_all(prompts, call)) if prompts else []


async def _all(prompts: Sequence[str], call: Call) -> list[Reply]:
    replies: dict[int, Reply] = {}
    left = iter(enumerate(prompts))
    failures = 0
    last = ""
    # a small compressed reply may be an endless one
    headers = {"Accept-Encoding": "identity"}
    if call.key is not None:
        headers["Authorization"] = f"Bearer {call.key}"
    try:
        client = httpx.AsyncClient(
            headers=headers,
            timeout=call.timeout_s,
            verify=call.verify_tls,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )
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
            reply = await _one(client, prompt, call)
            replies[place] = reply
            failures, last = (failures + 1, reply.error) if reply.error else (0, "")

    async with client:
        await asyncio.gather(*(stream() for _ in range(min(call.concurrency, len(prompts)))))
    return [replies[place] for place in range(len(prompts))]


async def _one(client: httpx.AsyncClient, prompt: str, call: Call) -> Reply:
    body = {
        "model": call.model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": call.max_tokens,
    }
    try:
        async with asyncio.timeout(call.timeout_s):
            status, data = await _exchange(client, f"{call.base_url}/chat/completions", body)
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, UnicodeError, OSError) as problem:
        return _failed(problem, call)
    if status != httpx.codes.OK:
        said = _line(data.decode(errors="replace"), call)
        return Reply(error=f"HTTP {status}: {said or 'no words'}", outcome="http_error")
    return _read(data, call)


def _failed(problem: Exception, call: Call) -> Reply:
    match problem:
        case TimeoutError() | httpx.TimeoutException():
            return Reply(error=f"no whole reply within {call.timeout_s:g} s", outcome="timeout")
        case httpx.ConnectError():
            return Reply(error=f"{call.base_url} cannot be reached: {_line(problem, call)}", outcome="refused")
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            return Reply(error=f"the connection broke: {_line(problem, call)}", outcome="reset")
    return Reply(error=f"no HTTP: {_line(problem, call)}", outcome="protocol")


async def _exchange(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """Status and body; of a body that does not end, as much as is looked at."""
    found = bytearray()
    async with client.stream("POST", url, json=body) as response:
        async for piece in response.aiter_raw():
            found += piece
            if len(found) > REPLY_BYTES_MAX:
                break
        return response.status_code, bytes(found)


def _read(data: bytes, call: Call) -> Reply:
    if len(data) > REPLY_BYTES_MAX:
        return Reply(error=f"a reply of more than {REPLY_BYTES_MAX} bytes", outcome="protocol")
    try:
        document = json.loads(data)
        text = document["choices"][0]["message"]["content"]
        usage = document.get("usage")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as problem:
        return Reply(error=f"not a chat completion: {_line(repr(problem), call)}", outcome="protocol")
    if text is not None and not isinstance(text, str):
        return Reply(error="not a chat completion: its content is no text", outcome="protocol")
    counts = usage if isinstance(usage, dict) else {}
    return Reply(
        text=text or "",
        input_tokens=_count(counts.get("prompt_tokens")),
        output_tokens=_count(counts.get("completion_tokens")),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _line(problem: object, call: Call) -> str:
    """One short line; a server may repeat the key that it was given."""
    words = " ".join(str(problem).split()) or type(problem).__name__
    if call.key:
        words = words.replace(call.key, "***")
    return words[:LINE_MAX]
