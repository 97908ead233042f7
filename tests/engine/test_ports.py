from __future__ import annotations

import os
import socket

import pytest

from servebench.engine.supervisor.ports import (
    accepts_connections,
    describe_owner,
    free_port,
    is_held_by,
    listening_sockets,
    port_problem,
)
from servebench.util.errors import EngineError


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_free_port_can_be_had(host: str) -> None:
    """What is said to be free can be bound, and nobody is said to have it."""
    port = free_port(host)
    assert port_problem(host, port) is None
    assert not accepts_connections("127.0.0.1", port)
    assert (describe_owner(port), is_held_by([os.getpid()], port)) == ("", None)
    socket.create_server((host, port)).close()


@pytest.mark.parametrize("taken_at", ["127.0.0.1", "0.0.0.0"])
def test_a_taken_port_is_seen_and_its_owner_named(taken_at: str) -> None:
    """Also when the other listens on every address."""
    with socket.create_server((taken_at, 0)) as taken:
        port = taken.getsockname()[1]
        fault = port_problem("127.0.0.1", port)
        assert fault is not None
        assert fault.kind == "port_in_use"
        assert f"port 127.0.0.1:{port} (engine.port) is in use by pid {os.getpid()} (" in str(fault)
        assert accepts_connections("127.0.0.1", port)
        assert is_held_by([os.getpid()], port) is True
        assert is_held_by([os.getppid()], port) in (False, None)
        assert is_held_by([], port) is False


def test_a_port_of_ended_connections_is_free() -> None:
    """TIME_WAIT is no server: an engine may be started on its old port at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first keeps the TIME_WAIT
        client.close()
    assert listening_sockets(port) == set()
    assert port_problem("127.0.0.1", port) is None


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_a_host_that_is_not_ours_is_told_as_such(host: str) -> None:
    """Not as a port in use."""
    fault = port_problem(host, 8000)
    assert fault is not None
    assert str(fault).startswith(f"engine.host={host}: cannot listen there: ")
    with pytest.raises(EngineError, match="cannot listen there"):
        free_port(host)


def test_a_connection_to_itself_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP connects a socket to itself when the free port that it asks for becomes its own source; that is no server."""
    port = free_port("127.0.0.1")
    loop = socket.socket()
    loop.bind(("127.0.0.1", port))
    loop.connect(("127.0.0.1", port))
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: loop)
    assert not accepts_connections("127.0.0.1", port)
