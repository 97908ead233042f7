"""The head of each request."""

import pytest

from servebench.contracts.exchange import Target
from servebench.load.client.job import request_head


@pytest.mark.parametrize(
    ("target", "host"),
    [
        (Target(host="h", port=80), b"h"),
        (Target(host="::1", port=8000), b"[::1]:8000"),
        (Target(host="10.0.0.1", port=80, headers=(("host", "model.ns.example"),)), b"model.ns.example"),
    ],
)
def test_a_request_names_one_host(target, host):
    """An ingress may need another name than that of the address; a server rejects two (RFC 9112, 3.2)."""
    lines = request_head(target, "/v1/embeddings").split(b"\r\n")
    assert [line[6:] for line in lines if line.lower().startswith(b"host: ")] == [host]


def test_answers_that_are_not_streamed_are_accepted():
    """Those of embeddings, and errors: a server may refuse to send what a client does not accept."""
    (accepted,) = [one for one in request_head(Target(host="h", port=80), "/").split(b"\r\n") if b"Accept:" in one]
    assert b"text/event-stream" in accepted
    assert b"*/*" in accepted
