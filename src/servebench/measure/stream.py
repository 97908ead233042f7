"""Reads the stored bytes of an answer, the usual one in a single pass.

The usual answer is a chunked stream of events, one event a read, and nearly all of its events differ from one another in
one string alone: the generated text. Once an event was read in full, and it is proved that its JSON is what comes before
the text, the text, and what comes after, a read with the same bytes before and after needs no HTTP, SSE or JSON again.
Whatever is unusual goes through `http`, `sse` and `answer`, and the outcome is the same either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat, takewhile
from typing import Any

import orjson

from servebench.measure import answer, http, sse

PROBE = "text?"
LEARN_MAX = 8
"""An answer whose events keep changing beside their text (a clock in them, say) is not worth learning from more often."""

RUN = 256
"""So many reads are compared at once."""

NO_HEAD = b"\n"
"""No chunk has this many bytes with its framing, so none begins like this."""

_TEXT_FIELDS = ("content", "reasoning", "reasoning_content")


def read(reads: Sequence[tuple[int, bytes]]) -> tuple[http.HttpAnswer, answer.Scan]:
    """The response in `reads`, (stamp, bytes) in order, and what is in it. Pure; never raises for what came.

    The body of a streamed answer is not kept: it is in the scan.
    """
    try:
        head = http.find_head(reads)
    except http.BadHttpError:
        head = None
    if head is None or not _usual(head):
        whole = http.decode(reads)
        return whole, answer.read(whole)
    scan = answer.Scan()
    complete, error = _follow(http.after_head(head, reads), scan)
    return http.HttpAnswer(status=head.status, headers=head.headers, complete=complete, error=error), scan


def _usual(head: http.Head) -> bool:
    headers = head.headers
    return (
        head.status == 200
        and headers.get("transfer-encoding", "").lower() == "chunked"
        and headers.get("content-encoding", "identity").lower() in ("", "identity")
        and "event-stream" in headers.get("content-type", "").lower()
    )


def _follow(rest: Sequence[http.Piece], scan: answer.Scan) -> tuple[bool, str | None]:
    """Read a chunked stream of events into a scan; whether it is complete, and what is wrong with its framing."""
    chunks, stream = http.Chunks(), sse.SseStream()
    lines, events = sse.Lines(stream), answer.Events(scan)
    stamps, index, learnt = scan.event_ns, -1, 0
    error: str | None = None
    shape: Shape | None = None
    chunk: dict[str, Any] | None = None
    plain = False
    at, alike_from = 0, 0
    try:
        while at < len(rest):
            if plain and shape is not None:
                if at >= alike_from:
                    some = rest[at : at + RUN]
                    count = shape.take(some)
                    # where a run is not all alike, its reads are looked at one by one
                    alike_from = at + (count or len(some))
                    if count:
                        stamps.extend([stamp_ns for stamp_ns, _ in some[:count]])
                        at += count
                        index += count
                        continue
                stamp_ns, data = rest[at]
                text = shape.text(data)
                if text:
                    stamps.append(stamp_ns)
                    shape.parts.append(text)
                    at += 1
                    index += 1
                    continue
            stamp_ns, data = rest[at]
            at += 1
            before = plain
            body = chunks.take(data)
            if body:
                index += 1
                lines.take(stamp_ns, body, index)
            found = stream.events
            for event in found:
                chunk = events.take(event.stamp_ns, event.data, event.event, event.read_index)
            plain = chunks.between and lines.idle and events.bad is None
            alone = before and len(found) == 1
            if alone and chunk is not None and learnt < LEARN_MAX and not (shape and shape.fits(data)):
                shape = learn(data, body, found[0].data, chunk, scan) or shape
                learnt += 1
            found.clear()
    except http.BadHttpError as bad:
        error = str(bad)
        # what came whole before the fault counts, also when it came in the same read
        lines.take(stamp_ns, b"".join(chunks.parts), index + 1)
    lines.finish()
    for event in stream.events:
        events.take(event.stamp_ns, event.data, event.event, event.read_index)
    scan.unknown_lines = stream.unknown_lines
    return chunks.done and error is None, error


class _Heads(dict[int, bytes]):
    """How a read of so many bytes begins when it is one chunk of a shape: the chunk's size, then what is before the text."""

    def __init__(self, before: bytes, digits: str) -> None:
        super().__init__()
        self._before, self._digits = before, digits

    def __missing__(self, size: int) -> bytes:
        head = NO_HEAD
        for digits in range(1, 9):
            length = size - digits - 4
            if length > 0 and len(line := format(length, self._digits)) == digits:
                head = line.encode() + b"\r\n" + self._before
                break
        self[size] = head
        return head


class Shape:
    """What the reads of one stream have before and after their text."""

    __slots__ = ("_after", "_cut", "_heads", "parts")

    def __init__(self, before: bytes, after: bytes, digits: str, parts: list[str]) -> None:
        """`before` and `after` stand in the chunk around the text; `digits` is `x` or `X`, as the chunk's size is
        written; `parts` is where its text goes."""
        self._after = after
        self._cut = -len(after)
        self._heads = _Heads(before, digits)
        self.parts = parts

    def fits(self, data: bytes) -> bool:
        """Whether a read is of this shape, whatever its text."""
        return data.startswith(self._heads[len(data)]) and data.endswith(self._after)

    def text(self, data: bytes) -> str | None:
        """The text of a read of this shape; nothing when it is of another, or when the text needs JSON to be read."""
        head = self._heads[len(data)]
        if not (data.startswith(head) and data.endswith(self._after)):
            return None
        try:
            text = data[len(head) : self._cut].decode()
        except UnicodeDecodeError:
            return None
        # a string of JSON without quotes, escapes and control characters is its own text
        return text if text.isprintable() and '"' not in text and "\\" not in text else None

    def take(self, reads: Sequence[http.Piece]) -> int:
        """Take the texts of the first reads, as many as are of this shape, all in one go; how many they were. 0 when one of
        them says nothing or needs JSON to be read."""
        datas = [data for _, data in reads]
        # what is unlike the others comes last: the finish reason, the usage
        while datas and not self.fits(datas[-1]):
            datas.pop()
        heads = list(map(self._heads.__getitem__, map(len, datas)))
        alike = map(bytes.startswith, datas, heads), map(bytes.endswith, datas, repeat(self._after))
        if not all(alike[0]) or not all(alike[1]):
            datas = list(takewhile(self.fits, datas))
        cut = self._cut
        texts = [data[len(head) : cut] for data, head in zip(datas, heads, strict=False)]
        try:
            text = b"\0".join(texts).decode()
        except UnicodeDecodeError:
            return 0
        bare = text.replace("\0", "")
        if (
            '"' in bare
            or "\\" in bare
            or not bare.isprintable()
            or not all(texts)
            or text.count("\0") != len(texts) - 1
        ):
            return 0
        self.parts.append(bare)
        return len(texts)


def learn(data: bytes, body: bytes, event: bytes, chunk: dict[str, Any], scan: answer.Scan) -> Shape | None:
    """The shape of a read that is exactly one chunk with exactly one event with nothing but text in it, else None.

    `data` is the read, `body` the chunk's payload, `event` the event's data and `chunk` what that is as JSON. Proved by
    putting another text in the place of its own: the JSON must differ in that and nothing else.
    """
    holder, name = _holder(chunk)
    if holder is None or data[-2:] != b"\r\n" or not body.startswith(b"data:"):
        return None
    size = len(data) - len(body) - 4
    digits = next((form for form in "xX" if data[:size] == format(len(body), form).encode()), None)
    at = body.find(event)
    if (
        digits is None
        or data[size : size + 2] != b"\r\n"
        or at < 0
        or body[at + len(event) :] not in (b"\n\n", b"\r\n\r\n")
    ):
        return None
    text = holder[name]
    quoted = b'"' + text.encode("utf-8", "replace") + b'"'
    key = b'"' + name.encode() + b'":'
    place = event.find(key + quoted)
    place = place + len(key) if place >= 0 else event.find(key + b" " + quoted) + len(key) + 1
    if place <= len(key) or body[5:at].strip(b" "):
        return None
    before, after = event[: place + 1], event[place + len(quoted) - 1 :]
    try:
        other = orjson.loads(before + PROBE.encode() + after)
    except orjson.JSONDecodeError:
        return None
    holder[name] = PROBE
    same = other == chunk
    holder[name] = text
    if not same:
        return None
    parts = scan.reasoning_parts if name.startswith("reasoning") else scan.text_parts
    return Shape(body[:at] + before, after + body[at + len(event) :] + b"\r\n", digits, parts)


def _holder(chunk: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The one object of a chunk that has generated text in it, and under which name; None when there is more to it."""
    choices = chunk.get("choices")
    told = any(chunk.get(name) for name in ("usage", "timings", "error")) or chunk.get("object") == "error"
    if told or choices.__class__ is not list or len(choices) != 1 or choices[0].__class__ is not dict:
        return None, ""
    choice: dict[str, Any] = choices[0]
    if choice.get("finish_reason") or choice.get("token_ids").__class__ is list or choice.get("message"):
        return None, ""
    delta = choice.get("delta")
    if delta is None:
        text = choice.get("text")
        return (choice, "text") if text and text.__class__ is str else (None, "")
    if delta.__class__ is not dict or choice.get("text") or delta.get("tool_calls"):
        return None, ""
    names = [name for name in _TEXT_FIELDS if delta.get(name)]
    if len(names) != 1 or delta[names[0]].__class__ is not str:
        return None, ""
    return delta, names[0]
