"""A small server that speaks OpenAI's dialect, strictly: in this process (`FakeServer`), or by path as a program of its own.

    python server.py '{"port": 8000, "models": ["m"], ...}'

Standard library only, so that a program made of it starts at once. Keys of the JSON are the fields of `Manners`, beside
`host`, `port` and `log` (lines to print before it listens).
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Literal

NATURAL_WORDS = 5
"""How long an answer is that nobody held to a length."""

OK, REFUSED, NOT_FOUND = 200, 422, 404


@dataclass(frozen=True, kw_only=True)
class Manners:
    """How it behaves.

    `models`: the names it lists. `known_fields`: top-level fields of a body that it knows, others are answered 422; null
    knows all. `exact_output`: the fields, with their values, that make an answer exactly as long as asked. `max_running`:
    how many requests it serves at once; more are refused as `refusal` says: a status, or `event` for an error event inside
    HTTP 200. `gap_s`: between two words. `version`: what every path with JSON about the server tells. `answers`: what is
    said to a prompt (the last message of a chat); to all others it says `yes`.
    """

    models: Sequence[str] = ("model",)
    known_fields: Sequence[str] | None = None
    exact_output: Mapping[str, Any] = field(default_factory=dict)
    max_running: int | None = None
    refusal: int | Literal["event"] = 503
    gap_s: float = 0.0
    sends_done: bool = True
    version: str = "0.0.stand-in"
    answers: Mapping[str, str] = field(default_factory=dict)


def instance_of(schema: Mapping[str, Any]) -> Any:
    """A small value that a plain JSON Schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "object")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: instance_of(properties[name]) for name in schema.get("required", properties)}
    if kind == "array":
        return [instance_of(schema.get("items", {"type": "null"}))] * schema.get("minItems", 0)
    simple = {"string": "x" * schema.get("minLength", 1), "boolean": True, "null": None}
    return simple.get(kind, schema.get("minimum", 1))


def schema_in(body: Any) -> Mapping[str, Any] | None:
    """The schema that a `response_format` holds, whatever an engine calls the place."""
    if isinstance(body, Mapping):
        if isinstance(body.get("schema"), Mapping):
            return body["schema"]  # type: ignore[no-any-return]
        for value in body.values():
            found = schema_in(value)
            if found is not None:
                return found
    return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    manners: ClassVar[Manners]
    bodies: ClassVar[list[tuple[str, dict[str, Any]]]]
    running: ClassVar[list[int]]
    lock: ClassVar[threading.Lock]

    def log_message(self, *_: object) -> None:
        """Nothing: a log holds an engine's own words."""

    def do_GET(self) -> None:
        """The list of models, and one answer for whatever else is asked about the server."""
        if self.path == "/v1/models":
            self._answer(
                OK, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.manners.models]}
            )
        else:
            self._answer(OK, {"status": "ok", "version": self.manners.version})

    def do_POST(self) -> None:
        """A generation, if the path and all fields of the body are known."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append((self.path, body))
        if not self.path.endswith("/completions"):
            self._answer(NOT_FOUND, {"error": {"message": f"no path {self.path}"}})
            return
        known = self.manners.known_fields
        unknown = [name for name in body if known is not None and name not in known]
        if unknown:
            self._answer(REFUSED, {"error": {"message": f"extra fields not permitted: {', '.join(unknown)}"}})
            return
        with self.lock:
            full = self.manners.max_running is not None and self.running[0] >= self.manners.max_running
            self.running[0] += not full
        if full:
            self._refuse()
            return
        try:
            self._generate(body)
        finally:
            with self.lock:
                self.running[0] -= 1

    def _refuse(self) -> None:
        error = {"error": {"message": "server busy, try again", "type": "overloaded"}}
        if self.manners.refusal == "event":
            self._start_stream()
            self._event(error)
            self._chunk(b"")
        else:
            self._answer(self.manners.refusal, error)

    def _generate(self, body: dict[str, Any]) -> None:
        chat = "messages" in body
        schema = schema_in(body.get("response_format"))
        asked = int(body.get("max_tokens", body.get("max_completion_tokens", 16)))
        exact = bool(self.manners.exact_output) and all(
            body.get(name) == value for name, value in self.manners.exact_output.items()
        )
        count = asked if exact else min(asked, NATURAL_WORDS)
        words = [json.dumps(instance_of(schema))] if schema is not None else ["yes "] * count
        prompt = body["messages"][-1]["content"] if chat else body.get("prompt")
        if isinstance(prompt, str) and prompt in self.manners.answers:
            words = [self.manners.answers[prompt]]
        if not body.get("stream"):
            said = {"message": {"role": "assistant", "content": "".join(words)}} if chat else {"text": "".join(words)}
            usage = {"prompt_tokens": 5, "completion_tokens": len(words)}
            self._answer(OK, {"choices": [{"index": 0, "finish_reason": "stop", **said}], "usage": usage})
            return
        self._start_stream()
        if chat:
            self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for word in words:
            time.sleep(self.manners.gap_s)
            self._event({"choices": [{"index": 0, "delta": {"content": word}} if chat else {"index": 0, "text": word}]})
        reason = "length" if count == asked and schema is None else "stop"
        self._event({"choices": [{"index": 0, "finish_reason": reason, **({"delta": {}} if chat else {"text": ""})}]})
        self._event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": len(words)}})
        if self.manners.sends_done:
            self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _start_stream(self) -> None:
        self.send_response(OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, event: Mapping[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, *_: object) -> None:
        """A client that went away is no news."""


def make_server(host: str, port: int, manners: Manners) -> _Server:
    """The server, bound and not yet serving."""
    state = {"manners": manners, "bodies": [], "running": [0], "lock": threading.Lock()}
    return _Server((host, port), type("Handler", (_Handler,), state))


class FakeServer:
    """The server in a thread of this process, as a context manager. `bodies` holds (path, body) of every request."""

    def __init__(self, manners: Manners | None = None, host: str = "127.0.0.1") -> None:
        self._server = make_server(host, 0, manners or Manners())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.root_url = f"http://{host}:{self._server.server_address[1]}"
        self.base_url = f"{self.root_url}/v1"

    @property
    def bodies(self) -> list[tuple[str, dict[str, Any]]]:
        """What was asked so far."""
        handler: Any = self._server.RequestHandlerClass
        return list(handler.bodies)

    def __enter__(self) -> FakeServer:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def main(asked: str) -> None:
    """Serve as a program of its own, until it is ended."""
    settings = json.loads(asked)
    host, port, lines = settings.pop("host", "127.0.0.1"), settings.pop("port"), settings.pop("log", ())
    for line in lines:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        make_server(host, port, Manners(**settings)).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
