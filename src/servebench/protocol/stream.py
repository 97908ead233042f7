"""Read the stored bytes of an answer, the usual one in a single pass.

The usual answer is a chunked stream of events, one event a read, and nearly all of its events differ from one another in
one string alone: the generated text. Once an event has been parsed, and it is proved that its JSON is what stands before
the text, the text, and what stands after it, a read with the same bytes before and after needs no HTTP, SSE or JSON
parsing. Everything else goes through `framing`, `sse` and `answer`; the result is the same either way.
"""

import re
from collections.abc import Sequence
from itertools import repeat, takewhile
from typing import Any

import orjson

from servebench.contracts.exchange import Reads
from servebench.protocol import answer, sse
from servebench.protocol import framing as http

PROBE = "text?"
LEARN_MAX = 8
"""How often a shape is learned from one answer: events that differ in more than their text (a clock, say) are not worth it."""

EVENT_BEGINS = re.compile(rb"(?:event: *[\w.-]+\r?\n)?data: *")
"""What stands before the data of an event: perhaps its name."""

RUN = 256
"""How many reads are compared at once."""


def read(reads: Sequence[tuple[int, bytes]], scan: answer.AnswerScan) -> http.HttpResponse:
    """Return the response in `reads`, (stamp, bytes) in order, and add what is in it to a new scan. Never raises for its input.
    The body of a streamed answer is not kept: its content is in the scan."""
    start = http.find_head(reads)
    head = start.framing.head
    if head is None or start.error is not None or not _is_usual(head):
        whole = http.decode(reads)
        answer.read(whole, scan)
        return whole
    complete, error = _follow(start, reads if isinstance(reads, Reads) else Reads.of(reads), scan)
    return http.HttpResponse(status=head.status, headers=head.headers, complete=complete, error=error)


def _is_usual(head: http.ResponseHead) -> bool:
    headers = head.headers
    return (
        head.status == 200
        and headers.get("transfer-encoding", "").lower() == "chunked"
        and headers.get("content-encoding", "identity").lower() in ("", "identity")
        and "event-stream" in headers.get("content-type", "").lower()
    )


def _follow(start: http.ResponseStart, reads: Reads, scan: answer.AnswerScan) -> tuple[bool, str | None]:
    """Read a chunked stream of events into a scan; return whether it is complete, and what is wrong with its framing."""
    framing, stream = start.framing, sse.SseStream()
    parser, events = sse.SseParser(stream), answer.ContentEvents(scan)
    block, bounds, stamps = reads.block, list(reads.bounds), reads.stamps
    # the read with the end of the head begins behind it
    bounds[start.read] += start.offset
    index, learned = -1, 0
    error: str | None = None
    shape: EventShape | None = None
    chunk: dict[str, Any] | None = None
    plain = True
    parts: list[bytes] = []
    at = alike_from = start.read
    try:
        while at < len(stamps):
            if plain and shape is not None and at >= alike_from:
                stop = min(at + RUN, len(stamps))
                count = shape.take(block, bounds, at, stop)
                # where a run is not all alike, its reads are read one by one
                alike_from = at + count if count else stop
                if count:
                    scan.event_ns += stamps[at:alike_from]
                    at = alike_from
                    index += count
                    continue
            stamp_ns, data = stamps[at], block[bounds[at] : bounds[at + 1]]
            at += 1
            if plain and shape is not None and (text := shape.text(data)):
                scan.event_ns.append(stamp_ns)
                shape.parts.append(text)
                index += 1
                continue
            before = plain
            parts.clear()
            framing.feed(data, parts)
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            if body:
                index += 1
                parser.feed(stamp_ns, body, index)
            parsed = stream.events
            for event in parsed:
                chunk = events.add(event)
            plain = framing.between and parser.idle and events.bad is None
            alone = before and len(parsed) == 1
            if alone and chunk is not None and learned < LEARN_MAX and not (shape and shape.fits(data)):
                shape = learn(data, body, parsed[0].data, chunk, scan) or shape
                learned += 1
            parsed.clear()
    except http.FramingError as problem:
        error = str(problem)
        # the chunks before the fault count, even those of the same read
        parser.feed(stamp_ns, b"".join(parts), index + 1)
    parser.finish()
    events.add_all(stream)
    return framing.complete and error is None, error


class EventShape:
    """What the reads of one stream have before and after their text."""

    __slots__ = ("_after", "_cut", "_heads", "parts")

    def __init__(self, before: bytes, after: bytes, digits: str, parts: list[str]) -> None:
        """`before` and `after` surround the text in the chunk; `digits` is `x` or `X`, as the chunk size is written;
        texts are appended to `parts`."""
        self._after = after
        self._cut = -len(after)
        self._heads = http.ChunkStarts(before, digits)
        self.parts = parts

    def fits(self, data: bytes) -> bool:
        """Return whether a read has this shape, whatever its text."""
        return data.startswith(self._heads[len(data)]) and data.endswith(self._after)

    def text(self, data: bytes) -> str | None:
        """Return the text of a read of this shape, None when it has another shape or the text is not a JSON string."""
        head = self._heads[len(data)]
        if not (data.startswith(head) and data.endswith(self._after)):
            return None
        try:
            text: str = orjson.loads(b'"%b"' % data[len(head) : self._cut])
        except orjson.JSONDecodeError:
            return None
        return text

    def take(self, block: bytes, bounds: Sequence[int], first: int, stop: int) -> int:
        """Take the texts of the reads from `first` on, before `stop`, that have this shape, all at once; return how many. 0 when
        a text is empty or not a JSON string. Reads lie in `block` between their `bounds`."""
        # the events of another shape come last: the finish reason, the usage
        while stop > first and not self.fits(block[bounds[stop - 1] : bounds[stop]]):
            stop -= 1
        if stop == first:
            return 0
        starts, ends = bounds[first:stop], bounds[first + 1 : stop + 1]
        datas = [block[start:end] for start, end in zip(starts, ends, strict=True)]
        heads = list(map(self._heads.__getitem__, map(len, datas)))
        alike = map(bytes.startswith, datas, heads), map(bytes.endswith, datas, repeat(self._after))
        if not all(alike[0]) or not all(alike[1]):
            datas = list(takewhile(self.fits, datas))
        cut = self._cut
        texts = [data[len(head) : cut] for data, head in zip(datas, heads, strict=False)]
        bare = b"".join(texts)
        try:
            if b"\\" in bare or b'"' in bare:
                strings = [orjson.loads(b'"%b"' % text) for text in texts]
            else:
                strings = orjson.loads(b'["%b"]' % b'","'.join(texts))
        except orjson.JSONDecodeError:
            return 0
        if not all(strings):
            return 0
        self.parts.extend(strings)
        return len(texts)


def learn(data: bytes, body: bytes, event: bytes, chunk: dict[str, Any], scan: answer.AnswerScan) -> EventShape | None:
    """Return the shape of a read that is exactly one chunk with exactly one event with nothing but text, else None.

    `data` is the read, `body` the chunk's payload, `event` the event's data and `chunk` its JSON. The proof is to put
    another text in place of its own: the JSON must differ in that and nothing else.
    """
    place_of_text = scan.text_place(chunk)
    if place_of_text is None or data[-2:] != b"\r\n":
        return None
    size = len(data) - len(body) - 4
    digits = next((form for form in "xX" if data[:size] == format(len(body), form).encode()), None)
    at = body.find(event)
    if (
        digits is None
        or data[size : size + 2] != b"\r\n"
        or not EVENT_BEGINS.fullmatch(body[: max(0, at)])
        or body[at + len(event) :] not in (b"\n\n", b"\r\n\r\n")
    ):
        return None
    holder, name, parts = place_of_text
    text = holder[name]
    quoted = b'"' + text.encode("utf-8", "replace") + b'"'
    key = b'"' + name.encode() + b'":'
    place = event.find(key + quoted)
    place = place + len(key) if place >= 0 else event.find(key + b" " + quoted) + len(key) + 1
    if place <= len(key):
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
    return EventShape(body[:at] + before, after + body[at + len(event) :] + b"\r\n", digits, parts)
