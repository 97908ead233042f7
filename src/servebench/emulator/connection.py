"""One HTTP connection of the emulated server: read requests, route them, send responses."""

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from servebench import __version__
from servebench.emulator import text
from servebench.emulator.engine import EmulatedEngine
from servebench.emulator.requests import APIS, RejectedInStream, RequestRejected
from servebench.emulator.responses import error_body
from servebench.emulator.scheduler import EmulatedRequest

HEAD_MAX = 65_536
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 422: "Unprocessable Entity"}


def body_of(buffer: bytes | bytearray, start: int, headers: Mapping[str, str]) -> tuple[bytes, int] | None:
    """Return a request's body and where the next request begins; None while the body is incomplete. Pure. The body has a length
    or is chunked (RFC 9112, 7.1). Raises ValueError if the length is invalid."""
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        end = start + int(headers.get("content-length") or 0)
        return (bytes(buffer[start:end]), end) if len(buffer) >= end else None
    parts: list[bytes] = []
    position = start
    while (line_end := buffer.find(b"\r\n", position)) >= 0:
        size = int(bytes(buffer[position:line_end]).partition(b";")[0], 16)
        begin = line_end + 2
        if size == 0:
            # skip the trailers up to an empty line
            while (line_end := buffer.find(b"\r\n", begin)) > begin:
                begin = line_end + 2
            return (b"".join(parts), begin + 2) if line_end == begin else None
        parts.append(bytes(buffer[begin : begin + size]))
        position = begin + size + 2
        if len(buffer) < position:
            return None
    return None


class ServerConnection(asyncio.Protocol):
    """One persistent HTTP/1.1 connection; one request at a time."""

    def __init__(self, engine: EmulatedEngine) -> None:
        self._engine = engine
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._request: EmulatedRequest | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop: abort the request that is being answered."""
        self._transport = None
        if self._request is not None:
            self._engine.client_gone(self._request)
            self._request = None

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._buffer += data
        if self._request is None:
            self._handle_buffered()

    def write(self, data: bytes) -> None:
        """Send bytes to the client, unless it is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def reset(self) -> None:
        """Reset the connection."""
        if self._transport is not None:
            self._transport.abort()

    def finish_request(self) -> None:
        """The answer is complete: continue with the next request."""
        self._request = None
        if self._buffer:
            self._engine.loop.call_soon(self._handle_buffered)

    def close(self) -> None:
        """Close the connection after everything written is sent."""
        if self._transport is not None:
            self._transport.close()

    def respond(self, status: int, body: Any, kind: str = "application/json", more: str = "") -> None:
        """Send a complete response; `more` are further lines of its head."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        head = (
            f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\nContent-Type: {kind}\r\n"
            f"X-Servebench-Emulated: true\r\n{more}Content-Length: {len(data)}\r\n\r\n"
        )
        self.write(head.encode() + data)

    def _handle_buffered(self) -> None:
        """Handle complete requests from the buffer while none is being answered."""
        while self._request is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > HEAD_MAX:
                    self.reset()
                return
            first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            try:
                parsed = body_of(self._buffer, end + 4, headers)
            except ValueError:
                self.respond(400, error_body(self._engine.spec, 400, "invalid length of the body"))
                self.close()
                return
            if parsed is None:
                if headers.get("expect") == "100-continue":
                    self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            raw, after = parsed
            del self._buffer[:after]
            method, _, rest = first.partition(" ")
            path, _, query = rest.split(" ", 1)[0].partition("?")
            self._dispatch(method, path, raw, {**headers, "?": query})

    def _dispatch(self, method: str, path: str, raw: bytes, headers: Mapping[str, str]) -> None:
        spec = self._engine.spec
        try:
            if path == "/emulator":
                self.respond(200, self._engine.state())
            elif any(headers.get(name) != value for name, value in spec.wanted.items()):
                raise RequestRejected(401, "this gateway needs its header and its query")
            elif not self._engine.ready and path != "/v1/models":
                raise RequestRejected(spec.emulation.loading_status or 503, "Loading model")
            elif method == "POST" and path.startswith("/v1/") and path[3:] in APIS:
                # nothing else is read until `finish_request`
                self._request = self._engine.generate(self, path, raw, headers.get("traceparent", ""))
            else:
                self._respond_small(method, path, raw)
        except RequestRejected as rejected:
            retry = "Retry-After: 2\r\n" if rejected.status == HTTPStatus.TOO_MANY_REQUESTS else ""
            self.respond(rejected.status, error_body(spec, rejected.status, rejected.message), more=retry)
        except RejectedInStream:
            pass

    def _respond_small(self, method: str, path: str, raw: bytes) -> None:
        """Answer everything except generations. Raises RequestRejected."""
        engine, spec = self._engine, self._engine.spec
        if path == "/v1/models":
            model = {"id": spec.model_name, "object": "model", "owned_by": "servebench-emulator"}
            self.respond(200, {"object": "list", "data": [model]})
        elif path == spec.version_path or path in (settings.partition("?")[0] for settings in spec.settings_paths):
            self.respond(200, {"version": f"emulated {__version__}", **engine.state()})
        elif path == spec.health_path:
            self.respond(200, {"status": "ok"})
        elif path == spec.metrics_path:
            self.respond(200, engine.metrics(), "text/plain; version=0.0.4")
        elif path == "/perf_metrics" and (kept := engine.late.take()) is not None:
            self.respond(200, kept)
        elif method == "POST" and path == spec.reset_path:
            # like vLLM, refuse while requests hold blocks
            self.respond(200, {"success": engine.scheduler.reset_cache()})
        elif method == "POST" and path in ("/tokenize", spec.tokenize_path):
            self._tokenize(raw)
        elif method == "POST" and path == "/detokenize":
            self._detokenize(raw)
        else:
            raise RequestRejected(404, "Not Found")

    def _tokenize(self, raw: bytes) -> None:
        try:
            body = json.loads(raw)
            content = str(body.get("content", body.get("prompt", "")))
        except (ValueError, AttributeError) as error:
            raise RequestRejected(400, "the body is not a JSON object") from error
        pieces = text.split_tokens(content)
        tokens = [text.prompt_key(0, piece) % 50_000 for piece in pieces]
        self._engine.token_texts.update(zip(tokens, pieces, strict=True))
        self.respond(200, {"tokens": tokens, "count": len(tokens), "max_model_len": self._engine.spec.max_model_len})

    def _detokenize(self, raw: bytes) -> None:
        """Return the text of ids: the one seen by `/tokenize`, else a text of the same length. vLLM calls it `prompt`, llama.cpp
        `content`."""
        try:
            ids = [int(token) for token in json.loads(raw)["tokens"]]
        except (ValueError, TypeError, KeyError) as error:
            raise RequestRejected(400, "the body is not a JSON object with a list of tokens") from error
        content = "".join(self._engine.token_texts.get(token) or text.text_of_ids([token]) for token in ids)
        self.respond(200, {"prompt": content, "content": content})
