"""An OpenAI-like endpoint in this process, and the command in another."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from servebench.testing.words import servebench as run_command


@dataclass
class Behaviour:
    """What the endpoint does. `tokens_per_event` tokens ride on each event; `ttft_s` and `gap_s` are its schedule."""

    model: str = "tiny"
    tokens_per_event: int = 1
    ttft_s: float = 0.02
    gap_s: float = 0.002
    key: str | None = None
    fail_every: int = 0
    usage: bool = True
    say: Callable[[str], str] | None = None
    """What is answered, at once, to a prompt that is not to be streamed."""
    repeat_key: bool = False
    slots: threading.Semaphore | None = None
    seen: list[dict[str, Any]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behaviour: Behaviour

    def log_message(self, *_: object) -> None:
        pass

    def _json(self, status: int, answer: object) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _allowed(self) -> bool:
        key = self.behaviour.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self._json(401, {"error": {"message": "wrong key"}})
        return False

    def do_GET(self) -> None:
        if self.path == "/v1/models" and self._allowed():
            self._json(200, {"object": "list", "data": [{"id": self.behaviour.model}]})
        elif self.path != "/v1/models":
            self._json(404, {"error": "not here"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        behaviour = self.behaviour
        behaviour.seen.append(body)
        if behaviour.fail_every and len(behaviour.seen) % behaviour.fail_every == 0:
            said = f" for {self.headers.get('Authorization')}" if behaviour.repeat_key else ""
            self._json(503, {"error": {"message": f"overloaded{said}"}})
            return
        if behaviour.say is not None and not body.get("stream"):
            said = behaviour.say(body["messages"][-1]["content"])
            message = {"role": "assistant", "content": said}
            usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._json(200, {"choices": [choice], "usage": usage})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if behaviour.slots is None:
            self._answer(body)
            return
        with behaviour.slots:
            self._answer(body)

    def _answer(self, body: dict[str, Any]) -> None:
        behaviour = self.behaviour
        tokens = body["max_tokens"]
        time.sleep(behaviour.ttft_s)
        for start in range(0, tokens, behaviour.tokens_per_event):
            if behaviour.repeat_key:
                self._event({"choices": [{"index": 0, "delta": {"content": f"your key is {behaviour.key}"}}]})
            words = " word" * min(behaviour.tokens_per_event, tokens - start)
            self._event({"choices": [{"index": 0, "delta": {"content": words}, "finish_reason": None}]})
            time.sleep(behaviour.gap_s)
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        if behaviour.usage:
            prompt = len(json.dumps(body.get("messages") or body.get("prompt"))) // 5
            self._event(
                {
                    "choices": [],
                    "usage": {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens},
                }
            )
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: object) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        """A client that goes away is no news."""


@pytest.fixture
def endpoint():
    """`endpoint(**behaviour)` gives (base URL, behaviour)."""
    servers = []

    def start(**settings):
        behaviour = Behaviour(**settings)
        handler = type("Handler", (Handler,), {"behaviour": behaviour})
        server = Server(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/v1", behaviour

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Done:
    """How a command ended that was done in this process."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def told(tmp_path, monkeypatch, capfd):
    """Runs the command in this process, without the second of imports that a process of its own takes."""
    from servebench.cli.main import main

    def run(*words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["servebench", *words])
        capfd.readouterr()
        code = main()
        shown = capfd.readouterr()
        return Done(code, shown.out, shown.err)

    return run


@pytest.fixture
def servebench(tmp_path):
    """Runs the command in a folder of its own; the environment may be added to."""

    def run(*words, env=None, timeout_s=120):
        return run_command(tmp_path, *words, env=env, timeout_s=timeout_s)

    return run
