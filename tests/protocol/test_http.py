import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.protocol.framing import HEADER_BYTES_MAX, HttpResponse, decode

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def body_of(answer):
    return b"".join(data for _, data in answer.body)


def cut(data, places):
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [(number, data[a:b]) for number, (a, b) in enumerate(itertools.pairwise(edges)) if b > a]


WHOLE = {
    "chunked": (CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", b"hello world"),
    "chunk extensions": (CHUNKED + b'5;name="v"\r\nhello\r\n0;last\r\n\r\n', b"hello"),
    "trailers": (CHUNKED + b"A\r\n0123456789\r\n0\r\nExpires: never\r\nX: y\r\n\r\n", b"0123456789"),
    "leading zeros, upper case": (CHUNKED + b"000B\r\nhello world\r\n0\r\n\r\n", b"hello world"),
    "payload with line ends": (CHUNKED + b"8\r\na\r\n0\r\n\r\n\r\n0\r\n\r\n", b"a\r\n0\r\n\r\n"),
    "content-length": (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello"),
    "empty": (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "ends with the connection": (b"HTTP/1.1 200 OK\r\n\r\nhello", b"hello"),
    "http/1.0": (b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nhello", b"hello"),
    "no reason phrase": (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nok", b"ok"),
    "100 continue first": (b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"2\r\nok\r\n0\r\n\r\n", b"ok"),
    "early hints twice": (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 2 + CHUNKED + b"2\r\nok\r\n0\r\n\r\n",
        b"ok",
    ),
    "identity": (b"HTTP/1.1 200 OK\r\ncontent-encoding: identity\r\ncontent-length: 2\r\n\r\nok", b"ok"),
}


@pytest.mark.parametrize(("raw", "body"), WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_body_is_the_same_however_the_bytes_are_cut(raw, body, size):
    """Status, body and completeness do not depend on where reads end, down to a byte a read."""
    answer = decode([(start, raw[start : start + size]) for start in range(0, len(raw), size)])
    assert (answer.error, answer.complete) == (None, True)
    assert answer.status in (200, 204)
    assert body_of(answer) == body


@given(payloads=st.lists(st.binary(min_size=1, max_size=40), max_size=8), places=st.lists(st.integers(0, 2_000)))
def test_chunked_body_survives_any_cut(payloads, places):
    """Any payloads, cut at any places, come back joined and complete."""
    raw = CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in payloads) + b"0\r\n\r\n"
    answer = decode(cut(raw, places))
    assert (body_of(answer), answer.complete, answer.error) == (b"".join(payloads), True, None)


@given(places=st.lists(st.integers(0, 2_000)), garbage=st.binary(max_size=200))
def test_no_bytes_raise_an_exception(places, garbage):
    """Hostile bytes, alone or after a good head, become a response with an error, never an exception."""
    for raw in (garbage, CHUNKED + garbage, b"HTTP/1.1 200 OK\r\n" + garbage):
        assert isinstance(decode(cut(raw, places)), HttpResponse)


def test_each_read_gives_at_most_one_piece_with_its_stamp():
    """Two chunks of one read are one piece; a chunk over two reads is two, each with its own read's stamp."""
    answer = decode(
        [(10, CHUNKED), (20, b"2\r\nab\r\n2\r\ncd\r\n"), (30, b"4\r\nef"), (40, b"gh\r\n"), (50, b"0\r\n\r\n")]
    )
    assert answer.body == [(20, b"abcd"), (30, b"ef"), (40, b"gh")]


def test_body_bytes_behind_the_head_keep_the_stamp_of_their_read():
    """A read that ends the head and begins the body stamps those first body bytes."""
    answer = decode([(1, CHUNKED[:20]), (2, CHUNKED[20:] + b"2\r\nab\r\n"), (3, b"0\r\n\r\n")])
    assert answer.body == [(2, b"ab")]


def test_header_names_are_lower_case_and_repeats_are_joined():
    answer = decode([(0, b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a:  2 \r\nContent-Length: 0\r\n\r\n")])
    assert answer.headers == {"x-a": "1, 2", "content-length": "0"}


CUT = {
    "nothing": (b"", None),
    "within the status line": (b"HTTP/1", None),
    "within the head": (b"HTTP/1.1 200 OK\r\nContent-Ty", None),
    "within a chunk": (CHUNKED + b"5\r\nhel", 200),
    "before the last chunk": (CHUNKED + b"5\r\nhello\r\n", 200),
    "within the trailer": (CHUNKED + b"0\r\nA: b\r\n", 200),
    "within a length": (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", 200),
}


@pytest.mark.parametrize(("raw", "status"), CUT.values(), ids=CUT)
def test_a_response_that_was_cut_is_incomplete_without_an_error(raw, status):
    """What ends too early is not complete, but nothing in it was wrong."""
    answer = decode([(0, raw)] if raw else [])
    assert (answer.status, answer.complete, answer.error) == (status, False, None)


BAD = {
    "not http": (b"SSH-2.0-OpenSSH_9.6\r\n", "not HTTP/1"),
    "not http, cut": (b"SSH-2.0", "not HTTP/1"),
    "endless interim answers": (b"HTTP/1.1 100 Continue\r\n\r\n" * 101, "more than 100 interim"),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "'5, 6'"),
    "length many": (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "'many'"),
    "http/2": (b"HTTP/2 200\r\n\r\n", "HTTP/1 status line"),
    "no status": (b"HTTP/1.1 OK\r\n\r\n", "HTTP/1 status line"),
    "endless head": (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * HEADER_BYTES_MAX, "longer than 65536 bytes"),
    "gzip": (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n", "'gzip'"),
    "gzip by transfer": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n", "'gzip, chunked'"),
    "length no number": (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "'-1'"),
    "size no number": (CHUNKED + b"zz\r\nhello\r\n", "'zz'"),
    "size negative": (CHUNKED + b"-5\r\nhello\r\n", "'-5'"),
    "size with underscore": (CHUNKED + b"1_0\r\nhello\r\n", "'1_0'"),
    "size empty": (CHUNKED + b"\r\nhello\r\n", "''"),
    "size enormous": (CHUNKED + b"F" * 17 + b"\r\nhello\r\n", "'FFFFFFFFFFFFFFFFF'"),
    "size endless": (CHUNKED + b"0" * 5_000, "longer than 4096 bytes"),
    "chunk too long": (CHUNKED + b"3\r\nhello\r\n", "longer than its size"),
}


@pytest.mark.parametrize(("raw", "said"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("size", [100, 1_000_000])
def test_bytes_that_are_not_plain_http_are_an_error(raw, said, size):
    """An error ends the reading, names the cause, and the response is not complete."""
    answer = decode([(start, raw[start : start + size]) for start in range(0, len(raw), size)])
    assert not answer.complete
    assert said in answer.error


def test_bytes_before_an_error_are_kept():
    answer = decode([(1, CHUNKED), (2, b"5\r\nhello\r\n"), (3, b"zz\r\n")])
    assert answer.body == [(2, b"hello")]
    assert answer.status == 200
