"""The single pass and the readers of HTTP, SSE and JSON one after another return the same for the same bytes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servebench.protocol import answer, framing, stream
from servebench.protocol.kinds.openai import ChoicesScan

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def sized(payload, form="x"):
    return format(len(payload), form).encode() + b"\r\n" + payload + b"\r\n"


def event(text, **more):
    return {"id": "a", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


def shown(scan):
    names = (
        *("event_ns", "text", "reasoning", "first_output_ns", "reads_merged", "finish_reason", "done"),
        *("ended_by_usage", "unknown_lines", "error", "prompt_tokens", "cached_tokens"),
    )
    return {name: getattr(scan, name) for name in names} | {"count": scan.count(), "tokens": scan.event_tokens()}


def same(reads):
    """What both ways return, after checking that it is the same."""
    whole = framing.decode(reads)
    scan = ChoicesScan()
    message = stream.read(reads, scan)
    assert (message.status, message.headers, message.complete, message.error) == (
        whole.status,
        whole.headers,
        whole.complete,
        whole.error,
    )
    found = shown(scan)
    general = ChoicesScan()
    answer.read(whole, general)
    assert found == shown(general)
    return found


TEXTS = st.one_of(
    st.sampled_from([" a", "b", '"', "\\", "\n", "é", "", " ", "\u2028", "�", "text?", '","', "\\\\"]),
    st.text(max_size=4),
)
CHUNKS = st.one_of(
    st.builds(event, TEXTS),
    st.builds(event, TEXTS, created=st.integers(0, 3)),
    st.builds(event, TEXTS, usage=st.sampled_from([None, {"completion_tokens": 3, "prompt_tokens": 2}])),
    st.builds(lambda t: {"choices": [{"delta": {"reasoning_content": t}}]}, TEXTS),
    st.builds(lambda t: {"choices": [{"text": t, "finish_reason": None}]}, TEXTS),
    st.builds(lambda t: {"choices": [{"delta": {"content": t, "role": "assistant"}, "token_ids": [1, 2]}]}, TEXTS),
    st.builds(lambda t: {"content": "x", "choices": [{"delta": {"content": t}}]}, TEXTS),
    st.sampled_from([{"error": {"message": "no"}}, {"choices": []}, {"object": "error", "message": "no"}]),
)
PAYLOADS = st.one_of(
    st.builds(
        lambda chunk, ascii, space, lead, end: (
            lead + json.dumps(chunk, ensure_ascii=ascii, separators=(",", space)).encode("utf-8", "surrogatepass") + end
        ),
        CHUNKS,
        st.booleans(),
        st.sampled_from([":", ": "]),
        st.sampled_from([b"data: ", b"data:", b"data:  "]),
        st.sampled_from([b"\n\n", b"\n\n", b"\r\n\r\n", b"\n", b"\n: ping\n\n"]),
    ),
    st.sampled_from(
        [b"data: [DONE]\n\n", b": ping\n\n", b"data: {\n\n", b"{}\n", b"event: error\ndata: no\n\n", b"\n"]
    ),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    payloads=st.lists(PAYLOADS, max_size=12),
    repeat=st.integers(1, 3),
    form=st.sampled_from("xX"),
    cuts=st.lists(st.integers(0, 3000), max_size=6),
    ended=st.booleans(),
)
def test_the_single_pass_equals_the_separate_readers(payloads, repeat, form, cuts, *, ended):
    pieces = [HEAD, *(sized(payload, form) for payload in payloads * repeat), b"0\r\n\r\n" if ended else b""]
    reads = []
    at = 0
    for number, piece in enumerate(pieces):
        inside = sorted({cut - at for cut in cuts if 0 < cut - at < len(piece)})
        for start, stop in zip([0, *inside], [*inside, len(piece)], strict=True):
            reads.append((number * 10 + start, piece[start:stop]))
        at += len(piece)
    same(reads)
    same([(1, b"".join(pieces)), (2, b"")])


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_noise_in_the_middle(noise):
    usual = sized(b"data: " + json.dumps(event(" a")).encode() + b"\n\n")
    same([(0, HEAD), *((n, data) for n, piece in enumerate(noise, 1) for data in (usual, piece, usual))])


@pytest.mark.parametrize("escaped", [[], ["\n", ' "so"', "\\", "\u00e9", "\U0001f600", "\t|"], ["\n"] * 300])
def test_the_usual_answer_is_read_without_parsing_each_event(monkeypatch, escaped):
    """Of the events that differ in their text alone only one is parsed, whatever is escaped in the texts."""
    parsed = []
    add = answer.ContentEvents.add

    def counting(self, *event):
        parsed.append(event)
        return add(self, *event)

    monkeypatch.setattr(answer.ContentEvents, "add", counting)
    words = ["w", *(f" word{n}" for n in range(50)), *escaped]
    reads = [(0, HEAD), (1, sized(b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'))]
    reads += [(n, sized(b"data: " + json.dumps(event(word)).encode() + b"\n\n")) for n, word in enumerate(words, 2)]
    reads += [(99, sized(b"data: [DONE]\n\n") + b"0\r\n\r\n")]
    scan = ChoicesScan()
    message = stream.read(reads, scan)
    assert scan.text == "".join(words)
    assert scan.event_ns == list(range(2, 2 + len(words)))
    assert message.complete
    assert len(parsed) == 3


@given(st.lists(st.binary(max_size=6), max_size=6))
def test_texts_that_are_valid_only_together_are_errors(texts):
    """Each event is JSON by itself or not, whatever its neighbours are."""
    usual = b'{"choices":[{"delta":{"content":"%b"}}]}'
    mixed = [b" a", b'a","b', b"x\\", b"y", b'p",["q', b"r", b's"],"t', b"\xf0\x9f", b"\x98\x80", *texts]
    for some in (mixed, mixed[::-1], [text for text in mixed for _ in range(2)]):
        reads = [sized(b"data: " + usual % text + b"\n\n") for text in [b"1", b"2", *some, b"3"]]
        same([(0, HEAD), *enumerate(reads, 1), (99, b"0\r\n\r\n")])


@pytest.mark.parametrize(
    "other",
    [
        b'{"choices":[{"delta":{"content":" b"},"finish_reason":"stop"}]}',
        b'{"choices":[{"delta":{"content":" b"}}],"error":"no"}',
        b'{"choices":[{"delta":{"content":" b"}}],"usage":{"completion_tokens":7}}',
        b'{"choices":[{"delta":{"content":" b","x":"\\""}}]}',
        b'{"choices":[{"delta":{"content":"\xff"}}]}',
        b'{"choices":[{"delta":{"content":"\x01"}}]}',
        b'{"choices":[{"delta":{"content":""}}]}',
        b'{"choices":[{"delta":{"content":" b"}}]}}',
        b'{"choices":[{"delta":{"content":"a","b"}}]}',
        b'{"choices":[{"delta":{"content":"x\\"}}]}',
        b'{"choices":[{"delta":{"content":"\\ud83d"}}]}',
        b'{"choices":[{"delta":{"content":"\xc3"}}]}',
    ],
)
def test_events_that_look_almost_the_same(other):
    usual = sized(b'data: {"choices":[{"delta":{"content":" a"}}]}\n\n')
    same([(0, HEAD), (1, usual), (2, usual), (3, sized(b"data: " + other + b"\n\n")), (4, usual), (5, b"0\r\n\r\n")])
