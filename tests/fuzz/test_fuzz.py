"""The readers against the kept corpus and against bytes that Hypothesis makes from the parts of real answers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("fuzz_targets", HERE / "targets.py")
targets = importlib.util.module_from_spec(spec)
spec.loader.exec_module(targets)

CORPUS = sorted((HERE / "corpus").glob("*/*"))

HTTP = (
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.0 503 No\r\n", b"\r\n", b"\r\n\r\n", b"\n"),
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"),
    *(b"Content-Encoding: gzip\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"5;a=b\r\n", b"0x5\r\n"),
    *(b"1_0\r\n", b"-5\r\n", b"ffffffffffffffff\r\n", b"hello", b"\xff", b" "),
)
SSE = (
    *(b"data: ", b"data:", b"data", b"event: error\n", b"id: 1\n", b": ping\n", b"\n", b"\r", b"\r\n", b"\n\n"),
    *(b"[DONE]", b"\xef\xbb\xbf", b"\x00", b"\xff\xfe", b'{"error": {"message": 5}}', b'{"choices": [{"text": "a"}]}'),
    *(b'{"choices": [{"delta": {"content": "\\ud83d"}, "finish_reason": "\\ude00"}]}', b'{"choices": 5}', b"{}", b"["),
    *(b'{"usage": {"completion_tokens": 99999999999, "prompt_tokens": -1}}', b'{"usage": {"completion_tokens": 3}}'),
    *(b'{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "x"}}]}, "token_ids": [1, 2]}]}', b"null"),
    *(
        b'{"error": ' * 50,
        b"}" * 50,
        b'{"object": "error", "message": {"a": []}}',
        b'{"timings": {"predicted_n": 1e99}}',
    ),
)
METRICS = (
    *(
        *(b"# HELP a b\n", b"# TYPE a counter\n", b"a 1\n", b'a{b="c"} 1 2\n', b"a{", b'"', b"NaN\n", b"+Inf\n"),
        *(b"\\", b"="),
    ),
    *(b"{", b"}", b"[", b"]", b'{"a": {"b": 1}}', b"\x00", b"\xff", b"\n", b" ", b","),
)
REDACTION = (
    *(b"api_key", b"HF_TOKEN", b"Authorization", b"Bearer ", b"--api-key", b"token", b"sig", b"http://u:p@h/?"),
    *(b"=", b": ", b'": "', b"='", b'\\": \\"', b"[", b"]", b"("),
    *(b"{", b"&", b"?", b";", b" ", b"\n", b'"', b"'", b"\\"),
    *(b"null", b"[redacted]", b"abcdefgh", b"\xff", b"eyJhbGciOi.eyJhbGciOi.x"),
)
PARTS = {"redaction": REDACTION, "metrics": METRICS, "sse": SSE, "record": HTTP + SSE, "answer": SSE}


def made_of(parts):
    return st.lists(st.one_of(st.sampled_from(parts), st.binary(max_size=6)), max_size=14).map(b"".join)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_once_was_found_stays_mended(path):
    targets.TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("name", targets.TARGETS)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_no_bytes_are_too_strange(name, data):
    targets.TARGETS[name](data.draw(made_of(PARTS.get(name, HTTP))))
