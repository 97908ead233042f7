"""A small, strict server with OpenAI's HTTP API, in this process (`FakeServer`) or as a program of its own.

    python server.py '{"port": 8000, "models": ["m"], ...}'

Standard library only, so that it starts quickly. The JSON has the fields of `ServerBehavior`, and `host`, `port` and `log`
(lines to print before it listens).
"""

import contextlib
import json
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

NATURAL_WORDS = 5
"""Length of an answer without an exact output length."""

OK, UNPROCESSABLE, NOT_FOUND = 200, 422, 404

LOG_GAP = "sleep 0.06"
"""A launcher reads the log 20 times per second; separate lines then get separate timestamps."""


@dataclass(frozen=True, kw_only=True)
class ServerBehavior:
    """How the server behaves.

    `models`: the listed models. `known_fields`: the accepted top-level fields of a body, others get a 422; null accepts all.
    `exact_output`: the fields and values that make an answer exactly as long as requested. `max_running`: how many requests it
    serves at once; more are rejected as `rejection` says: a status, or `event` for an error event inside HTTP 200. `gap_s`:
    the pause between two tokens. `version`: the reported version. `answers`: the answer to a prompt (the last message of a
    chat); all others are answered `yes`. `timings`: fields that come with the usage, as in `contracts.emulation.Emulation`.
    """

    models: Sequence[str] = ("model",)
    known_fields: Sequence[str] | None = None
    exact_output: Mapping[str, Any] = field(default_factory=dict)
    max_running: int | None = None
    rejection: int | Literal["event"] = 503
    gap_s: float = 0.0
    sends_done: bool = True
    version: str = "0.0.stand-in"
    answers: Mapping[str, str] = field(default_factory=dict)
    timings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def instance_of(schema: Mapping[str, Any]) -> Any:
    """Return a small value that a simple JSON Schema allows."""
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
    """Return the schema in a `response_format`, wherever an engine puts it."""
    if isinstance(body, Mapping):
        if isinstance(body.get("schema"), Mapping):
            return body["schema"]  # type: ignore[no-any-return]
        for value in body.values():
            found = schema_in(value)
            if found is not None:
                return found
    return None


def timing_fields(
    timings: Mapping[str, Mapping[str, str]], began_s: float, stamps_s: Sequence[float]
) -> dict[str, dict[str, float]]:
    """Return the fields with the times of an answer whose tokens came at these moments, the first at once in the engine."""
    first_s, last_s = (stamps_s[0], stamps_s[-1]) if stamps_s else (began_s, began_s)
    spans_s = {"queue": 0.0, "prefill": first_s - began_s, "decode": last_s - first_s, "e2e": last_s - began_s}
    units = {"s": 1.0, "ms": 1e3, "ns": 1e9}

    def value(word: str) -> float:
        name, _, unit = word.rpartition("_")
        return spans_s[name] * units[unit]

    return {group: {name: value(word) for name, word in own.items()} for group, own in timings.items()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behavior: ClassVar[ServerBehavior]
    bodies: ClassVar[list[tuple[str, dict[str, Any]]]]
    running: ClassVar[list[int]]
    lock: ClassVar[threading.Lock]

    def log_message(self, *_: object) -> None:
        """Log nothing: the log imitates an engine's."""

    def do_GET(self) -> None:
        """Answer with the list of models, or with one document for all other paths."""
        if self.path == "/v1/models":
            self._answer(
                OK, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.behavior.models]}
            )
        else:
            self._answer(OK, {"status": "ok", "version": self.behavior.version})

    def do_POST(self) -> None:
        """Generate, if the path and all fields of the body are known."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append((self.path, body))
        if not self.path.endswith("/completions"):
            self._answer(NOT_FOUND, {"error": {"message": f"no path {self.path}"}})
            return
        known = self.behavior.known_fields
        unknown = [name for name in body if known is not None and name not in known]
        if unknown:
            self._answer(UNPROCESSABLE, {"error": {"message": f"extra fields not permitted: {', '.join(unknown)}"}})
            return
        with self.lock:
            full = self.behavior.max_running is not None and self.running[0] >= self.behavior.max_running
            self.running[0] += not full
        if full:
            self._reject()
            return
        try:
            self._generate(body)
        finally:
            with self.lock:
                self.running[0] -= 1

    def _reject(self) -> None:
        error = {"error": {"message": "server busy, try again", "type": "overloaded"}}
        if self.behavior.rejection == "event":
            self._start_stream()
            self._event(error)
            self._chunk(b"")
        else:
            self._answer(self.behavior.rejection, error)

    def _generate(self, body: dict[str, Any]) -> None:
        chat = "messages" in body
        schema = schema_in(body.get("response_format"))
        requested = int(body.get("max_tokens", body.get("max_completion_tokens", 16)))
        exact = bool(self.behavior.exact_output) and all(
            body.get(name) == value for name, value in self.behavior.exact_output.items()
        )
        count = requested if exact else min(requested, NATURAL_WORDS)
        words = [json.dumps(instance_of(schema))] if schema is not None else ["yes "] * count
        prompt = body["messages"][-1]["content"] if chat else body.get("prompt")
        if isinstance(prompt, str) and prompt in self.behavior.answers:
            words = [self.behavior.answers[prompt]]
        if not body.get("stream"):
            answer = {"message": {"role": "assistant", "content": "".join(words)}} if chat else {"text": "".join(words)}
            usage = {"prompt_tokens": 5, "completion_tokens": len(words)}
            self._answer(OK, {"choices": [{"index": 0, "finish_reason": "stop", **answer}], "usage": usage})
            return
        began_s = time.monotonic()
        stamps_s = []
        self._start_stream()
        if chat:
            self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for word in words:
            time.sleep(self.behavior.gap_s)
            stamps_s.append(time.monotonic())
            self._event({"choices": [{"index": 0, "delta": {"content": word}} if chat else {"index": 0, "text": word}]})
        reason = "length" if count == requested and schema is None else "stop"
        self._event({"choices": [{"index": 0, "finish_reason": reason, **({"delta": {}} if chat else {"text": ""})}]})
        usage = {"prompt_tokens": 5, "completion_tokens": len(words)}
        self._event({"choices": [], "usage": usage, **timing_fields(self.behavior.timings, began_s, stamps_s)})
        if self.behavior.sends_done:
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
        """Ignore clients that disconnect."""


def make_server(host: str, port: int, behavior: ServerBehavior) -> _Server:
    """Return the server, bound but not yet serving."""
    state = {"behavior": behavior, "bodies": [], "running": [0], "lock": threading.Lock()}
    return _Server((host, port), type("Handler", (_Handler,), state))


class FakeServer:
    """The server in a thread of this process, as a context manager."""

    def __init__(self, behavior: ServerBehavior | None = None, host: str = "127.0.0.1") -> None:
        self._server = make_server(host, 0, behavior or ServerBehavior())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.root_url = f"http://{host}:{self._server.server_address[1]}"
        self.base_url = f"{self.root_url}/v1"

    @property
    def bodies(self) -> list[tuple[str, dict[str, Any]]]:
        """Path and body of every request so far."""
        handler: Any = self._server.RequestHandlerClass
        return list(handler.bodies)

    def __enter__(self) -> Self:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def write_stand_in(
    path: Path,
    behavior: ServerBehavior,
    *,
    host: str,
    port: int,
    log: Sequence[str] = (),
    dies_with: tuple[str, int] | None = None,
    exit_codes: Mapping[str, int] | None = None,
) -> Path:
    """Write the executable to `path` and return it.

    It prints the lines of `log`, then serves on `host` and `port` with this `behavior` and ignores its arguments. A first
    argument in `exit_codes` makes it exit with that code instead. With `dies_with` it prints that line and exits with that
    code instead of serving.
    """
    lines = ["#!/bin/sh"]
    for argument, code in (exit_codes or {}).items():
        lines.append(f'[ "$1" = {shlex.quote(argument)} ] && exit {code}')
    for line in log:
        lines += [f"printf '%s\\n' {shlex.quote(line)}", LOG_GAP]
    if dies_with is not None:
        lines += [f"printf '%s\\n' {shlex.quote(dies_with[0])}", f"exit {dies_with[1]}"]
    options = json.dumps({"host": host, "port": port, **asdict(behavior)})
    lines.append(f"exec {shlex.quote(sys.executable)} -S -P {shlex.quote(__file__)} {shlex.quote(options)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def main(options: str) -> None:
    """Serve as a program of its own until it is terminated."""
    settings = json.loads(options)
    host, port, lines = settings.pop("host", "127.0.0.1"), settings.pop("port"), settings.pop("log", ())
    for line in lines:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        make_server(host, port, ServerBehavior(**settings)).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
