"""Receive spans: a small OTLP/HTTP server (`POST /v1/traces`) in threads of the process that coordinates the load.

The load itself is sent by other processes. While it runs a body is only checked and kept; it is decoded when `collect` asks.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from servebench.contracts.engine import ServerTimings
from servebench.engine.spans.decode import Encoding, EngineSpan, check_message, spans_of, timings_of_spans
from servebench.util.bounded_file import gunzip
from servebench.util.errors import EngineError, reason_of

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
