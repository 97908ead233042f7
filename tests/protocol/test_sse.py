import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.protocol.sse import SseEvent, parse


def pieces_of(raw, size):
    return [(start, raw[start : start + size]) for start in range(0, len(raw), size)]


STREAMS = {
    "one": (b"data: a\n\n", [(b"a", None)]),
    "no blank after the colon": (b"data:a\n\n", [(b"a", None)]),
    "only one blank is taken": (b"data:  a\n\n", [(b" a", None)]),
    "blank before the line end": (b"data: a \n\n", [(b"a ", None)]),
    "two in a row": (b"data: a\n\ndata: b\n\n", [(b"a", None), (b"b", None)]),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"a", None), (b"b", None)]),
    "cr": (b"data: a\r\rdata: b\r\r", [(b"a", None), (b"b", None)]),
    "mixed line ends": (b"data: a\r\n\ndata: b\r\n\rdata: c\n\r\n", [(b"a", None), (b"b", None), (b"c", None)]),
    "several data lines": (b"data: a\ndata: b\ndata:\n\n", [(b"a\nb\n", None)]),
    "empty data": (b"data:\n\n", [(b"", None)]),
    "named": (b"event: error\ndata: a\n\ndata: b\n\n", [(b"a", "error"), (b"b", None)]),
    "name without data": (b"event: ping\n\ndata: b\n\n", [(b"b", None)]),
    "comments and other fields": (b": ping\n\n:\nid: 7\nretry: 10\ndata: a\n: in between\n\n", [(b"a", None)]),
    "no blank line at the end": (b"data: a\n\ndata: b\n", [(b"a", None), (b"b", None)]),
    "no line end at the end": (b"data: a\n\ndata: [DONE]", [(b"a", None), (b"[DONE]", None)]),
    "byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [(b"a", None)]),
    "many blank lines": (b"\n\n\ndata: a\n\n\n\n", [(b"a", None)]),
    "a field that only begins like data": (b"database: x\ndata: a\n\n", [(b"a", None)]),
    "bytes that are no utf-8": (b"data: \xff\xfe\n\n", [(b"\xff\xfe", None)]),
    "utf-8 that holds other line ends": (
        "data: a\u2028b\x0bc\x85\n\n".encode(),
        [("a\u2028b\x0bc\x85".encode(), None)],
    ),
    "nothing": (b"", []),
}


@pytest.mark.parametrize(("raw", "expected"), STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1_000])
def test_events_do_not_depend_on_the_cut(raw, expected, size):
    """Data and names of events are those of the whole stream, down to a byte a read."""
    assert [(event.data, event.event) for event in parse(pieces_of(raw, size)).events] == expected


LINES = st.sampled_from(
    [b"data: {1}", b"data:", b"data: \xe2\x82\xac", b"event: x", b": c", b"", b"", b"junk", b"\xef\xbb\xbf"]
)


@given(
    lines=st.lists(LINES, max_size=12),
    ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=12, max_size=12),
    places=st.lists(st.integers(0, 300)),
)
def test_any_cut_gives_the_same_events(lines, ends, places):
    """Cutting a stream anywhere changes neither the events nor the count of unknown lines."""
    raw = b"".join(line + end for line, end in zip(lines, ends, strict=False))
    edges = [0, *sorted({place % (len(raw) + 1) for place in places}), len(raw)]
    cut = parse([(number, raw[a:b]) for number, (a, b) in enumerate(itertools.pairwise(edges))])
    whole = parse([(0, raw)])
    assert [(e.data, e.event) for e in cut.events] == [(e.data, e.event) for e in whole.events]
    assert cut.unknown_lines == whole.unknown_lines


STAMPS = {
    "an event a read": ([b"data: a\n\n", b"data: b\n\n"], [(0, 0), (1, 1)]),
    "two events in a read": ([b"data: a\n\ndata: b\n\n"], [(0, 0), (0, 0)]),
    "line cut": ([b"data: a", b"b\n\n"], [(1, 1)]),
    "the blank line comes later": ([b"data: a\n", b"\n"], [(0, 0)]),
    "the blank line comes with the next event": ([b"data: a\n", b"\ndata: b\n", b"\n"], [(0, 0), (1, 1)]),
    "line end cut in two": ([b"data: a\r", b"\n\r\n"], [(0, 0)]),
    "the last data line counts": ([b"data: a\n", b"data: b\n", b"\n"], [(1, 1)]),
    "a comment after the data does not count": ([b"data: a\n", b": ping\n", b"\n"], [(0, 0)]),
    "no line end at all": ([b"data: a", b"b"], [(1, 1)]),
}


@pytest.mark.parametrize(("reads", "expected"), STAMPS.values(), ids=STAMPS)
def test_an_event_is_stamped_by_the_read_that_ended_its_data(reads, expected):
    """The stamp is that of the read with the line end of the last data line, not of the blank line after it."""
    found = parse([(100 + number, data) for number, data in enumerate(reads)]).events
    assert [(event.stamp_ns - 100, event.read_index) for event in found] == expected


def test_bare_json_lines_are_counted_as_unknown():
    """Lines that are no field are no event, and are not lost silently."""
    stream = parse([(1, b'{"a": 1}\n{"b": 2}\ndata: x\n\n')])
    assert stream.events == [SseEvent(1, b"x", None, 0)]
    assert stream.unknown_lines == 2


def test_a_long_line_byte_by_byte_costs_no_square():
    """A line of a megabyte that comes in tiny reads is joined once."""
    found = parse([(0, b"data: "), *((n, b"xxxx") for n in range(250_000)), (7, b"\n\n")]).events
    assert (len(found), len(found[0].data), found[0].stamp_ns) == (1, 1_000_000, 7)
