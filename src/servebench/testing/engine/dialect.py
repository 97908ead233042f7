"""Conformance of an engine's HTTP dialect."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from servebench.contracts.request import Request
from servebench.engine.launchers.attach import AttachLauncher, AttachSettings
from servebench.engine.supervisor.probe import generate_token
from servebench.testing.engine.suite import CHAT, SCHEMA, TEXT, WORKLOAD, EngineSuite, ignore
from servebench.testing.server import FakeServer
from servebench.util.bounded_http import client


class DialectTests(EngineSuite):
    """Requests suit the engine."""

    @pytest.mark.parametrize("request_", [CHAT, TEXT], ids=["chat", "completions"])
    @pytest.mark.parametrize("exact", [False, True], ids=["free", "exact"])
    def test_request_bodies(self, request_: Request, exact: bool) -> None:
        """A strict server accepts each body: only known fields, the exact length in the engine's way, a seed if the engine takes
        one, usage in the stream."""
        dialect = self.engine.dialect
        request = replace(request_, exact_output=exact, seed=7)
        path, body = self.engine().body(request, "model", WORKLOAD)
        assert json.loads(json.dumps(body)) == body, "a body must survive JSON"
        assert path == (dialect.chat_path if request.messages else dialect.completions_path)
        assert ("messages" in body) != ("prompt" in body)
        assert body["stream"] is True
        assert (body.get("seed") == 7) == dialect.takes_seed
        for name, value in dialect.exact_output.items():
            assert (body.get(name) == value) == exact
        with FakeServer(self.server_behavior()) as server, client(()) as http:
            answer = http.post(server.base_url + path, json=body)
            assert answer.status_code == 200, answer.text
            events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        usage = next(event["usage"] for event in events if event.get("usage"))
        if exact and dialect.exact_output:
            assert usage["completion_tokens"] == request.output_tokens

    def test_schema_is_sent_if_it_is_enforced(self) -> None:
        """And not otherwise."""
        _, body = self.engine().body(replace(CHAT, schema=SCHEMA), "model", WORKLOAD)
        assert (json.dumps(SCHEMA) in json.dumps(body)) == self.engine.dialect.json_schema
        with FakeServer(self.server_behavior()) as server, client(()) as http:
            assert http.post(f"{server.base_url}/chat/completions", json=body).status_code == 200

    def test_attach(self, tmp_path: Path) -> None:
        """The adapter works with a server that is already running, and leaves it running."""
        with FakeServer(self.server_behavior()) as server:
            running = AttachLauncher().launch(
                self.engine(),
                self.context(tmp_path),
                AttachSettings(name="attach", base_url=server.base_url),
                log_path=tmp_path / "log",
                say=ignore,
            )
            assert running.version == ("0.0.stand-in" if self.engine.version_path else None)
            assert not running.stop().stopped
            with client(()) as http:
                generate_token(http, server.base_url, self.engine(), running.model, 5.0)
