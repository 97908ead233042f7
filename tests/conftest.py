"""Fixtures that many tests use; the code behind them is in tests/support."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from servebench.quality.sandbox import sandbox_errors
from support.commands import run_servebench
from support.endpoint import Behaviour, start_endpoint
from support.servers import Script, ScriptedServer
from support.studies import write_simulated_study

# a test suite that a shell runs in the background starts with Ctrl-C ignored, and would pass that on to what it starts
signal.signal(signal.SIGINT, signal.default_int_handler)

# no property test fails because the machine is slow
settings.register_profile("servebench", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("servebench")


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., Path]:
    return partial(write_simulated_study, tmp_path / "outputs")


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


@dataclass(frozen=True)
class Completed:
    """How a command ended that ran in this process."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run_main(tmp_path, monkeypatch, capfd):
    """Run the command in this process, which saves the second of imports of a new process."""
    from servebench.cli.main import main

    def run(*words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["servebench", *words])
        capfd.readouterr()
        code = main()
        shown = capfd.readouterr()
        return Completed(code, shown.out, shown.err)

    return run


@pytest.fixture
def servebench(tmp_path):
    """Run the command in a process of its own, in the test's folder."""
    return partial(run_servebench, tmp_path)


@pytest.fixture
def working() -> None:
    """Skip where no sandbox works: that one is refused there is tested by itself."""
    if faults := sandbox_errors():
        pytest.skip(faults[0])
