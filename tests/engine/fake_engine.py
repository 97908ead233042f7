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


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--models", default="m")
    parser.add_argument("--listen-after", type=float, default=0)
    parser.add_argument("--healthy-after", type=float, default=0)
    parser.add_argument("--generates-after", type=float, default=0)
    parser.add_argument("--rejects-first", type=int, default=0)
    parser.add_argument("--loading-status", type=int, default=503)
    parser.add_argument("--says", default="yes")
    parser.add_argument("--only-completions", action="store_true")
    parser.add_argument("--hangs", action="store_true")
    parser.add_argument("--key")
    parser.add_argument("--prefix", default="/v1")
    parser.add_argument("--version")
    parser.add_argument("--tokens", default="words")
    parser.add_argument("--dies-after", type=float)
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument("--log", action="append", default=[])
    parser.add_argument("--ignores-term", action="store_true")
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--child-session", action="store_true")
    parser.add_argument("--pids")
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
        elif self.path == f"{OPTIONS.prefix}/models" and OPTIONS.models:
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
