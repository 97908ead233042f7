"""The requests of a phase: their paths, and the headers by which a server's spans name them."""

import re

import pytest

from servebench.contracts.engine import RunningEngine
from servebench.contracts.request import Message, Request
from servebench.engine.adapters.openai import OpenAiEngine
from servebench.run.phase import planned_requests, span_headers, target_of, traceparent
from support.settings import run_settings


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


@pytest.mark.parametrize(
    ("base_url", "path"),
    [
        ("http://h/v1", "/v1/chat/completions"),
        ("http://h:8000/team%20a/%C3%BC/v1", "/team%20a/%C3%BC/v1/chat/completions"),
        ("http://h/a b/\u00fc/v1", "/a%20b/%C3%BC/v1/chat/completions"),
        ("http://h/openai/deployments/a@b:1", "/openai/deployments/a@b:1/chat/completions"),
    ],
)
def test_the_path_of_a_base_url_is_sent_as_urls_are_written(base_url, path):
    """A space in a request line would end the path."""
    running = RunningEngine(base_urls=(base_url,), model="m", started_ns=0)
    request = Request(request_id="r", messages=(Message("user", "x"),))
    (planned,) = planned_requests(OpenAiEngine(), running, run_settings(), [request], "run/c1")
    assert planned.path == path


@pytest.mark.parametrize(
    ("base_url", "host", "port"),
    [
        ("https://b\u00fccher.example/v1", "xn--bcher-kva.example", 443),
        ("http://[::1]:8000/v1", "::1", 8000),
        ("http://my_host/v1", "my_host", 80),
    ],
)
def test_a_host_is_named_as_the_network_names_it(base_url, host, port):
    target = target_of(RunningEngine(base_urls=(base_url,), model="m", started_ns=0))
    assert (target.host, target.server_name, target.port) == (host, host, port)
