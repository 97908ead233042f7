"""Call a judge that may be down, slow or hostile: every reply is bounded in time and size, and a failing judge is given up."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from servebench.plugin import bounded_client, bounded_post, error_text, in_one_line, kind_named

CHAT = kind_named("chat")
REPLY_BYTES_MAX = 1 << 20
LINE_MAX = 160
BUSY = (429, 503)
PAUSE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Call:
    """How to call the judge. `timeout_s` limits a reply from connecting to its last byte. `schema` is enforced on replies
    by a judge that supports it."""

    base_url: str
    model: str
    key: str | None
    concurrency: int
    timeout_s: float
    give_up_after: int
    max_tokens: int
    ca_file: str | None = None
    verify_tls: bool = True
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A judge's reply. If there is none, `error` is the reason in one line and `outcome` its kind: `refused`, `timeout`,
    `http_error`, `reset`, `protocol`, or `not_asked` after the judge was given up. Tokens are the judge's usage."""

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
    """Return a reply to each prompt, in order; never raises for what the judge does. `on_reply` is called with the index and
    the reply of each as it comes, `watch` with their number: an exception of `watch` ends the calls."""
    return asyncio.run(_call_all(prompts, call, on_reply, watch)) if prompts else []


async def _call_all(
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
        http = bounded_client(headers, timeout_s=call.timeout_s, verify_tls=call.verify_tls and (call.ca_file or True))
    except (ValueError, UnicodeError) as problem:
        # a key that cannot be sent in a header
        return [Reply(error=_line(problem, call), outcome="protocol")] * len(prompts)

    async def stream() -> None:
        nonlocal failures, last
        for place, prompt in left:
            if failures >= call.give_up_after:
                error = f"the judge failed {failures} times in a row and was given up; last error: {last}"
                replies[place] = Reply(error=error, outcome="not_asked")
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
        url = f"{call.base_url}{CHAT.path}"
        status, data = await _post_patiently(http, url, body, call)
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, UnicodeError, OSError) as problem:
        return _failed(problem, call)
    if status != httpx.codes.OK:
        message = _line(error_text(data, 4 * LINE_MAX), call)
        return Reply(error=f"HTTP {status}: {message or 'no message'}", outcome="http_error")
    return _read(data, call)


async def _post_patiently(http: httpx.AsyncClient, url: str, body: Mapping[str, Any], call: Call) -> tuple[int, bytes]:
    """Post a request; repeat it after a pause if the judge is busy, until the time for the reply is over."""
    ends = time.monotonic() + call.timeout_s
    pause = PAUSE_S
    while True:
        left = ends - time.monotonic()
        status, data, wait = await bounded_post(http, url, body, timeout_s=max(left, 0.0), bytes_max=REPLY_BYTES_MAX)
        pause = max(pause, wait or 0.0)
        if status not in BUSY or time.monotonic() + pause >= ends:
            return status, data
        await asyncio.sleep(pause)
        pause *= 2


def _failed(problem: Exception, call: Call) -> Reply:
    match problem:
        case TimeoutError() | httpx.TimeoutException():
            return Reply(error=f"no complete reply within {call.timeout_s:g} s", outcome="timeout")
        case httpx.ConnectError():
            return Reply(error=f"{call.base_url} is unreachable: {_line(problem, call)}", outcome="refused")
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            return Reply(error=f"the connection failed: {_line(problem, call)}", outcome="reset")
    return Reply(error=f"not HTTP: {_line(problem, call)}", outcome="protocol")


def _read(data: bytes, call: Call) -> Reply:
    if len(data) > REPLY_BYTES_MAX:
        return Reply(error=f"a reply of more than {REPLY_BYTES_MAX} bytes", outcome="protocol")
    try:
        answer = CHAT.read_whole(data)
    except ValueError as problem:
        return Reply(error=f"not a {CHAT.title}: {_line(problem, call)}", outcome="protocol")
    return Reply(text=answer.text, input_tokens=answer.prompt_tokens, output_tokens=answer.output_tokens)


def _line(problem: object, call: Call) -> str:
    """Return one short line without the API key, which a server may repeat."""
    text = str(problem) or type(problem).__name__
    if call.key:
        text = text.replace(call.key, "***")
    return in_one_line(text, LINE_MAX)
