"""Receive the spans of a traced engine, and read its own times from them.

A small OTLP/HTTP server (`POST /v1/traces`) runs in threads of the process that coordinates the load, which others send: while
it runs a body is only checked and kept; it is decoded when `collect` asks. Everything that an exporter sends is untrusted: only
known names are kept. Formats: https://opentelemetry.io/docs/specs/otlp/ and the protobuf messages of `opentelemetry-proto`. In
JSON, ids are hexadecimal and integers are texts.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from socketserver import TCPServer
from typing import Any, Literal, NamedTuple

import orjson

from servebench.contracts.engine import ServerTimings
from servebench.protocol.json_values import milliseconds
from servebench.util.bounded_file import gunzip
from servebench.util.errors import EngineError, reason_of
from servebench.util.units import NS_PER_MS

Encoding = Literal["protobuf", "json"]

LATENCIES = {
    f"gen_ai.latency.{name}": name for name in ("time_in_queue", "time_in_model_prefill", "time_in_model_decode", "e2e")
}
"""Attributes in seconds, with short names: `vllm/tracing/utils.py` of 0.32, `sglang/srt/observability/trace.py` of 0.5.23."""
QUEUE, PREFILL, KV_TRANSFER = "prefill_waiting", "prefill_forward", "prefill_transfer_kv_cache"
"""Spans of SGLang's scheduler: `sglang/srt/observability/req_time_stats.py` of 0.5.23."""
ITEMS_MAX = 50_000
"""Resources, scopes and spans of one export, which are read one by one: empty ones have two bytes. Exporters send 512 spans."""
JSON_OBJECTS_MAX = 20 * ITEMS_MAX
"""With the attributes of spans and their values."""
PATH = "/v1/traces"
ENCODINGS: dict[str, Encoding] = {"application/x-protobuf": "protobuf", "application/json": "json"}
BODY_BYTES_MAX = 4 << 20
"""Of one export, unpacked: OpenTelemetry's exporters send 512 spans at once, of about a kilobyte each."""
KEPT_BYTES_MAX = 256 << 20
"""Of all exports that are not read yet: those of 300,000 requests to vLLM."""
CONNECTIONS_MAX = 32
SOCKET_TIMEOUT_S = 15.0
SPANS_PER_REQUEST_MAX = 200
"""SGLang sends about eight, and one more for each token if it traces everything: those of the first tokens are enough."""
QUIET_S = 6.0
"""How long to wait for the next export: exporters send every 5 s by default (`OTEL_BSP_SCHEDULE_DELAY`)."""
WAIT_S = 30.0
POLL_S = 0.05


class EngineSpan(NamedTuple):
    """A finished span: ids are hexadecimal, times are the exporter's nanoseconds, `attributes` those of LATENCIES that it has, by
    their short names."""

    trace_id: str
    span_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]


def check_message(body: bytes, encoding: Encoding) -> None:
    """Raise ValueError for a body that is not an export of spans, or has more than ITEMS_MAX."""
    if encoding == "protobuf":
        items = 0
        for resource in _message(body).resource_spans:
            items += 1 + sum(1 + len(scope.spans) for scope in islice(resource.scope_spans, ITEMS_MAX))
            if items > ITEMS_MAX:
                raise ValueError(f"more than {ITEMS_MAX} spans")
    elif body.count(b"{") > JSON_OBJECTS_MAX:
        raise ValueError(f"more than {JSON_OBJECTS_MAX} objects")
    elif not isinstance(orjson.loads(body), dict):
        raise ValueError("not a JSON object")


def spans_of(body: bytes, encoding: Encoding, wanted: Collection[str]) -> Iterator[EngineSpan]:
    """Yield the spans of these traces (hexadecimal ids) in a checked body. What has the wrong type is left out."""
    if encoding == "protobuf":
        return _protobuf_spans(_message(body), wanted)
    return _json_spans(orjson.loads(body), wanted)


def _message(body: bytes) -> Any:
    # only needed by who receives spans, and slow to import
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        return ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise ValueError(str(error)) from error


def _protobuf_spans(message: Any, wanted: Collection[str]) -> Iterator[EngineSpan]:
    for span in (span for resource in message.resource_spans for scope in resource.scope_spans for span in scope.spans):
        if (trace_id := span.trace_id.hex()) in wanted:
            found = {
                LATENCIES[one.key]: getattr(one.value, one.value.WhichOneof("value") or "", None)
                for one in span.attributes
                if one.key in LATENCIES
            }
            times = span.start_time_unix_nano, span.end_time_unix_nano
            yield EngineSpan(trace_id, span.span_id.hex(), span.name, *times, found)


def _json_spans(document: Any, wanted: Collection[str]) -> Iterator[EngineSpan]:
    scopes = (scope for resource in _objects(document, "resourceSpans") for scope in _objects(resource, "scopeSpans"))
    for span in (span for scope in scopes for span in _objects(scope, "spans")):
        trace_id, name = str(span.get("traceId")).lower(), span.get("name")
        start_ns, end_ns = (_integer(span.get(key)) for key in ("startTimeUnixNano", "endTimeUnixNano"))
        if trace_id in wanted and isinstance(name, str) and start_ns is not None and end_ns is not None:
            found = {
                LATENCIES[one["key"]]: next(iter(one["value"].values()), None)
                for one in _objects(span, "attributes")
                if str(one.get("key")) in LATENCIES and isinstance(one.get("value"), dict)
            }
            yield EngineSpan(trace_id, str(span.get("spanId")), name, start_ns, end_ns, found)


def _objects(parent: Mapping[str, Any], key: str) -> Iterable[dict[str, Any]]:
    listed = parent.get(key)
    return (one for one in listed if isinstance(one, dict)) if isinstance(listed, list) else ()


def _integer(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        return int(value)
    return value if type(value) is int else None


def timings_of_spans(spans: Sequence[EngineSpan]) -> ServerTimings:
    """Return what the spans of one request say, by the conventions of vLLM or SGLang.

    vLLM has one span, `llm_request`, whose attributes are all durations. SGLang's root span has the same attributes without a
    queue: its `time_in_model_prefill` contains the queue and is not read. Queue and prefill are the lengths of spans of its
    scheduler; of several, after a preemption, the first counts.
    """
    by_start = sorted(spans, key=lambda span: span.start_ns)

    def attribute(name: str) -> float | None:
        values = (milliseconds(span.attributes.get(name), 1000.0) for span in by_start)
        return next((value for value in values if value is not None), None)

    def length(name: str) -> float | None:
        lengths = ((span.end_ns - span.start_ns) / NS_PER_MS for span in by_start if span.name == name)
        return milliseconds(next(lengths, None))

    queue_ms = attribute("time_in_queue")
    return ServerTimings(
        queue_ms=length(QUEUE) if queue_ms is None else queue_ms,
        prefill_ms=length(PREFILL) if queue_ms is None else attribute("time_in_model_prefill"),
        kv_transfer_ms=length(KV_TRANSFER),
        decode_ms=attribute("time_in_model_decode"),
        e2e_ms=attribute("e2e"),
    )


class SpanReceiver:
    """Listens at an address from its creation to `close`. Raises EngineError if that is impossible."""

    def __init__(self, host: str, port: int) -> None:
        try:
            self._server = _Server(host, port)
        except OSError as error:
            raise EngineError(
                f"engine.spans_address={host}:{port}: cannot listen there: {reason_of(error)}; choose another address, or "
                f"{host}:0 for any free port"
            ) from error
        # what decoding needs is slow to import: not while load runs
        check_message(b"", "protobuf")
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="spans", daemon=True)
        self._thread.start()
        self._silent = False

    def discard(self) -> None:
        """Forget what has arrived: spans of earlier requests."""
        self._server.take()

    def collect(self, wanted: Collection[str]) -> dict[str, ServerTimings]:
        """Return what the spans of these traces (hexadecimal ids) say, by trace. Waits until queue, prefill and decode of all are
        known, or nothing has arrived for QUIET_S seconds; after a point without any span it no longer waits."""
        found: dict[str, dict[str, EngineSpan]] = {}
        timings: dict[str, ServerTimings] = {}
        started = heard = time.monotonic()
        while True:
            changed = set()
            for body, encoding in self._server.take():
                heard = time.monotonic()
                # others may send more than can be read in that time
                if heard > started + WAIT_S:
                    break
                for span in spans_of(body, encoding, wanted):
                    known = found.setdefault(span.trace_id, {})
                    # an exporter sends again what it does not know to have arrived
                    if span.span_id not in known and len(known) < SPANS_PER_REQUEST_MAX:
                        known[span.span_id] = span
                        changed.add(span.trace_id)
            timings |= {trace_id: timings_of_spans(list(found[trace_id].values())) for trace_id in changed}
            whole = sum(one.decode_ms is not None and one.prefill_ms is not None for one in timings.values())
            now = time.monotonic()
            if whole == len(wanted) or self._silent or now > heard + QUIET_S or now > started + WAIT_S:
                self._silent = not found and bool(wanted)
                return timings
            time.sleep(POLL_S)

    def close(self) -> None:
        """Stop listening, and close what is connected: its next export must not go to a receiver that nobody reads. Safe to call
        twice."""
        self._server.shutdown()
        self._server.server_close()
        self._server.disconnect()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Keeps checked bodies until they are taken."""

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._lock = threading.Lock()
        self._bodies: list[tuple[bytes, Encoding]] = []
        self._kept_bytes = 0
        self._open: dict[socket.socket, bool] = {}
        """The connections, the oldest first, and whether each has delivered an export."""
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without looking up a name for the address, as the library's method does."""
        TCPServer.server_bind(self)

    def keep(self, body: bytes, encoding: Encoding) -> bool:
        """Keep a body until it is taken; return whether there was room."""
        with self._lock:
            if self._kept_bytes + len(body) > KEPT_BYTES_MAX:
                return False
            self._kept_bytes += len(body)
            self._bodies.append((body, encoding))
            return True

    def take(self) -> list[tuple[bytes, Encoding]]:
        """Return the bodies since the last call."""
        with self._lock:
            taken, self._bodies, self._kept_bytes = self._bodies, [], 0
        return taken

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread. Of too many the oldest that has delivered nothing is closed: who connects and is
        silent, or sends a byte now and then, must not keep the engine out."""
        with self._lock:
            full = len(self._open) >= CONNECTIONS_MAX
            useless = next((one for one, useful in self._open.items() if not useful), next(iter(self._open), None))
            if full and useless is not None:
                self._disconnect(useless)
            self._open[request] = False
        super().process_request(request, client_address)

    def delivered(self, connection: socket.socket) -> None:
        """Note that a connection has delivered an export."""
        with self._lock:
            if connection in self._open:
                self._open[connection] = True

    def disconnect(self) -> None:
        """Close all connections."""
        with self._lock:
            for connection in list(self._open):
                self._disconnect(connection)

    def _disconnect(self, connection: socket.socket) -> None:
        self._open.pop(connection, None)
        with contextlib.suppress(OSError):
            # ends the read in its thread, which closes it
            connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SOCKET_TIMEOUT_S
    server: _Server

    def do_POST(self) -> None:
        """Take one export, or refuse it with its reason (https://opentelemetry.io/docs/specs/otlp/#otlphttp-response)."""
        kind = (self.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
        encoding = ENCODINGS.get(kind)
        status, why = self._refusal(encoding)
        if not status:
            assert encoding is not None
            status, why = self._take(self.rfile.read(int(self.headers["Content-Length"])), encoding)
        # an empty message means that everything was accepted
        answer = why.encode() if why else b"{}" if encoding == "json" else b""
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if why else kind)
        self.send_header("Content-Length", str(len(answer)))
        if why:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer)

    def _refusal(self, encoding: Encoding | None) -> tuple[int, str]:
        """Return the status and reason with which the head of an export is refused; 0 if it is not."""
        length = self.headers.get("Content-Length") or ""
        if self.path.partition("?")[0] != PATH:
            return 404, f"spans are received at {PATH}"
        if encoding is None:
            return 415, f"send {' or '.join(ENCODINGS)}"
        if self.headers.get("Transfer-Encoding") or not (length.isascii() and length.isdigit()):
            return 411, "Content-Length is required"
        if len(length) > 10 or int(length) > BODY_BYTES_MAX:
            return 413, f"the limit is {BODY_BYTES_MAX} bytes"
        if (self.headers.get("Content-Encoding") or "identity").strip().lower() not in ("identity", "gzip"):
            return 415, "Content-Encoding must be gzip or identity"
        return 0, ""

    def _take(self, body: bytes, encoding: Encoding) -> tuple[int, str]:
        """Unpack, check and keep a body; return the status, and the reason if it is refused."""
        if len(body) < int(self.headers["Content-Length"]):
            return 400, "the body is incomplete"
        try:
            if (self.headers.get("Content-Encoding") or "").strip().lower() == "gzip":
                body = gunzip(body, BODY_BYTES_MAX)
            check_message(body, encoding)
        except (OSError, ValueError) as error:
            return 400, f"the body cannot be read: {type(error).__name__}"
        # not a status after which exporters try again
        if not self.server.keep(body, encoding):
            return 413, "too many spans at once"
        self.server.delivered(self.connection)
        return 200, ""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: servebench's output is the user's."""
