"""Fixtures that many tests use; the code behind them is in tests/support."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from servebench.contracts.results import QualityRecord
from support import studies
from support.endpoint import Behaviour, start_endpoint
from support.records import quality_records
from support.servers import Script, ScriptedServer

# a test suite that a shell runs in the background starts with Ctrl-C ignored, and would pass that on to what it starts
signal.signal(signal.SIGINT, signal.default_int_handler)

# no property test fails because the machine is slow
settings.register_profile("servebench", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("servebench")


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., Path]:
    """Write a study of simulated runs below `tmp_path/outputs` and return its folder."""
    return partial(studies.write_simulated_study, tmp_path / "outputs")


@pytest.fixture
def simulated() -> Any:
    """The parts of support.studies by short names."""

    class Parts:
        Engine = studies.SimulatedEngine
        Shape = studies.SimulatedLoad
        closed_loop = staticmethod(studies.closed_loop)
        point_of = staticmethod(studies.point_of)
        write_one = staticmethod(studies.write_simulated_run)
        manifest_of = staticmethod(studies.manifest_of)

    return Parts


@pytest.fixture
def graded() -> Callable[..., list[QualityRecord]]:
    """`quality_records`."""
    return quality_records


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
