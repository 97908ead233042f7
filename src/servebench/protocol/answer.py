"""Read what an engine answered, whatever the kind of request: its content events, how many tokens, how it ended, what went
wrong. Which events carry what is defined by the scan of each kind (`protocol.kinds`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import orjson

from servebench.contracts.results import CountedBy
from servebench.protocol import sse
from servebench.protocol.errors import error_code, error_message, shorten
from servebench.protocol.framing import HttpResponse
from servebench.protocol.json_values import decode_text, join_text, load_object

DONE = b"[DONE]"

HELD_BYTES_SLACK = 16
"""Usage may count this many tokens more than the text has bytes: end tokens and others without text."""

CALL_TOKENS = 12
"""What models write around the name and the arguments of a tool call, which is not sent: Hermes' tags and keys take 11."""


def read(response: HttpResponse, scan: AnswerScan) -> None:
    """Add what is in a response of status 2xx to a scan; nothing of any other. Never raises for what a server sent."""
    if response.status is None or not 200 <= response.status < 300:
        return
    if _is_streamed(response):
        ContentEvents(scan).add_all(sse.parse(response.body))
        return
    body = b"".join(data for _, data in response.body)
    if (chunk := load_object(body, scan.list_name)) is not None:
        scan.add_chunk(chunk, response.body[-1][0], 0)
        scan.error_code = error_code(chunk) if scan.error is not None else None
        scan.done = True
    elif response.complete:
        scan.fail(f"the answer is not a JSON object: {shorten(decode_text(body))}")


class TextPlace(NamedTuple):
    """Where the text of a chunk is: in a field of one of its objects, and the list of the scan that it is added to."""

    holder: dict[str, Any]
    name: str
    parts: list[str]


class AnswerScan(ABC):
    """What the chunks of one answer contain so far. `details` are their fields without the text; the last of a name counts."""

    __slots__ = (
        "_generated", "_ids", "_last_read", "_predicted", "_unsent", "cached_tokens", "details", "done", "ended_by_usage",
        "error", "error_code", "event_ns", "finish_reason", "first_output_ns", "prompt_tokens", "reads_merged", "reasoning_parts",
        "reasoning_tokens", "text_parts", "unknown_line", "unknown_lines",
        "usage_tokens",
    )  # fmt: skip
    list_name: ClassVar[str | None] = None
    """The field that an answer stands for which is a bare list (SGLang's ranking); null if no answer is one."""

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
        self.unknown_line = b""
        self.error: str | None = None
        self.error_code: str | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.usage_tokens: int | None = None
        self.details: dict[str, Any] = {}
        self._last_read = -1
        self._unsent = 0
        # of each content event: its token ids, and the running counts that came with it
        self._ids: list[int] = []
        self._generated: list[int | None] = []
        self._predicted: list[int | None] = []

    @abstractmethod
    def add_chunk(self, chunk: dict[str, Any], stamp_ns: int, read_index: int) -> None:
        """Take one chunk, or a whole answer that is not streamed. Must not raise for anything that a server sends."""

    def text_place(self, chunk: dict[str, Any]) -> TextPlace | None:
        """Return where the text of a chunk is that has generated text in one place and nothing else that counts, so that the next
        chunks may differ from it in this text alone; None for any other chunk."""
        return None

    def add_event(
        self, stamp_ns: int, read_index: int, ids: int = 0, generated: int | None = None, predicted: int | None = None
    ) -> None:
        """Add a content event: its token ids, and the running counts of tokens that came with it."""
        if read_index == self._last_read:
            self.reads_merged += 1
        self._last_read = read_index
        self._align()
        self.event_ns.append(stamp_ns)
        self._ids.append(ids)
        self._generated.append(generated)
        self._predicted.append(predicted)

    @property
    def said_end(self) -> bool:
        """Whether the answer has said that it is over: with a finish reason, `[DONE]` or a last usage."""
        return self.done or self.finish_reason is not None or self.ended_by_usage

    def _align(self) -> None:
        """Fill the lists of counts up to `event_ns`, to which `protocol.stream` adds events with nothing but text."""
        behind = len(self.event_ns) - len(self._ids)
        if behind:
            self._ids.extend([0] * behind)
            self._generated.extend([None] * behind)
            self._predicted.extend([None] * behind)

    def add_call(self, name: object) -> bool:
        """Note the name of a tool call, which is no part of the text; return whether there is one."""
        self._unsent += CALL_TOKENS + (len(name) if isinstance(name, str) else 0) if name else 0
        return bool(name)

    def fail(self, message: str) -> None:
        """Record an error that the server reported; the first one counts."""
        self.error = self.error or message

    @property
    def text(self) -> str:
        """The generated text, tool call arguments included."""
        return join_text(self.text_parts)

    @property
    def reasoning(self) -> str:
        """The generated reasoning."""
        return join_text(self.reasoning_parts)

    def count(self) -> tuple[int | None, CountedBy | None]:
        """Return the output tokens that were sent and who counted them; None and None when the answer does not say, or when
        usage counts more than the text can hold and does not say what the others are."""
        if self.usage_tokens is not None:
            received = self.usage_tokens - self.hidden_tokens
            return (received, "usage") if self._can_hold(received) else (None, None)
        if self._ids and len(self._ids) == len(self.event_ns) and all(self._ids):
            return sum(self._ids), "token_ids"
        return None, None

    @property
    def hidden_tokens(self) -> int:
        """How many tokens of the usage are reasoning of which nothing was sent.

        None of them where any reasoning was sent, where the content events have token ids for all tokens, or where there are
        more content events than other tokens: then the reasoning is among the content, or not part of the count.
        """
        counted, thought = self.usage_tokens or 0, self.reasoning_tokens or 0
        if self.reasoning_parts or not 0 < thought <= counted:
            return 0
        hidden = min(thought, max(0, counted - sum(self._ids)))
        return hidden if len(self.event_ns) <= counted - hidden + 1 else 0

    def _can_hold(self, tokens: int) -> bool:
        """Whether the text and the tool calls may have this many tokens: at most one a byte, and not none. A model that must
        continue to a length may send any number of tokens without text."""
        if not tokens and self.event_ns:
            return False
        if self.finish_reason == "length" or all(self._ids) or tokens <= HELD_BYTES_SLACK:
            return True
        slack = HELD_BYTES_SLACK + self._unsent
        characters = sum(map(len, self.text_parts)) + sum(map(len, self.reasoning_parts))
        return tokens <= slack + characters or tokens <= slack + len((self.text + self.reasoning).encode())

    def event_tokens(self) -> list[int] | None:
        """Return the tokens of each content event where the stream gives them for every one, else None."""
        if len(self._ids) < len(self.event_ns) or not self._ids:
            return None
        if all(self._ids):
            return self._ids
        growth = _growth(self._generated)
        growth = growth if growth is not None else _growth(self._predicted)
        hidden = self.hidden_tokens
        if growth and hidden and growth[0] > hidden:
            # a count that runs has the hidden tokens in its first value
            growth[0] -= hidden
        return growth


def _growth(counts: list[int | None]) -> list[int] | None:
    """Return the steps of a running count; None when a value is missing, it shrinks, or it counts nothing."""
    steps: list[int] = []
    before = 0
    for count in counts:
        if count is None or count < before:
            return None
        steps.append(count - before)
        before = count
    return steps if before else None


def _is_streamed(response: HttpResponse) -> bool:
    """Decide by the content type, else by the first character: some servers stream as JSON or without a content type."""
    if "event-stream" in response.headers.get("content-type", "").lower():
        return True
    start = b"".join(data for _, data in response.body[:32]).lstrip(b"\xef\xbb\xbf \r\n\t")
    return not start.startswith((b"{", b"["))


class ContentEvents:
    """Adds the events of a stream to a scan, one after another. `bad` says what is wrong with the last event; that is an error
    once another event follows."""

    __slots__ = ("_scan", "bad")

    def __init__(self, scan: AnswerScan) -> None:
        self._scan = scan
        self.bad: str | None = None

    def add_all(self, stream: sse.SseStream) -> None:
        """Take the events of a stream that has ended."""
        for event in stream.events:
            self.add(event)
        self._scan.unknown_lines = stream.unknown_lines
        self._scan.unknown_line = stream.unknown_line

    def add(self, event: sse.SseEvent) -> dict[str, Any] | None:
        """Take one event and return its JSON object, None when it is not one."""
        scan = self._scan
        stamp_ns, data, name, read_index = event
        if self.bad is not None:
            # the last event of a stream may be cut; a missing end says so
            scan.fail(self.bad)
            self.bad = None
        chunk: Any
        try:
            chunk = None if data == DONE else orjson.loads(data)
        except orjson.JSONDecodeError:
            chunk = load_object(data.strip())
        if chunk is None and data.strip() == DONE:
            scan.done = True
            return None
        known = scan.error
        if name == "error":
            scan.fail(error_message(chunk) or shorten(decode_text(data)) or "an error without a message")
        if chunk.__class__ is dict:
            scan.add_chunk(chunk, stamp_ns, read_index)
            if scan.error is not known:
                scan.error_code = error_code(chunk)
            added: dict[str, Any] = chunk
            return added
        if data.strip() and name is None:
            self.bad = f"an event is not a JSON object: {shorten(decode_text(data))}"
        return None


class FirstContent:
    """Watches the body of an answer, while it arrives, for its first generated content.

    Attributes:
        beginning: the data of the first event, or the body of an answer without events.
    """

    def __init__(self, scan: AnswerScan) -> None:
        self._scan = scan
        self._events = ContentEvents(self._scan)
        self._stream = sse.SseStream()
        self._parser = sse.SseParser(self._stream)
        self._body: list[bytes] = []
        self.beginning = b""

    @property
    def arrived(self) -> bool:
        """Whether generated content has come, or an answer was cut at its length in thinking that the server keeps."""
        return bool(self._scan.event_ns or (self._scan.finish_reason == "length" and self._scan.usage_tokens))

    @property
    def ended(self) -> bool:
        """Whether the answer has said that it is over."""
        return self._scan.said_end

    @property
    def error(self) -> str | None:
        """The first error that the answer reports."""
        return self._scan.error

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body."""
        self._body.append(data)
        self._parser.feed(0, data, 0)
        self._take_events()

    def finish(self) -> None:
        """End the body: without events, it is one JSON document."""
        self._parser.finish()
        self._take_events()
        if not self.beginning:
            self.beginning = b"".join(self._body)
            if (document := load_object(self.beginning, self._scan.list_name)) is not None:
                self._scan.add_chunk(document, 0, 0)
                self._scan.done = True

    def _take_events(self) -> None:
        for event in self._stream.events:
            self.beginning = self.beginning or event.data
            self._events.add(event)
            # an event that cannot be read does not matter here
            self._events.bad = None
        self._stream.events.clear()
