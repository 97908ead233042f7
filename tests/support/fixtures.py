"""Fixtures that the tests of servebench and of its plugins share; a `conftest.py` imports those that it offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from servebench.contracts.quality import ItemAnswer
from support.commands import run_servebench
from support.endpoint import Behaviour, start_endpoint
from support.records import record as make_record
from support.servers import Script, ScriptedServer


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    """Start a server with a script; it is closed at the end of the test."""
    servers: list[ScriptedServer] = []

    def start(script: Script, **options: Any) -> ScriptedServer:
        servers.append(ScriptedServer(script, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def endpoint() -> Iterator[Callable[..., tuple[str, Behaviour]]]:
    """Start an OpenAI-like endpoint; gives its base URL and its behaviour."""
    servers: list[ScriptedServer] = []

    def start(**behaviour: Any) -> tuple[str, Behaviour]:
        server, script = start_endpoint(**behaviour)
        servers.append(server)
        return server.base_url, script

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def started() -> Iterator[list[Any]]:
    """Keep the engines that a test has started; they are stopped at its end."""
    engines: list[Any] = []
    yield engines
    for one in engines:
        one.stop()


@pytest.fixture
def servebench(tmp_path):
    """Run the command in a process of its own, in the test's folder."""
    return partial(run_servebench, tmp_path)


class Memory:
    """Keeps answers as the log on disk does: those that failed are not known to the next attempt."""

    def __init__(self):
        self.known: dict[str, ItemAnswer] = {}
        self.added: list[str] = []

    def add(self, key, answer):
        self.added.append(key)
        if answer.error is None:
            self.known = {**self.known, key: answer}


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def record():
    def build(request_id, text="", **changes):
        return make_record(request_id, **({"text": text, "sent_ns": 0, "event_ns": [1, 5_000_000]} | changes))

    return build
