"""Where a response ends, and which bytes are its body, however they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.protocol.framing import LAST_CHUNK, Framing, encode_chunk

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
EVENTS = b"".join(
    b"%x\r\n%s\r\n" % (len(event), event) for event in (b"data: {}\n\n", b"0\r\n\r\n", b"data: [DONE]\n\n")
)

WHOLE = {
    "chunked": CHUNKED + EVENTS + b"0\r\n\r\n",
    "chunked with trailers": CHUNKED + EVENTS + b"0\r\nX-Time: 1\r\nX-More: 2\r\n\r\n",
    "chunk extensions": CHUNKED + b"5;name=value\r\nhello\r\n0\r\n\r\n",
    "upper-case size": CHUNKED + b"0A\r\n0123456789\r\n0\r\n\r\n",
    "content-length": b"HTTP/1.1 503 Busy\r\ncontent-length: 5\r\n\r\nhello",
    "chunks that end with a line feed alone": CHUNKED + b"5\nhello\n0\n\n",
    "content-length twice": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
    "content-length zero": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "after an interim answer": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
}


def fed(pieces):
    framing = Framing()
    results = [framing.feed(piece) for piece in pieces]
    return framing, results


@pytest.mark.parametrize("name", WHOLE)
def test_a_response_is_complete_at_its_last_byte_and_not_before(name):
    data = WHOLE[name]
    framing, results = fed([data[i : i + 1] for i in range(len(data))])
    assert results == [False] * (len(data) - 1) + [True]
    assert not framing.close


@given(payloads=st.lists(st.binary(min_size=1, max_size=300), max_size=8), cuts=st.lists(st.integers(0, 3000)))
def test_the_body_is_the_same_with_and_without_parts(payloads, cuts):
    """Collecting the body changes nothing about where the response ends."""
    data = CHUNKED + b"".join(encode_chunk(payload) for payload in payloads) + LAST_CHUNK
    places = sorted({cut for cut in cuts if 0 < cut < len(data)})
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    framing, parts = Framing(), []
    assert [framing.feed(piece, parts) for piece in pieces] == fed(pieces)[1]
    assert (framing.complete, b"".join(parts)) == (True, b"".join(payloads))


def test_a_header_that_looks_like_a_last_chunk_does_not_end_the_response():
    """llama.cpp's header ends with `max=100` and a blank line: the bytes of a last chunk."""
    assert fed([CHUNKED])[1] == [False]


@pytest.mark.parametrize(
    ("header", "close"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nleft over", True),
    ],
)
def test_whether_the_connection_may_be_used_again(header, close):
    """Not when the server says so, speaks HTTP/1.0, or sends bytes behind the response."""
    framing, results = fed([header])
    assert (results, framing.close) == ([True], close)


def test_one_response_follows_another_on_the_same_connection():
    """After `reset` the next response is followed from its beginning."""
    framing = Framing()
    for _ in range(3):
        framing.reset()
        assert framing.feed(WHOLE["chunked"])
