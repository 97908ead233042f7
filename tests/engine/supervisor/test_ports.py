import os
import socket

import pytest

from servebench.engine.supervisor.ports import (
    accepts_connections,
    describe_owner,
    free_port,
    is_held_by,
    port_problem,
)
from servebench.util.errors import EngineError


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_free_port_can_be_bound(host):
    port = free_port(host)
    assert port_problem(host, port) is None
    assert not accepts_connections("127.0.0.1", port)
    assert (describe_owner(port), is_held_by([os.getpid()], port)) == ("", None)
    socket.create_server((host, port)).close()


@pytest.mark.parametrize("used_at", ["127.0.0.1", "0.0.0.0"])
def test_a_used_port_is_reported_with_its_owner(used_at):
    with socket.create_server((used_at, 0)) as taken:
        port = taken.getsockname()[1]
        problem = port_problem("127.0.0.1", port)
        assert problem.kind == "port_in_use"
        for part in (f"engine.port={port}", f"127.0.0.1:{port}", f"pid {os.getpid()} ("):
            assert part in str(problem)
        assert accepts_connections("127.0.0.1", port)
        assert is_held_by([os.getpid()], port) is True
        assert is_held_by([os.getppid()], port) in (False, None)
        assert is_held_by([], port) is False


def test_a_port_of_ended_connections_is_free():
    """TIME_WAIT does not count: an engine may be restarted on its old port at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first keeps the TIME_WAIT
        client.close()
    assert is_held_by([os.getpid()], port) is None
    assert port_problem("127.0.0.1", port) is None


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_a_host_of_another_machine(host):
    problem = port_problem(host, 8000)
    assert problem.kind == "other"
    assert str(problem).startswith(f"engine.host={host}: ")
    with pytest.raises(EngineError, match=f"engine.host={host}"):
        free_port(host)


def test_a_connection_to_itself_is_no_server(monkeypatch):
    """TCP connects a socket to itself if the free port happens to be chosen as its source port."""
    port = free_port("127.0.0.1")
    loop = socket.socket()
    loop.bind(("127.0.0.1", port))
    loop.connect(("127.0.0.1", port))
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: loop)
    assert not accepts_connections("127.0.0.1", port)
