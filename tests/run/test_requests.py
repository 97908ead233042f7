"""The headers by which a server's spans name a request."""

import re

from servebench.contracts.request import Request
from servebench.run.requests import span_headers, traceparent


def test_a_traceparent_follows_from_the_names():
    """W3C Trace Context: version, trace id, parent id, flags; no two requests share one."""
    one = traceparent("study/run/c4-r0", "c4-r0-00001")
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", one)
    assert one == traceparent("study/run/c4-r0", "c4-r0-00001")
    assert len({one, traceparent("study/run/c4-r0", "c4-r0-00002"), traceparent("other/run/c4-r0", "c4-r0-00001")}) == 3


def test_the_session_is_sent_where_there_is_one():
    """A request without a session has no session header."""
    alone, turn = Request(request_id="a", prompt="x"), Request(request_id="b", prompt="x", session_id="s1")
    assert [name for name, _ in span_headers("t", alone)] == ["traceparent"]
    assert dict(span_headers("t", turn)) == {"traceparent": traceparent("t", "b"), "x-session-id": "s1"}
