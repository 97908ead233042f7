"""Reads what an engine answered: which events carry generated content, how many tokens, how it ended, what went wrong.

Every dialect seen in the field meets here: OpenAI chat and completions, streamed or not, with token ids or usage beside
each event, llama.cpp's timings, reasoning under two names, errors inside HTTP 200.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from servebench.contracts.results import CountedBy
from servebench.protocol import http, sse
from servebench.util.errors import in_one_line

MESSAGE_CHARS_MAX = 300
"""How much of a server's error message is kept."""

REASON_CHARS_MAX = 64
"""How much of a finish reason is kept: the known ones have a dozen characters."""

DONE = b"[DONE]"

COUNT_MAX = 2**31 - 1
"""A server that tells of more tokens than tables have room for does not count."""


def read(answer: http.HttpAnswer) -> Scan:
    """What is in an answer of status 2xx; nothing for any other. Pure; never raises for what a server sent."""
    scan = Scan()
    if answer.status is not None and 200 <= answer.status < 300:
        _read_answer(answer, scan)
    return scan


def http_message(answer: http.HttpAnswer) -> str:
    """What an answer of another status says of itself, in one line."""
    body = b"".join(data for _, data in answer.body[:64])
    said = _message(_load(body.strip().removeprefix(b"data:"))) or _shorten(_decode(body))
    if not said and "location" in answer.headers:
        said = _shorten(f"redirected to {answer.headers['location']}")
    return f"HTTP {answer.status}: {said}" if said else f"HTTP {answer.status}"


class Scan:
    """What was found so far in the chunks of one answer."""

    __slots__ = (
        "_generated", "_ids", "_last_read", "_predicted", "cached_tokens", "done", "ended_by_usage", "error",
        "event_ns", "finish_reason", "first_output_ns", "prompt_tokens", "reads_merged", "reasoning_parts",
        "reasoning_tokens", "text_parts", "unknown_lines", "usage_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.event_ns: list[int] = []
        self.text_parts: list[str] = []
        self.reasoning_parts: list[str] = []
        self.first_output_ns: int | None = None
        self.reads_merged = 0
        self.finish_reason: str | None = None
        self.done = False
        self.ended_by_usage = False
        self.unknown_lines = 0
        self.error: str | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.usage_tokens: int | None = None
        self._last_read = -1
        # of each content event: its token ids, and the running counts that came with it
        self._ids: list[int] = []
        self._generated: list[int | None] = []
        self._predicted: list[int | None] = []

    def chunk(self, chunk: dict[str, Any], stamp_ns: int, read_index: int) -> None:
        """Take one chunk, or a whole answer that was not streamed."""
        choices = chunk.get("choices")
        found, ids = False, 0
        if choices.__class__ is list:
            for choice in choices:
                if choice.__class__ is dict:
                    has, count = self._choice(choice, stamp_ns)
                    found = found or has
                    ids += count
        usage = chunk.get("usage")
        generated = self._usage(usage) if usage.__class__ is dict else None
        if found:
            if read_index == self._last_read:
                self.reads_merged += 1
            self._last_read = read_index
            self._level()
            self.event_ns.append(stamp_ns)
            self._ids.append(ids)
            self._generated.append(generated)
            timings = chunk.get("timings")
            self._predicted.append(_count(timings.get("predicted_n")) if timings.__class__ is dict else None)
        elif generated or (generated is not None and not choices):
            # a usage beside content may be one of those that grow with every chunk: it proves no end
            self.ended_by_usage = True
        if chunk.get("error") or chunk.get("object") == "error":
            self.fail(_message(chunk) or "an error without a message")

    def _level(self) -> None:
        """Content events that tell nothing beside their text may have been put in `event_ns` alone."""
        behind = len(self.event_ns) - len(self._ids)
        if behind:
            self._ids.extend([0] * behind)
            self._generated.extend([None] * behind)
            self._predicted.extend([None] * behind)

    def fail(self, message: str) -> None:
        """Note an error that the server told; the first one counts."""
        self.error = self.error or message

    def _choice(self, choice: dict[str, Any], stamp_ns: int) -> tuple[bool, int]:
        """Whether there is generated content in a choice, and how many token ids."""
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message")
        finish_reason = choice.get("finish_reason")
        if finish_reason.__class__ is str and finish_reason:
            self.finish_reason = _join([finish_reason[:REASON_CHARS_MAX]])
        output = reasoning = False
        if delta.__class__ is dict:
            content = delta.get("content")
            if content and content.__class__ is str:
                self.text_parts.append(content)
                output = True
            elif content and content.__class__ is list:
                output, reasoning = self._content_parts(content)
            # some servers send the same text under both names
            thought = delta.get("reasoning") or delta.get("reasoning_content")
            if thought and thought.__class__ is str:
                self.reasoning_parts.append(thought)
                reasoning = True
            calls = delta.get("tool_calls")
            if calls and calls.__class__ is list and self._tool_calls(calls):
                output = True
        text = choice.get("text")
        if text and text.__class__ is str:
            self.text_parts.append(text)
            output = True
        ids = choice.get("token_ids")
        count = len(ids) if ids.__class__ is list else 0
        if output and self.first_output_ns is None:
            self.first_output_ns = stamp_ns
        return output or reasoning or count > 0, count

    def _content_parts(self, parts: list[Any]) -> tuple[bool, bool]:
        """Whether content in parts (as Mistral's servers send it) has text, and whether it has reasoning."""
        output = reasoning = False
        for part in parts:
            if not isinstance(part, dict):
                continue
            text, thought = part.get("text"), part.get("thinking")
            if isinstance(text, str) and text:
                self.text_parts.append(text)
                output = True
            for step in thought if isinstance(thought, list) else [{"text": thought}]:
                text = step.get("text") if isinstance(step, dict) else None
                if isinstance(text, str) and text:
                    self.reasoning_parts.append(text)
                    reasoning = True
        return output, reasoning

    def _tool_calls(self, calls: list[Any]) -> bool:
        """Whether any call carries something generated. Arguments are kept as text: they are the answer."""
        found = False
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                continue
            arguments = function.get("arguments")
            if isinstance(arguments, str) and arguments:
                self.text_parts.append(arguments)
                found = True
            found = found or bool(function.get("name"))
        return found

    def _usage(self, usage: dict[str, Any]) -> int | None:
        """Keep a usage; its output tokens. One of zeros only is a placeholder (Ollama sends it with every chunk)."""
        prompt, output = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        if not prompt and not output and not _count(usage.get("total_tokens")):
            return None
        if prompt is not None:
            self.prompt_tokens = prompt
        if output is not None:
            self.usage_tokens = output
        cached = _detail(usage, "prompt_tokens_details", "cached_tokens")
        if cached is not None:
            self.cached_tokens = cached
        thought = _detail(usage, "completion_tokens_details", "reasoning_tokens")
        if thought is not None:
            self.reasoning_tokens = thought
        return output

    @property
    def text(self) -> str:
        """The answer, tool call arguments included."""
        return _join(self.text_parts)

    @property
    def reasoning(self) -> str:
        """The reasoning."""
        return _join(self.reasoning_parts)

    def count(self) -> tuple[int | None, CountedBy | None]:
        """Output tokens, and who counted them."""
        if self.usage_tokens is not None:
            return self.usage_tokens, "usage"
        if self._ids and len(self._ids) == len(self.event_ns) and all(self._ids):
            return sum(self._ids), "token_ids"
        return None, None

    def event_tokens(self) -> list[int] | None:
        """Tokens of each content event, where the stream says it for every one of them; else None."""
        if len(self._ids) < len(self.event_ns) or not self._ids:
            # some told nothing beside their text
            return None
        if all(self._ids):
            return self._ids
        growing = _growth(self._generated)
        return growing if growing is not None else _growth(self._predicted)


def _growth(counts: list[int | None]) -> list[int] | None:
    """Differences of a running count; None when it is missing anywhere, shrinks, or counts nothing."""
    steps: list[int] = []
    before = 0
    for count in counts:
        if count is None or count < before:
            return None
        steps.append(count - before)
        before = count
    return steps if before else None


def _count(value: Any) -> int | None:
    """A count that a server sent, if it is one."""
    return value if value.__class__ is int and 0 <= value <= COUNT_MAX else None


def _detail(usage: dict[str, Any], group: str, name: str) -> int | None:
    details = usage.get(group)
    return _count(details.get(name)) if isinstance(details, dict) else None


def _read_answer(answer: http.HttpAnswer, scan: Scan) -> None:
    if _is_streamed(answer):
        stream = sse.parse(answer.body)
        scan.unknown_lines = stream.unknown_lines
        events = Events(scan)
        for stamp_ns, data, name, read_index in stream.events:
            events.take(stamp_ns, data, name, read_index)
        return
    body = b"".join(data for _, data in answer.body)
    chunk = _load(body)
    if chunk is not None:
        scan.chunk(chunk, answer.body[-1][0], 0)
        scan.done = True
    elif answer.complete:
        scan.fail(f"the answer is not a JSON object: {_shorten(_decode(body))}")


def _is_streamed(answer: http.HttpAnswer) -> bool:
    """By content type, else by the first character: some servers stream under the name of JSON, or under none."""
    if "event-stream" in answer.headers.get("content-type", "").lower():
        return True
    start = b"".join(data for _, data in answer.body[:32]).lstrip(b"\xef\xbb\xbf \r\n\t")
    return not start.startswith((b"{", b"["))


class Events:
    """Takes the events of a stream, one after another, into a scan.

    `bad` says what is wrong with the last event, which is an error once another follows.
    """

    __slots__ = ("_scan", "bad")

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self.bad: str | None = None

    def take(self, stamp_ns: int, data: bytes, name: str | None, read_index: int) -> dict[str, Any] | None:
        """Take one event; its JSON object, if it is one."""
        scan = self._scan
        if self.bad is not None:
            # the last one may have been cut; whether it was is told by the stream having no end
            scan.fail(self.bad)
            self.bad = None
        chunk: Any
        try:
            chunk = None if data == DONE else orjson.loads(data)
        except orjson.JSONDecodeError:
            chunk = _load(data.strip())
        if chunk is None and data.strip() == DONE:
            scan.done = True
            return None
        if name == "error":
            scan.fail(_message(chunk) or _shorten(_decode(data)) or "an error without a message")
        if chunk.__class__ is dict:
            scan.chunk(chunk, stamp_ns, read_index)
            found: dict[str, Any] = chunk
            return found
        if data.strip() and name is None:
            self.bad = f"an event is not a JSON object: {_shorten(_decode(data))}"
        return None


def _load(data: bytes) -> dict[str, Any] | None:
    """A JSON object, also one with bytes that are no UTF-8 or with half of a surrogate pair; None for anything else."""
    chunk: Any
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            chunk = json.loads(_decode(data))
        except (ValueError, RecursionError):
            return None
    return chunk if isinstance(chunk, dict) else None


def _decode(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _join(parts: list[str]) -> str:
    """The text; a surrogate pair that was cut between events is whole again, half of one becomes U+FFFD."""
    text = "".join(parts)
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _shorten(text: str) -> str:
    return in_one_line(text, MESSAGE_CHARS_MAX)


def _message(body: Any) -> str | None:
    """The message in a server's error body, whichever shape it has; None when there is none."""
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, dict) and error:
        error = error.get("message") or error.get("detail") or error
    for found in (error, body.get("message"), body.get("detail")):
        if found:
            return _shorten(_join([found if isinstance(found, str) else _dumped(found)]))
    return None


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return "an error that is nested too deep to be told"
