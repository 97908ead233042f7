"""An OpenAI-like endpoint in the test's process, with a schedule, failures and a key."""

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.servers import LAST_CHUNK, SSE_HEAD, Received, ScriptedServer, chunk, completion, content_event, event


@dataclass
class Behaviour:
    """What the endpoint does. Each event carries `tokens_per_event` tokens; `ttft_s` and `gap_s` are the schedule.

    `answer` gives the text for a prompt that is not streamed; `echo_key` repeats the API key in answers and errors;
    requests beyond `at_most` at once are refused.
    """

    model: str = "tiny"
    tokens_per_event: int = 1
    ttft_s: float = 0.02
    gap_s: float = 0.002
    key: str | None = None
    fail_every: int = 0
    usage: bool = True
    answer: Callable[[str], str] | None = None
    echo_key: bool = False
    at_most: int | None = None
    serving: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: list[dict[str, Any]] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)

    def __call__(self, connection: socket.socket, request: Received) -> tuple[int, object] | None:
        """Answer one request: the script of the server."""
        if request.path != "/v1/models" and request.method == "GET":
            return 404, {"error": "not here"}
        given = request.headers.get("authorization")
        if self.key is not None and given != f"Bearer {self.key}":
            return 401, {"error": {"message": "wrong key"}}
        if request.method == "GET":
            return 200, {"object": "list", "data": [{"id": self.model}]}
        body = request.json()
        self.seen.append(body)
        self.heads.append(dict(request.headers))
        self.names.append(request.headers.get("x-request-id"))
        if self.fail_every and len(self.seen) % self.fail_every == 0:
            return 503, {"error": {"message": f"overloaded{f' for {given}' if self.echo_key else ''}"}}
        if self.answer is not None and not body.get("stream"):
            return 200, completion(self.answer(body["messages"][-1]["content"]))
        with self.lock:
            if self.at_most is not None and self.serving >= self.at_most:
                return 503, {"error": {"message": "too many requests at once"}}
            self.serving += 1
        try:
            connection.sendall(SSE_HEAD)
            self._stream(connection, body)
        finally:
            with self.lock:
                self.serving -= 1
        # counted out before the client can know that this request has ended
        connection.sendall(chunk(b"data: [DONE]\n\n") + LAST_CHUNK)
        return None

    def _stream(self, connection: socket.socket, body: dict[str, Any]) -> None:
        tokens = body["max_tokens"]
        time.sleep(self.ttft_s)
        for start in range(0, tokens, self.tokens_per_event):
            if self.echo_key:
                connection.sendall(content_event(f"your key is {self.key}"))
            connection.sendall(content_event(" word" * min(self.tokens_per_event, tokens - start)))
            time.sleep(self.gap_s)
        connection.sendall(event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}))
        if self.usage:
            prompt = len(json.dumps(body.get("messages") or body.get("prompt"))) // 5
            usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
            connection.sendall(event({"choices": [], "usage": usage}))


def start_endpoint(**behaviour: Any) -> tuple[ScriptedServer, Behaviour]:
    """Start an endpoint that behaves like this."""
    script = Behaviour(**behaviour)
    return ScriptedServer(script), script
