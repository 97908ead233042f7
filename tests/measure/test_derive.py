import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.contracts.engine import ServerTimings
from servebench.contracts.exchange import Exchange
from servebench.contracts.results import Record
from servebench.measure import derive
from servebench.protocol.json_values import milliseconds
from support.records import MS, phase_facts, record_ms
from support.servers import SSE_HEAD, chunk


def event(content: Any) -> bytes:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"data: " + data + b"\n\n"


def delta(finish: str | None = None, /, *, more: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}], **(more or {})}


def text(value: str, /, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": value, "finish_reason": None, **choice}]}


def usage(prompt: int, output: int, **details: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, **details}


ROLE = delta(role="assistant", content="")
STOP = delta("stop")
DONE = b"[DONE]"
END = {"choices": [], "usage": usage(7, 2)}


def exchange(reads: list[tuple[int, bytes]], **changes: Any) -> Exchange:
    fields: dict[str, Any] = {
        "request_id": "r1",
        "session_id": None,
        "scheduled_ns": 10 * MS,
        "connect_started_ns": None,
        "connected_ns": None,
        "sent_ns": 12 * MS,
        "ended_ns": 900 * MS,
        "outcome": "complete",
        "error": None,
        "stamp_source": "kernel",
        "reads": reads,
    }
    return Exchange(**(fields | changes))


def stream(*contents: Any, ended: bool = True, **changes: Any) -> Exchange:
    """An exchange with one event a read, at 100 ms, 101 ms, ..."""
    reads = [(20 * MS, SSE_HEAD)]
    reads += [((100 + n) * MS, chunk(event(content))) for n, content in enumerate(contents)]
    return exchange([*reads, (800 * MS, b"0\r\n\r\n")] if ended else reads, **changes)


def whole(body: Any, status: int = 200, content_type: str = "application/json", **changes: Any) -> Exchange:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    return exchange([(50 * MS, head + data)], **changes)


def record(of: Exchange, asked: int | None = 16) -> Record:
    return derive.record(of, phase_facts(planned={of.request_id: (5, asked, False)}))


@pytest.mark.parametrize("said", [10**400, -1, "nan", True, None, [1], 1e300])
def test_no_time_that_a_server_says_fails_its_request(said):
    """An absurd time is none, and a plugin that cannot read an answer costs these columns only."""
    answer = stream(ROLE, delta(content="a"), {"choices": [], "timings": {"prompt_ms": said}}, DONE)
    read = [
        lambda details, _: ServerTimings(prefill_ms=milliseconds(details["timings"]["prompt_ms"])),
        lambda details, _: ServerTimings(prefill_ms=details["timings"]["missing"]["ms"]),
    ]
    for timings in read:
        found = derive.record(answer, phase_facts(), timings)
        assert (found.outcome, found.server_prefill_ms) == ("ok", None)


CONTENT_EVENTS = {
    "role-only chunk": ([ROLE, delta(content="a"), delta(content="b"), STOP, DONE], [101, 102]),
    "role with content null": ([delta(role="assistant", content=None), delta(content="a"), STOP, DONE], [101]),
    "role and content together": ([delta(role="assistant", content="a"), STOP, DONE], [100]),
    "empty deltas": ([delta(), delta(content=""), delta(content="a"), delta(content=""), STOP, DONE], [102]),
    "reasoning": ([delta(reasoning="a"), delta(content="b"), STOP, DONE], [100, 101]),
    "reasoning_content": ([delta(reasoning_content="a"), delta(content="b"), STOP, DONE], [100, 101]),
    "empty reasoning": ([delta(reasoning_content="", content=None), delta(content="b"), STOP, DONE], [101]),
    "completions": ([text("a"), text(""), text("b", finish_reason="length"), DONE], [100, 102]),
    "tool call": (
        [
            delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a":'}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": "1}"}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": ""}}]),
            delta("tool_calls"),
            DONE,
        ],
        [100, 101, 102],
    ),
    "empty tool calls": ([delta(tool_calls=[]), delta(content="a", tool_calls=None), STOP, DONE], [101]),
    "token ids without text": ([text("", token_ids=[5]), text("a", token_ids=[6]), STOP, DONE], [100, 101]),
    "empty token ids": ([text("", token_ids=[]), text("a", token_ids=[6]), STOP, DONE], [101]),
    "second choice": (
        [{"choices": [{"index": 0, "delta": {}}, {"index": 1, "delta": {"content": "a"}}]}, STOP, DONE],
        [100],
    ),
    "usage and progress chunks": (
        [{"choices": [], "prompt_progress": {"total": 5}}, delta(content="a", more={"usage": None}), STOP, END, DONE],
        [101],
    ),
    "progress beside a role": (
        [delta(role="assistant", content=None, more={"prompt_progress": {"total": 5}}), delta(content="a"), STOP, DONE],
        [101],
    ),
    "no choices key": ([{"object": "x"}, delta(content="a"), STOP, DONE], [101]),
    "content in parts": (
        [
            delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]),
            delta(content=[{"type": "text", "text": ""}]),
            delta(content=[{"type": "text", "text": "b"}, 7, {"type": "reference", "reference_ids": [1]}]),
            STOP,
            DONE,
        ],
        [100, 102],
    ),
    "content that is no text": ([delta(content=5), delta(content=["a"]), delta(content="a"), STOP, DONE], [102]),
}


@pytest.mark.parametrize(("contents", "expected_ms"), CONTENT_EVENTS.values(), ids=CONTENT_EVENTS)
def test_what_is_a_content_event(contents: list[Any], expected_ms: list[int]) -> None:
    """Only events with something generated count, each at the stamp of its read."""
    found = record(stream(*contents))
    assert [stamp // MS for stamp in found.event_ns] == expected_ms
    assert found.outcome == "ok"
    assert (found.first_event_ns, found.last_event_ns) == (found.event_ns[0], found.event_ns[-1])


ZERO = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
COUNTS = {
    "usage at the end": ([delta(content="a"), delta(content="b"), STOP, END, DONE], 2, "usage", None),
    "usage in the finish chunk": ([delta(content="a"), delta("stop", more={"usage": usage(7, 9)})], 9, "usage", None),
    "usage of floats": ([delta("stop", content="a"), {"choices": [], "usage": {"completion_tokens": 2.0}}], 2, "usage", None),
    "usage as text": ([delta("stop", content="a"), {"choices": [], "usage": {"completion_tokens": "2"}}], 2, "usage", None),
    "usage of Groq": ([delta(content="a"), delta("stop", more={"x_groq": {"usage": usage(7, 2)}})], 2, "usage", None),
    "missing usage": ([delta(content="a"), STOP, DONE], None, None, None),
    "null usage last": ([delta(content="a"), STOP, END, {"choices": [], "usage": None}, DONE], 2, "usage", None),
    "zero usage on every chunk": (
        [text("a") | {"usage": ZERO}, text("b") | {"usage": ZERO}, {"choices": [], "usage": usage(7, 3)}, DONE],
        3, "usage", None,
    ),
    "only zero usage": ([text("a", finish_reason="stop") | {"usage": ZERO}, DONE], None, None, None),
    "growing usage": (
        [
            delta(role="assistant", content="", more={"usage": usage(7, 0)}),
            delta(content="a", more={"usage": usage(7, 1)}),
            delta(content="", more={"usage": usage(7, 2)}),
            delta(content="bcd", more={"usage": usage(7, 5)}),
            delta("stop", more={"usage": usage(7, 6)}),
            {"choices": [], "usage": usage(7, 6)},
            DONE,
        ],
        6, "usage", [1, 4],
    ),
    "usage that shrinks tells nothing of events": (
        [delta(content="a", more={"usage": usage(7, 3)}), delta(content="b", more={"usage": usage(7, 2)}), STOP, DONE],
        2, "usage", None,
    ),
    "token ids": ([text("ab", token_ids=[1, 2]), text("c", token_ids=[3]), DONE], 3, "token_ids", [2, 1]),
    "token ids and usage": ([text("ab", token_ids=[1, 2]), text("c", token_ids=[3]), END, DONE], 2, "usage", [2, 1]),
    "token ids on some events only": ([text("ab", token_ids=[1, 2]), text("c"), STOP, DONE], None, None, None),
    "timings on every chunk": (
        [
            delta(content="a", more={"timings": {"predicted_n": 1}}),
            delta(content="bc", more={"timings": {"predicted_n": 3}}),
            delta("stop", more={"timings": {"predicted_n": 3}}),
            END,
            DONE,
        ],
        2, "usage", [1, 2],
    ),
    "timings at the end only": (
        [delta(content="a"), delta("stop", more={"timings": {"predicted_n": 3}}), DONE], None, None, None,
    ),
    "calls of tools with few arguments": (
        [
            delta(tool_calls=[{"index": n, "function": {"name": "list_the_files", "arguments": "{}"}}]) for n in range(2)
        ] + [delta("tool_calls"), {"choices": [], "usage": usage(7, 39)}, DONE],
        39, "usage", None,
    ),
    "usage of no tokens beside content": (
        [delta(content="a", more={"usage": usage(7, 0)}), delta("stop", more={"usage": usage(7, 0)}), DONE], None, None, None,
    ),
    "counts that are no numbers": (
        [delta(content="a"), STOP, {"choices": [], "usage": {"completion_tokens": "-9", "prompt_tokens": -1}}, DONE],
        None, None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("contents", "tokens", "by", "each"), COUNTS.values(), ids=COUNTS)
def test_who_counts_tokens(contents: list[Any], tokens: int | None, by: str | None, each: list[int] | None) -> None:
    """Usage goes before token ids; tokens of an event are known only when every event tells."""
    found = record(stream(*contents))
    assert (found.output_tokens, found.counted_by, found.event_tokens) == (tokens, by, each)
    assert found.outcome == "ok"


THOUGHT = {"completion_tokens_details": {"reasoning_tokens": 900}}
WORDS = ["one ", "two ", "three ", "four "]
REASONING = {
    # how each server streams an answer of four tokens, 10 ms apart: (chunks, output tokens, hidden tokens)
    "vllm visible": ([ROLE, *(delta(reasoning=w) for w in WORDS[:2]), *(delta(content=w) for w in WORDS[2:]), STOP,
                      {"choices": [], "usage": usage(7, 4, completion_tokens_details={"reasoning_tokens": 2})}], 4, 0),
    "sglang visible": ([ROLE, *(delta(reasoning_content=w) for w in WORDS[:2]), *(delta(content=w) for w in WORDS[2:]),
                        STOP, {"choices": [], "usage": usage(7, 4, reasoning_tokens=2)}], 4, 0),
    "llama.cpp visible": ([ROLE, *(delta(reasoning_content=w, more={"timings": {"predicted_n": n + 1}}) for n, w in
                           enumerate(WORDS)), STOP, {"choices": [], "usage": usage(7, 4)}], 4, 0),
    "in the content": ([ROLE, *(delta(content=w) for w in WORDS), STOP,
                        {"choices": [], "usage": usage(7, 4, completion_tokens_details={"reasoning_tokens": 2})}], 4, 0),
    "openai hidden": ([ROLE, *(delta(content=w) for w in WORDS), STOP, {"choices": [], "usage": usage(7, 904, **THOUGHT)}],
                      4, 900),
    "openai none": ([ROLE, *(delta(content=w) for w in WORDS), STOP,
                     {"choices": [], "usage": usage(7, 4, completion_tokens_details={"reasoning_tokens": 0})}], 4, 0),
    "not in the count": ([ROLE, *(delta(content=w) for w in WORDS), STOP, {"choices": [], "usage": usage(7, 4, **THOUGHT)}],
                         4, 0),
    "hidden, usage runs": ([ROLE, *(delta(content=w, more={"usage": usage(7, 901 + n, **THOUGHT)}) for n, w in
                            enumerate(WORDS)), STOP, {"choices": [], "usage": usage(7, 904, **THOUGHT)}], 4, 900),
    "hidden, token ids": ([*(text(w, token_ids=[n]) for n, w in enumerate(WORDS)), STOP,
                           {"choices": [], "usage": usage(7, 904, **THOUGHT)}], 4, 900),
    "hidden and not told": ([ROLE, *(delta(content=w) for w in WORDS), STOP, {"choices": [], "usage": usage(7, 904)}], None, 0),
    "an end that no text shows": ([ROLE, *(delta(content=w) for w in WORDS), delta("length"),
                                   {"choices": [], "usage": usage(7, 904)}], 904, 0),
}  # fmt: skip


@pytest.mark.parametrize(("contents", "tokens", "hidden"), REASONING.values(), ids=REASONING)
def test_output_tokens_are_those_that_were_sent(contents: list[Any], tokens: int | None, hidden: int) -> None:
    """TPOT of four tokens is that of their events, whatever else usage counts; unknown where nobody tells what it counts."""
    reads = [(20 * MS, SSE_HEAD), *((10 * n * MS, chunk(event(one))) for n, one in enumerate([*contents, DONE], 10))]
    found = record(exchange([*reads, (800 * MS, b"0\r\n\r\n")]), asked=None)
    assert (found.outcome, found.output_tokens, found.hidden_tokens) == ("ok", tokens, hidden)
    assert derive.tpot_ms(found) == (None if tokens is None else pytest.approx(30 / (tokens - 1)))
    if found.event_tokens is not None:
        assert found.event_tokens == [1, 1, 1, 1]
    assert derive.ttft_ms(found) == 10 * (10 + contents.index(next(c for c in contents if c is not ROLE))) - 12


THINKING = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
    {"type": "thinking", "thinking": "so"},
]
CACHED = {"prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 4}}
TOGETHER = b"".join(chunk(event(one)) for one in (ROLE, *(delta(content=letter) for letter in "abc"), STOP))
NAMED_ERROR = chunk(event(delta(content="a"))) + chunk(b"event: error\ndata: it broke\n\n") + b"0\r\n\r\n"
BROKEN = [
    b'{"choices":[{"delta":{"content":"a\xff"}}]}',
    b'{"choices":[{"delta":{"content":"\\ud83d"}}]}',
    b'{"choices":[{"delta":{"content":"\\ude00\\ud83d"}}]}',
]
WHOLE = {
    "choices": [{"message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}],
    "usage": usage(7, 2),
}
READ: dict[str, tuple[Exchange, dict[str, Any]]] = {
    "the first output is the first that is no reasoning": (
        stream(ROLE, delta(reasoning="hm"), delta(reasoning="so"), delta(content="a"), STOP, DONE),
        {"first_event_ns": 101 * MS, "first_output_ns": 103 * MS, "text": "a", "reasoning": "hmso"},
    ),
    "cut off while it reasons": (stream(delta(reasoning="hm"), delta("length"), DONE), {"first_output_ns": None}),
    "reasoning under both names": (
        stream(delta(reasoning="hm", reasoning_content="hm"), STOP, DONE), {"reasoning": "hm"},
    ),
    "content in parts": (
        stream(delta(content=THINKING), delta(content=[{"type": "text", "text": "a"}]), STOP, DONE),
        {"text": "a", "reasoning": "hmso", "first_event_ns": 100 * MS, "first_output_ns": 101 * MS},
    ),
    "tool arguments may be an object": (
        stream(delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": {"a": 1}}}]), STOP, DONE),
        {"text": '{"a": 1}'},
    ),
    "tool arguments are the text": (
        stream(delta(tool_calls=[{"function": {"name": "f", "arguments": '{"a":'}}]),
               delta(tool_calls=[{"function": {"arguments": "1}"}}]), STOP, DONE),
        {"text": '{"a":1}'},
    ),
    "details of usage": (
        stream(delta(content="a"), STOP, {"choices": [], "usage": usage(7, 9, **CACHED)}, DONE),
        {"prompt_tokens": 7, "cached_tokens": 0, "reasoning_tokens": 4},
    ),
    "usage without details": (
        stream(delta(content="a"), STOP, {"choices": [], "usage": usage(7, 9, prompt_tokens_details=None)}),
        {"prompt_tokens": 7, "cached_tokens": None, "reasoning_tokens": None},
    ),
    "a long error is cut": (stream({"error": "x" * 5_000}), {"error": "x" * 300}),
    "a named error event": (
        exchange([(1, SSE_HEAD + NAMED_ERROR)]), {"outcome": "stream_error", "error": "it broke", "event_ns": [1]},
    ),
    "a refusal inside 200": (
        stream({"error": {"message": "slow", "type": "tokens", "code": "rate_limit_exceeded"}}),
        {"outcome": "stream_error", "http_status": 200, "error_code": "rate_limit_exceeded"},
    ),
    "a code with a key": (stream({"error": {"code": "sk-" + "a1B2" * 12}}), {"error_code": "[redacted]"}),
    "a failed request keeps its events": (
        stream(ROLE, delta(content="a"), delta(content="b"), ended=False, outcome="timeout"),
        {"text": "ab", "event_ns": [101 * MS, 102 * MS], "http_status": 200},
    ),
    "an answer that was not streamed": (
        whole(WHOLE),
        {"outcome": "ok", "text": "ab", "event_ns": [50 * MS], "event_tokens": [2], "output_tokens": 2,
         "prompt_tokens": 7, "finish_reason": "stop"},
    ),
    "a whole answer behind a mark": (
        whole(b"\xef\xbb\xbf" + json.dumps(WHOLE).encode()), {"outcome": "ok", "text": "ab", "output_tokens": 2},
    ),
    "an event stream under the name of JSON": (whole(event(delta(content="a")) + event(DONE)), {"text": "a"}),
    "content events that share a read": (
        exchange([(1, SSE_HEAD), (2, TOGETHER), (3, chunk(event(delta(content="d")))), (4, b"0\r\n\r\n")]),
        {"reads_merged": 2, "event_ns": [2, 2, 2, 3]},
    ),
    "invalid UTF-8 and half surrogates": (
        stream(*BROKEN, STOP, DONE),
        {"text": "a\ufffd\U0001f600\ufffd", "outcome": "ok", "event_ns": [100 * MS, 101 * MS, 102 * MS]},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("of", "expected"), READ.values(), ids=READ)
def test_what_is_read_of_an_answer(of: Exchange, expected: dict[str, Any]) -> None:
    found = record(of)
    assert {name: getattr(found, name) for name in expected} == expected


OUTCOMES = {
    "done": (stream(delta(content="a"), DONE), "ok", None),
    "done with a blank": (stream(delta(content="a"), b"[DONE] "), "ok", None),
    "missing [DONE], finish reason": (stream(delta(content="a"), STOP), "ok", None),
    "missing [DONE], usage": (stream(delta(content="a"), END), "ok", None),
    "nothing ends it": (stream(delta(content="a")), "truncated", "after 1 content event"),
    "growing usage ends nothing": (stream(delta(content="a", more={"usage": usage(7, 1)})), "truncated", "after 1"),
    "growing usage beside a token without text": (
        stream(delta(content="a", more={"usage": usage(7, 1)}), delta(content="", more={"usage": usage(7, 2)})), "truncated",
        "after 1",
    ),
    "first usage of a growing one": (
        stream(delta(role="assistant", content="", more={"usage": usage(7, 0)})), "truncated", "after 0",
    ),
    "no generated content": (stream(ROLE, STOP, DONE), "empty", "finish reason 'stop'"),
    "content that nobody sees": (stream(ROLE, STOP, END, DONE), "empty", "usage counts 2 tokens"),
    "html": (whole(b"<html>\nhi\n</html>", content_type="text/html"), "truncated", "3 lines were no event"),
    "json lines as an event stream": (
        whole(b'{"choices": []}\n', content_type="text/event-stream"), "truncated", "1 line was no event",
    ),
    "an error as bare JSON": (
        whole(b'data: {"choices": [{"text": "a"}]}\n\n{"error": {"message": "cuda died"}}\n', content_type="text/event-stream"),
        "truncated", "after 1 content event (1 line was no event: cuda died)",
    ),
    "broken json": (whole(b'{"choices": '), "stream_error", "not a JSON object"),
    "an error event": (
        stream(delta(content="a"), {"error": {"message": "out of\nmemory", "code": 500}}, DONE), "stream_error",
        "out of memory",
    ),
    "an error as text": (stream({"error": "no slot"}), "stream_error", "no slot"),
    "a flat error": (stream({"object": "error", "message": "bad", "code": 400}), "stream_error", "bad"),
    "an engine that aborts": (stream(delta(content="a"), delta("abort"), END, DONE), "stream_error", "'abort'"),
    "a provider that fails": (
        stream(delta(content="a"), {"choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}, DONE),
        "stream_error", "'error'",
    ),
    "an error of a choice": (
        whole({"choices": [{"error": {"message": "gone"}, "message": {"content": "a"}, "finish_reason": "error"}]}),
        "stream_error", "gone",
    ),
    "a failure of status 200 without error": (whole({"code": 50501, "message": "busy"}), "empty", "content: busy"),
    "one in a stream": (stream({"code": 50501, "detail": "busy"}), "truncated", ": busy"),
    "what a router's provider said": (
        stream({"error": {"message": "Provider returned error", "metadata": {"raw": "too long"}}}), "stream_error",
        "Provider returned error: too long",
    ),
    "a refusal": (stream(ROLE, delta(refusal="No"), STOP, DONE), "ok", None),
    "a call outside of a list": (
        stream(delta(tool_calls={"index": 0, "function": {"name": "f", "arguments": "{"}}), STOP, DONE), "ok", None,
    ),
    "an error without words": (stream({"error": {"code": 503}}), "stream_error", '{"code": 503}'),
    "an error of nothing": (stream({"object": "error"}), "stream_error", "without a message"),
    "error null": (stream(delta(content="a", more={"error": None}), STOP, DONE), "ok", None),
    "the first error counts": (stream({"error": "one"}, {"error": "two"}), "stream_error", "one"),
    "error in a body of status 200": (whole({"error": {"message": "overloaded"}}), "stream_error", "overloaded"),
    "error, then the connection closed": (
        stream({"error": "engine dead"}, ended=False, outcome="closed"), "stream_error", "engine dead",
    ),
    "an event that is no json": (stream(b"{oops", delta(content="a"), STOP, DONE), "stream_error", "{oops"),
    "an event that is no object": (stream(b"5", delta(content="a"), STOP, DONE), "stream_error", "5"),
    "400": (whole({"error": {"message": "unknown field"}}, 400), "http_error", "HTTP 400: unknown field"),
    "422": (whole({"detail": [{"loc": "x"}]}, 422), "http_error", 'HTTP 422: [{"loc": "x"}]'),
    "404 text": (whole(b"Not  Found\n", 404, "text/plain"), "http_error", "HTTP 404: Not Found"),
    "503 as an event": (whole(b'data: {"error":"busy"}\n\n', 503), "http_error", "HTTP 503: busy"),
    "500 empty": (whole(b"", 500), "http_error", "HTTP 500"),
    "redirect": (
        exchange([(1, b"HTTP/1.1 307 X\r\nLocation: /v2\r\nContent-Length: 0\r\n\r\n")]), "http_error",
        "HTTP 307: redirected to /v2",
    ),
    "500 and closed early": (
        exchange([(1, b"HTTP/1.1 500 X\r\nContent-Length: 99\r\n\r\nboom")], outcome="closed"), "http_error", "boom",
    ),
    "gzip": (exchange([(1, b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nxx")]), "protocol", "'gzip'"),
    "a compressed refusal": (
        exchange([(1, b"HTTP/1.1 429 X\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nxx")]), "http_error", "HTTP 429",
    ),
    "not http": (exchange([(1, b"hello")], outcome="protocol", error="not http"), "protocol", "not http"),
    "timeout": (
        stream(delta(content="a"), ended=False, outcome="timeout", error="no end after 600 s"), "timeout", "600 s",
    ),
    "reset": (exchange([], outcome="reset", error="connection reset by peer"), "reset", "reset by peer"),
    "refused": (exchange([], outcome="refused", sent_ns=None), "refused", "refused"),
    "cancelled": (stream(delta(content="a"), ended=False, outcome="cancelled"), "cancelled", "cancelled"),
    "closed": (stream(delta(content="a"), ended=False, outcome="closed"), "truncated", "closed early"),
    "closed with all but the end": (stream(delta(content="a"), STOP, DONE, ended=False, outcome="closed"), "truncated",
                                    "closed early"),
    "too large": (stream(delta(content="a"), ended=False, outcome="too_large"), "protocol", "too_large"),
    "tls": (exchange([], outcome="tls", error="certificate has expired"), "protocol", "expired"),
}  # fmt: skip


@pytest.mark.parametrize(("of", "outcome", "said"), OUTCOMES.values(), ids=OUTCOMES)
def test_outcomes(of: Exchange, outcome: str, said: str | None) -> None:
    """Each way to end has one outcome, and every failure says why in one line."""
    found = record(of)
    assert found.outcome == outcome
    assert (found.error is None) == (outcome == "ok")
    if said is not None:
        assert found.error is not None
        assert said in found.error
        assert "\n" not in found.error


def test_nothing_asked_and_nothing_got_is_ok() -> None:
    """An answer of no tokens is empty unless none were asked for."""
    assert record(stream(ROLE, STOP, DONE), asked=0).outcome == "ok"


def test_several_tokens_in_one_event() -> None:
    """An event with three tokens is one event: ITL sees one gap, TPOT three tokens more."""
    contents = [text("a", token_ids=[1]), text("bcd", token_ids=[2, 3, 4]), DONE]
    found = record(stream(*contents))
    assert np.diff(found.event_ns).tolist() == [MS]
    assert derive.tpot_ms(found) == pytest.approx(1 / 3)


PLAIN = [
    ROLE,
    delta(reasoning="\u00fc"),
    delta(content="Gr\u00fc\u00dfe "),
    delta(content="\U0001f600\u20ac"),
    STOP,
    END,
    DONE,
]


@given(places=st.lists(st.integers(0, 2_000), max_size=60), crlf=st.booleans())
def test_any_cut_gives_the_same_text_and_events(places: list[int], crlf: bool) -> None:
    """The byte stream cut anywhere, lines and UTF-8 characters included, gives the same text and content events."""
    events = [json.dumps(c, ensure_ascii=False).encode() if isinstance(c, dict) else c for c in PLAIN]
    body = b"".join(event(content) for content in events)
    if crlf:
        body = body.replace(b"\n", b"\r\n")
    raw = SSE_HEAD + b"".join(chunk(body[start : start + 37]) for start in range(0, len(body), 37)) + b"0\r\n\r\n"
    edges = [0, *sorted({place % (len(raw) + 1) for place in places}), len(raw)]
    reads = [(number, raw[a:b]) for number, (a, b) in enumerate(itertools.pairwise(edges)) if b > a]
    found = record(exchange(reads))
    assert (found.text, found.reasoning) == ("Gr\u00fc\u00dfe \U0001f600\u20ac", "\u00fc")
    assert (len(found.event_ns), found.outcome, found.output_tokens) == (3, "ok", 2)
    assert found.event_ns == sorted(found.event_ns)


@given(at=st.integers(0, 2_000))
def test_a_stream_that_breaks_off_is_truncated_and_keeps_what_was_whole(at: int) -> None:
    """Cut in the middle of a line or a character, a closed stream is never ok and its text is a beginning."""
    body = b"".join(chunk(event(content)) for content in PLAIN)
    raw = SSE_HEAD + body
    found = record(exchange([(1, raw[: at % len(raw)])], outcome="closed"))
    assert found.outcome == "truncated"
    assert "Gr\u00fc\u00dfe \U0001f600\u20ac".startswith(found.text)


@given(body=st.binary(max_size=120))
def test_no_body_raises(body: bytes) -> None:
    """Hostile events become an outcome."""
    raw = SSE_HEAD + chunk(b"data: " + body + b"\n\n" + body + b"\n\n") + b"0\r\n\r\n"
    assert record(exchange([(1, raw)])).outcome != "timeout"


DEEP = b'{"a":' * 800 + b"1" + b"}" * 800


@pytest.mark.parametrize(
    "odd",
    [
        b'{"choices": [{"delta": {"tool_calls": {"function": {"name": %b}}}}]}' % DEEP,
        b'{"error": {"detail": %b, "metadata": {"raw": "x"}}}' % DEEP,
    ],
)
def test_what_is_nested_deeply_is_read_or_is_an_error(odd: bytes) -> None:
    assert record(stream(odd, STOP, DONE)).outcome in ("ok", "stream_error")


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": None},
        {"choices": [None, 5, []]},
        {"choices": [{"delta": "x", "text": 5, "token_ids": "abc", "finish_reason": 3}]},
        {"choices": [{"delta": {"tool_calls": ["x", {"function": None}, {"function": {"name": None}}]}}]},
        {"choices": {}, "usage": [], "timings": 3},
        {"usage": {"prompt_tokens": True, "prompt_tokens_details": 5}},
        b"[" * 5_000,
    ],
)
def test_odd_shapes_are_no_content(odd: Any) -> None:
    """JSON of any shape is read without an exception and without inventing content."""
    found = record(stream(odd, delta(content="a"), STOP, DONE))
    assert (found.text, len(found.event_ns), found.output_tokens) == ("a", 1, None)


def test_metrics_of_a_record() -> None:
    """Each metric is the difference of the two stamps that its definition names."""
    found = record(
        stream(ROLE, delta(content="a"), delta(content="b"), delta(content="c"), STOP,
               {"choices": [], "usage": usage(7, 5)}, DONE, connect_started_ns=10 * MS, connected_ns=11 * MS)
    )  # fmt: skip
    assert derive.lateness_ms(found) == 2.0
    assert derive.connect_ms(found) == 1.0
    assert derive.ttft_ms(found) == 89.0
    assert derive.ttft_from_schedule_ms(found) == 91.0
    assert derive.tpot_ms(found) == pytest.approx(2 / 4)
    assert derive.e2e_ms(found) == 91.0


def test_what_did_not_happen_is_none() -> None:
    """A request that was refused has no times but its schedule."""
    found = record(exchange([], outcome="refused", sent_ns=None))
    metrics = (derive.ttft_ms, derive.ttft_from_schedule_ms, derive.ttfo_ms, derive.tpot_ms, derive.e2e_ms)
    assert [metric(found) for metric in metrics] == [None] * 5
    assert (derive.lateness_ms(found), derive.connect_ms(found)) == (None, None)


def test_a_one_token_answer_has_no_tpot() -> None:
    """One token has a TTFT and an E2E, and no time per output token."""
    found = record(stream(delta(content="a"), STOP, {"choices": [], "usage": usage(7, 1)}, DONE))
    assert (derive.ttft_ms(found), derive.e2e_ms(found), derive.tpot_ms(found)) == (88.0, 88.0, None)


def test_count_missing_counts_only_what_nobody_counted() -> None:
    """Records without a count get the tokenizer's, reasoning and answer added, in one call; others stay."""
    counted = record(stream(delta(content="a"), STOP, END, DONE))
    bare = record(stream(delta(reasoning="so so"), delta(content="one two three"), STOP, DONE))
    nothing = record(exchange([], outcome="reset"))
    asked: list[list[str]] = []

    def words(texts: list[str]) -> list[int]:
        asked.append(texts)
        return [len(text.split()) for text in texts]

    found = derive.count_missing([counted, bare, nothing], words)
    assert asked == [["so so", "one two three"]]
    assert found[0] is counted
    assert found[2] is nothing
    assert (found[1].output_tokens, found[1].counted_by, found[1].text) == (5, "tokenizer", bare.text)


def test_count_missing_asks_nobody_when_nothing_is_missing() -> None:
    """A tokenizer that is not needed is not called."""

    def never(texts: list[str]) -> list[int]:
        raise AssertionError(texts)

    records = [record(stream(delta(content="a"), STOP, END, DONE))]
    assert derive.count_missing(records, never) == records


def test_tpot_leaves_out_the_tokens_of_the_first_event() -> None:
    """Four events of eight tokens, 80 ms apart: ten milliseconds a token; one where the stream does not say."""
    stamps = [100.0, 180.0, 260.0, 340.0]
    by_event = record_ms(0, stamps, output_tokens=32, event_tokens=[8, 8, 8, 8])
    assert derive.tpot_ms(by_event) == pytest.approx(10.0)
    assert derive.tpot_ms(record_ms(0, stamps, output_tokens=4)) == pytest.approx(80.0)
    assert derive.tpot_ms(record_ms(0, [100.0, 180.0], output_tokens=8, event_tokens=[8, 0])) is None
