"""The receiver of spans: what it takes, what it refuses, and that neither kills it."""

import gzip
import http.client
import socket
import time

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from servebench.contracts.engine import ServerTimings
from servebench.engine import spans as module
from servebench.engine.spans import SpanReceiver
from servebench.util.errors import EngineError
from support.servers import own_port
from support.spans import TRACE, exported, span, vllm_span

PROTOBUF, JSON = "application/x-protobuf", "application/json"
SAID = ServerTimings(queue_ms=500.0, prefill_ms=250.0, decode_ms=2000.0, e2e_ms=3000.0)


def whole(trace_id=TRACE, encoding="protobuf"):
    return exported([vllm_span(queue=0.5, prefill=0.25, decode=2.0, e2e=3.0, trace_id=trace_id)], encoding)


@pytest.fixture
def port():
    return own_port()


@pytest.fixture
def receiver(port, monkeypatch):
    monkeypatch.setattr(module, "QUIET_S", 0.3)
    opened = SpanReceiver("127.0.0.1", port)
    yield opened
    opened.close()


def post(port, body, kind=PROTOBUF, path="/v1/traces", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, body, {"Content-Type": kind, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(("kind", "encoding", "answer"), [(PROTOBUF, "protobuf", b""), (JSON, "json", b"{}")])
def test_an_export_is_taken(receiver, port, kind, encoding, answer):
    assert post(port, whole(encoding=encoding), f"{kind}; charset=utf-8") == (200, answer)
    assert receiver.collect({TRACE}) == {TRACE: SAID}
    assert receiver.collect({TRACE}) == {}, "each export is read once"


def test_gzip_and_a_kept_connection(receiver, port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for trace_id in ("a" * 32, "b" * 32):
        headers = {"Content-Type": PROTOBUF, "Content-Encoding": "gzip"}
        connection.request("POST", "/v1/traces", gzip.compress(whole(trace_id)), headers)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
    connection.close()
    assert set(receiver.collect({"a" * 32, "b" * 32})) == {"a" * 32, "b" * 32}


def test_spans_of_others_and_duplicates(receiver, port):
    """Spans of other servers and of earlier points are left out; what an exporter sends twice counts once."""
    waiting = span("prefill_waiting", 0, 100, span_id="1" * 16)
    again = {**waiting, "times": (0, 10**9)}
    for body in (exported([waiting], "protobuf"), exported([again], "protobuf"), whole("c" * 32)):
        assert post(port, body)[0] == 200
    assert receiver.collect({TRACE}) == {TRACE: ServerTimings(queue_ms=100.0)}
    post(port, whole())
    receiver.discard()
    assert receiver.collect({TRACE}) == {}


def test_parts_of_a_request_come_in_several_exports(receiver, port):
    post(port, exported([span("prefill_waiting", 0, 100), span("prefill_forward", 100, 150)], "protobuf"))
    post(port, exported([span("Req", 0, 1, time_in_model_decode=1.0)], "protobuf"))
    assert receiver.collect({TRACE}) == {TRACE: ServerTimings(queue_ms=100.0, prefill_ms=50.0, decode_ms=1000.0)}


def test_it_waits_for_late_spans_but_not_for_ever(receiver, port, monkeypatch):
    """Until nothing has come for QUIET_S; after a point without any span not at all."""
    began = time.monotonic()
    assert receiver.collect({TRACE}) == {}
    assert time.monotonic() - began >= 0.3
    monkeypatch.setattr(module, "QUIET_S", 3600.0)
    assert receiver.collect({TRACE}) == {}, "it does not wait again"
    post(port, whole())
    assert receiver.collect({TRACE}) == {TRACE: SAID}


BOMB = gzip.compress(bytes(64 << 20))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body", "options"),
    [
        (400, whole()[:-3], {}),
        (400, b"\xff" * 99, {}),
        (400, b"[1", {"kind": JSON}),
        (400, b"[" * 100_000, {"kind": JSON}),
        (400, b"no gzip", {"Content-Encoding": "gzip"}),
        (400, gzip.compress(whole())[:-9], {"Content-Encoding": "gzip"}),
        (400, BOMB, {"Content-Encoding": "gzip"}),
        (404, whole(), {"path": "/v1/metrics"}),
        (411, None, {}),
        (413, b"", {"Content-Length": str(1 << 40)}),
        (411, b"", {"Content-Length": "-1"}),
        (411, b"", {"Transfer-Encoding": "chunked"}),
        (415, whole(), {"kind": "text/plain"}),
        (415, whole(), {"kind": ""}),
        (415, whole(), {"Content-Encoding": "br"}),
    ],
)
def test_junk_is_refused_and_kills_nothing(receiver, port, status, body, options):
    if body is None:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
            raw.sendall(f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n\r\n".encode())
            assert b" 411 " in raw.recv(4096)
    else:
        assert post(port, body, **options)[0] == status
    assert post(port, whole())[0] == 200
    assert receiver.collect({TRACE}) == {TRACE: SAID}


@pytest.mark.parametrize(
    "raw", [b"", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"POST /v1/traces HTTP/1.1\r\nContent"]
)
def test_other_protocols_and_broken_connections(receiver, port, raw):
    """Among them gRPC, the other OTLP."""
    with socket.create_connection(("127.0.0.1", port)) as other:
        other.sendall(raw)
    with socket.create_connection(("127.0.0.1", port)) as other:
        other.sendall(f"POST /v1/traces HTTP/1.1\r\nContent-Type: {PROTOBUF}\r\nContent-Length: 99\r\n\r\n".encode())
    assert post(port, whole())[0] == 200
    assert receiver.collect({TRACE}) == {TRACE: SAID}


def test_silent_connections_do_not_keep_the_engine_out(receiver, port, monkeypatch):
    """Of too many connections the oldest that has delivered nothing is closed, not that of an exporter."""
    monkeypatch.setattr(module._Handler, "timeout", 3600.0)
    exporter = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    send = {"method": "POST", "url": "/v1/traces", "headers": {"Content-Type": PROTOBUF}}
    exporter.request(body=whole("a" * 32), **send)
    assert exporter.getresponse().read() == b""
    silent = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(module.CONNECTIONS_MAX + 4)]
    assert silent[0].recv(1) == b""
    exporter.request(body=whole("b" * 32), **send)
    assert exporter.getresponse().status == 200
    assert post(port, whole())[0] == 200, "a new one is served, too"
    assert set(receiver.collect({"a" * 32, "b" * 32, TRACE})) == {"a" * 32, "b" * 32, TRACE}
    for one in (exporter, *silent):
        one.close()


def test_an_exporter_does_not_stay_with_a_closed_receiver(port):
    """Of two runs that measure one server: its exporter keeps its connection to the receiver of the first."""
    first = SpanReceiver("127.0.0.1", port)
    exporter = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    exporter.auto_open = 0
    exporter.connect()
    exporter.request("POST", "/v1/traces", whole(), {"Content-Type": PROTOBUF})
    assert exporter.getresponse().read() == b""
    first.close()
    first.close()
    second = SpanReceiver("127.0.0.1", port)
    try:
        assert exporter.sock.recv(1) == b""
    finally:
        exporter.close()
        second.close()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (PROTOBUF, exported([span("s", 0, 1, span_id=f"{index:016x}") for index in range(40)], "protobuf")),
        (PROTOBUF, ExportTraceServiceRequest(resource_spans=[ResourceSpans()] * 40).SerializeToString()),
        (JSON, b'{"resourceSpans":[' + b"{}," * 900 + b"{}]}"),
    ],
)
def test_what_takes_long_to_read_is_refused(receiver, port, monkeypatch, kind, body):
    """Millions of empty spans fit into a few megabytes."""
    monkeypatch.setattr(module, "ITEMS_MAX", 30)
    monkeypatch.setattr(module, "JSON_OBJECTS_MAX", 600)
    assert post(port, body, kind)[0] == 400
    assert post(port, whole())[0] == 200


def test_reading_ends_in_time(receiver, port, monkeypatch):
    """A sender without end, such as a busy server that others load, too."""
    monkeypatch.setattr(module, "WAIT_S", -1.0)
    for _ in range(3):
        post(port, whole())
    assert receiver.collect({TRACE}) == {}


def test_what_is_kept_has_a_limit(receiver, port, monkeypatch):
    monkeypatch.setattr(module, "KEPT_BYTES_MAX", 2 * len(whole()))
    assert [post(port, whole())[0] for _ in range(3)] == [200, 200, 413]
    assert receiver.collect({TRACE}) == {TRACE: SAID}
    assert post(port, whole())[0] == 200, "there is room again"


def test_an_address_in_use_is_one_line(receiver, port):
    with pytest.raises(
        EngineError, match=rf"engine.spans_address=127.0.0.1:{port}: cannot listen there.*choose another"
    ):
        SpanReceiver("127.0.0.1", port)
