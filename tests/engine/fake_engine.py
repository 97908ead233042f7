"""A server that misbehaves on request. Run by path: fake_engine.py --port N [OPTIONS]."""

import argparse
import json
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(9999)"
)


TEXTS = {
    "host": "127.0.0.1",
    "models": "m",
    "says": "yes",
    "key": None,
    "prefix": "/v1",
    "version": None,
    "tokens": "words",
}
SECONDS = {"listen-after": 0, "healthy-after": 0, "generates-after": 0, "dies-after": None}
NUMBERS = {"port": None, "rejects-first": 0, "loading-status": 503, "exit-code": 0}
FLAGS = ("models-at-root", "only-completions", "hangs", "ignores-term", "child", "child-session")


def options():
    parser = argparse.ArgumentParser()
    for kind, defaults in ((str, {**TEXTS, "pids": None}), (float, SECONDS), (int, NUMBERS)):
        for name, default in defaults.items():
            parser.add_argument(f"--{name}", type=kind, default=default)
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--log", action="append", default=[])
    return parser.parse_args()


OPTIONS = options()
STARTED = time.monotonic()
GENERATIONS = []


def after(seconds):
    return time.monotonic() - STARTED >= seconds


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def unauthorized(self):
        if OPTIONS.key and self.headers.get("Authorization") != f"Bearer {OPTIONS.key}":
            self.answer(401, {"error": {"message": "unauthorized"}})
            return True
        return False

    def do_GET(self):
        if self.unauthorized():
            return
        if self.path == "/health":
            self.answer(200 if after(OPTIONS.healthy_after) else 503, {})
        elif self.path == "/version" and OPTIONS.version:
            self.answer(200, {"version": OPTIONS.version})
        elif OPTIONS.models and self.path in (f"{OPTIONS.prefix}/models", "/models" * OPTIONS.models_at_root):
            self.answer(200, {"data": [{"id": name} for name in OPTIONS.models.split(",")]})
        else:
            self.answer(404, {"error": {"message": "no such path"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.unauthorized():
            return
        if self.path == "/tokenize" and OPTIONS.tokens != "none":
            words = body["content"].split()
            self.answer(200, {"tokens": words} if OPTIONS.tokens == "words" else {"count": len(words)})
            return
        chat = self.path == f"{OPTIONS.prefix}/chat/completions"
        if (not chat and self.path != f"{OPTIONS.prefix}/completions") or (chat and OPTIONS.only_completions):
            self.answer(404, {"error": {"message": "no such path"}})
            return
        GENERATIONS.append(self.path)
        if not after(OPTIONS.generates_after) or len(GENERATIONS) <= OPTIONS.rejects_first:
            self.answer(OPTIONS.loading_status, {"error": {"message": "Loading model"}})
            return
        while OPTIONS.hangs:
            time.sleep(1)
        first = {"choices": [{"delta": {"role": "assistant", "content": None}}]}
        second = {"choices": [{"delta": {"content": OPTIONS.says}}]} if chat else {"choices": [{"text": OPTIONS.says}]}
        lines = [f"data: {json.dumps(event)}\n\n" for event in (first, second)]
        self.answer(200, "".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream")


def main():
    if OPTIONS.ignores_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in OPTIONS.log:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    if OPTIONS.child or OPTIONS.child_session:
        child = subprocess.Popen(
            [sys.executable, "-c", STUBBORN], start_new_session=OPTIONS.child_session, stdout=subprocess.PIPE
        )
        child.stdout.readline()
        Path(OPTIONS.pids).write_text(str(child.pid))
    time.sleep(OPTIONS.listen_after)
    if OPTIONS.dies_after is not None:
        time.sleep(OPTIONS.dies_after)
        raise SystemExit(OPTIONS.exit_code)
    ThreadingHTTPServer((OPTIONS.host, OPTIONS.port), Handler).serve_forever()


main()
