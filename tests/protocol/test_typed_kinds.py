"""The Responses and the Messages API: what real servers sent, what their events mean, and what they are asked."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.contracts.engine import Dialect
from servebench.contracts.request import Message, Request
from servebench.protocol import answer, framing, stream
from servebench.protocol.kinds.table import KINDS

RESPONSES, MESSAGES = KINDS["responses"], KINDS["messages"]
DATA = Path(__file__).parent / "data"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

RECORDED = {
    # file: (content events, text, output tokens, prompt tokens, cached, finish reason); vLLM 0.32 and llama.cpp, SmolLM2-135M
    "vllm_responses": (8, "1. Red: The most obvious colour", 8, 34, 0, "length"),
    "vllm_messages": (8, "1. Red: The most obvious colour", 8, 34, 0, "length"),
    # it says of no answer that it was cut
    "llamacpp_responses": (8, "1. Red: This is the most", 8, 34, 33, "stop"),
    "llamacpp_messages": (17, "Hello there! I'm a creative AI assistant. What can I do for you?", 18, 20, 3, "stop"),
    # 50 tokens, of which the parser of tools let two pieces through: more than the text can hold
    "vllm_responses_tool": (4, '"weather"', None, 34, 0, "tool_calls"),
    "vllm_messages_tool": (4, '"weather"', None, 34, 0, "tool_calls"),
}


def recorded(name):
    """The reads of a recorded answer: its head, and each chunk of HTTP."""
    data = (DATA / f"{name}.http").read_bytes()
    head, _, body = data.partition(b"\r\n\r\n")
    reads = [(0, head + b"\r\n\r\n")]
    while body:
        size = int(body.split(b"\r\n", 1)[0], 16)
        end = body.index(b"\r\n") + 2 + size + 2
        reads.append((len(reads), body[:end]))
        body = body[end:]
    return reads


def shown(scan):
    names = ("event_ns", "text", "reasoning", "first_output_ns", "finish_reason", "done", "error", "prompt_tokens")
    return {name: getattr(scan, name) for name in (*names, "cached_tokens", "reasoning_tokens", "reads_merged")} | {
        "count": scan.count(),
        "id": scan.details.get("id"),
    }


def read(kind, reads):
    """What is read in one pass, after checking that the separate readers find the same."""
    scan, general = kind.scan(), kind.scan()
    assert stream.read(reads, scan).error is None
    answer.read(framing.decode(reads), general)
    assert shown(scan) == shown(general)
    return scan


def sent(*events):
    """The reads of a stream of these events, as every server of these APIs sends them."""
    bodies = [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events]
    chunks = [format(len(one), "x").encode() + b"\r\n" + one + b"\r\n" for one in bodies]
    return [(0, HEAD), *enumerate([*chunks, b"0\r\n\r\n"], 1)]


@pytest.mark.parametrize("name", RECORDED)
def test_what_real_servers_sent_is_read(name):
    """Every token event, the usage in its own fields, why it ended: however the reads are cut."""
    events, text, tokens, prompt, cached, reason = RECORDED[name]
    kind = RESPONSES if "responses" in name else MESSAGES
    reads = recorded(name)
    scan = read(kind, reads)
    assert (len(scan.event_ns), scan.text, scan.count()[0]) == (events, text, tokens)
    assert (scan.prompt_tokens, scan.cached_tokens, scan.finish_reason) == (prompt, cached, reason)
    assert (scan.done, scan.error, scan.reasoning) == (True, None, "")
    assert scan.first_output_ns == scan.event_ns[0]
    whole = b"".join(data for _, data in reads)
    for size in (1, 7, len(whole)):
        cut = [(at, whole[at : at + size]) for at in range(0, len(whole), size)]
        assert read(kind, cut).text == text


@pytest.mark.parametrize("name", ["vllm_messages", "llamacpp_messages"])
def test_events_that_differ_in_their_text_alone_are_parsed_once(name, monkeypatch):
    parsed = []
    add = answer.ContentEvents.add
    monkeypatch.setattr(answer.ContentEvents, "add", lambda self, event: parsed.append(event) or add(self, event))
    scan = MESSAGES.scan()
    stream.read(recorded(name), scan)
    # message_start, content_block_start, content_block_stop, message_delta, message_stop
    assert len(parsed) - 5 < len(scan.event_ns)


def delta(kind, **fields):
    if kind is MESSAGES:
        return {"type": "content_block_delta", "index": 0, "delta": fields}
    ((name, text),) = fields.items()
    return {"type": f"response.{name}.delta", "item_id": "a", "delta": text}


def test_reasoning_and_calls_of_tools_are_content():
    """Reasoning is no output; a call counts by its name already."""
    scan = read(
        MESSAGES,
        sent(
            {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}},
            {"type": "ping"},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
            delta(MESSAGES, type="thinking_delta", thinking="Hm"),
            delta(MESSAGES, type="thinking_delta", thinking=", so"),
            delta(MESSAGES, type="signature_delta", signature="EqQB"),
            {
                "type": "content_block_start",
                "index": 1,
                "content_block": {"type": "tool_use", "name": "f", "input": {}},
            },
            delta(MESSAGES, type="input_json_delta", partial_json=""),
            delta(MESSAGES, type="input_json_delta", partial_json='{"a": 1}'),
            {
                "type": "message_delta",
                "delta": {"stop_reason": "tool_use"},
                "usage": {
                    "input_tokens": 2,
                    "cache_read_input_tokens": 3,
                    "cache_creation_input_tokens": 4,
                    "output_tokens": 9,
                },
            },
            {"type": "message_stop"},
        ),
    )
    assert (scan.event_ns, scan.first_output_ns) == ([4, 5, 7, 9], 7)
    assert (scan.reasoning, scan.text, scan.finish_reason) == ("Hm, so", '{"a": 1}', "tool_calls")
    assert (scan.prompt_tokens, scan.cached_tokens, scan.count()) == (9, 3, (9, "usage"))

    usage = {"input_tokens": 7, "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 4}}
    call = {"type": "function_call", "name": "f", "arguments": ""}
    scan = read(
        RESPONSES,
        sent(
            {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "item": {"type": "reasoning", "content": []}},
            delta(RESPONSES, reasoning_text="Hm"),
            delta(RESPONSES, reasoning_text=", so"),
            {"type": "response.output_item.added", "item": call},
            delta(RESPONSES, function_call_arguments='{"a": 1}'),
            {"type": "response.completed", "response": {"status": "completed", "output": [call], "usage": usage}},
        ),
    )
    assert (scan.event_ns, scan.first_output_ns) == ([3, 4, 5, 6], 5)
    assert (scan.reasoning, scan.text, scan.finish_reason) == ("Hm, so", '{"a": 1}', "tool_calls")
    assert (scan.prompt_tokens, scan.cached_tokens, scan.reasoning_tokens, scan.count()) == (7, None, 4, (9, "usage"))


@pytest.mark.parametrize(
    ("kind", "call", "end"),
    [
        (
            MESSAGES,
            {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "list_files", "input": {}}},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 24}},
        ),
        (
            RESPONSES,
            {"type": "response.output_item.added", "item": {"type": "function_call", "name": "list_files"}},
            {"type": "response.completed", "response": {"status": "completed", "usage": {"output_tokens": 24}}},
        ),
    ],
)
def test_the_tokens_of_a_call_without_arguments_are_those_of_the_usage(kind, call, end):
    """Its name and the marks around it are tokens, too, though no text is sent."""
    assert read(kind, sent(call, end)).count() == (24, "usage")


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        (RESPONSES, {"type": "error", "code": "server_error", "message": "overloaded"}),
        (RESPONSES, {"type": "response.failed", "response": {"status": "failed", "error": {"message": "overloaded"}}}),
        (MESSAGES, {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}),
    ],
)
def test_an_error_in_mid_stream_fails_the_answer(kind, event):
    begun = delta(kind, type="text_delta", text="a") if kind is MESSAGES else delta(kind, output_text="a")
    assert read(kind, sent(begun, event)).error == "overloaded"


def test_an_answer_that_breaks_off_has_said_no_end():
    for kind, begun in ((MESSAGES, delta(MESSAGES, text="a")), (RESPONSES, delta(RESPONSES, output_text="a"))):
        scan = read(kind, sent(begun, {"type": "ping"}))
        assert (scan.said_end, scan.count()) == (False, (None, None))


def test_whole_answers():
    """Those of quality questions, with log-probabilities where there are any."""
    part = {
        "type": "output_text",
        "text": "Yes",
        "logprobs": [{"token": "Y", "logprob": -1}, {"token": "es", "logprob": -2}],
    }
    items = [
        {"type": "reasoning", "content": [{"text": "Hm"}]},
        {"type": "message", "content": [part]},
        {"type": "function_call", "name": "f", "arguments": '{"a": 1}'},
    ]
    usage = {"input_tokens": 4, "output_tokens": 2}
    document = {"object": "response", "status": "incomplete", "output": items, "usage": usage}
    document["incomplete_details"] = {"reason": "max_output_tokens"}
    whole = RESPONSES.read_whole(json.dumps(document).encode())
    assert (whole.text, whole.finish_reason, whole.prompt_tokens, whole.output_tokens) == (
        'Yes{"a": 1}',
        "length",
        4,
        2,
    )
    called = [{"name": "f", "arguments": '{"a": 1}'}]
    assert (whole.reasoning, whole.calls) == ("Hm", called)
    blocks = [
        {"type": "thinking", "thinking": "Hm"},
        {"type": "text", "text": "Yes"},
        {"type": "tool_use", "name": "f", "input": {"a": 1}},
    ]
    document = {"type": "message", "content": blocks, "stop_reason": "end_turn", "usage": usage}
    whole = MESSAGES.read_whole(json.dumps(document).encode())
    assert (whole.text, whole.finish_reason, whole.prompt_tokens, whole.output_tokens) == ('Yes{"a": 1}', "stop", 4, 2)
    assert (whole.reasoning, whole.calls) == ("Hm", called)
    for kind in (RESPONSES, MESSAGES):
        for bad in ({}, {"output": 1, "content": 1}, {"error": {"message": "no"}, "output": [], "content": []}):
            with pytest.raises(ValueError, match=r"it|no"):
                kind.read_whole(json.dumps(bad).encode())


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TALK = (
    Message("system", "Be brief."),
    Message("user", "Hi"),
    Message("assistant", "", {"tool_calls": [CALL]}),
    Message("tool", "42", {"tool_call_id": "c"}),
    Message("assistant", "It is 42."),
    Message("user", "Why?"),
)
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object"}


def body_of(kind, **fields):
    request = Request(request_id="r", api=kind.name, messages=TALK, output_tokens=9, **fields)
    return kind.body(request, "m", Dialect(exact_output={"ignore_eos": True}))


def test_a_conversation_in_the_shape_of_responses():
    """With the calls of tools and their results as items of their own; nothing is kept on the server."""
    extra = {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "reasoning": {"effort": "low"},
    }
    body = body_of(RESPONSES, exact_output=True, seed=3, schema=SCHEMA, extra=extra)
    roles = [(one["type"], one.get("role")) for one in body["input"]]
    assert roles == [
        *(("message", role) for role in ("system", "user")),
        ("function_call", None),
        ("function_call_output", None),
        *(("message", role) for role in ("assistant", "user")),
    ]
    assert body["input"][2] == {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
    assert body["input"][3] == {"type": "function_call_output", "call_id": "c", "output": "42"}
    assert body["tools"] == [{"type": "function", **TOOL["function"]}]
    assert body["tool_choice"] == {"type": "function", "name": "f"}
    assert body["text"]["format"] == {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
    assert (body["max_output_tokens"], body["ignore_eos"], body["seed"], body["stream"]) == (9, True, 3, True)
    assert (body["store"], body["reasoning"]) == (False, {"effort": "low"})
    assert not {"messages", "max_tokens", "stream_options"} & set(body)


def test_a_conversation_in_the_shape_of_messages():
    """With the system prompt beside the messages, and calls and results as blocks; an exact length cannot be asked for."""
    body = body_of(
        MESSAGES, exact_output=True, seed=3, schema=SCHEMA, extra={"tools": [TOOL], "tool_choice": "required"}
    )
    assert body["system"] == "Be brief."
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "42"}
    assert body["messages"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": "It is 42."},
        {"role": "user", "content": "Why?"},
    ]
    assert body["tools"] == [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
    assert (body["tool_choice"], body["max_tokens"], body["stream"]) == ({"type": "any"}, 9, True)
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert not {"ignore_eos", "seed", "stream_options", "response_format"} & set(body)
    assert MESSAGES.headers["anthropic-version"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "name"]), inner, max_size=2)
    ),
    max_leaves=4,
)
TYPES = st.sampled_from(
    ["message", "message_start", "message_delta", "content_block_start", "content_block_delta", "response.completed",
     "response.output_text.delta", "response.output_item.added", "error", {}, [], None]
)  # fmt: skip
FIELDS = (
    "delta",
    "message",
    "content_block",
    "content",
    "usage",
    "response",
    "item",
    "output",
    "error",
    "object",
    "input",
)


@given(TYPES, st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_no_event_is_too_strange(kind, fields):
    for one in (RESPONSES, MESSAGES):
        for chunk in ({"type": kind, **fields}, {**fields, "object": "response"}):
            scan = one.scan()
            scan.text_place(chunk)
            scan.add_chunk(chunk, 1, 0)
            assert len(scan.event_ns) in (0, 1)
            assert isinstance(scan.text, str)
