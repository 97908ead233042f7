"""The servers behind an attached server, on real processes and sockets."""

import contextlib
import socket
import subprocess
import sys

import pytest

from servebench.telemetry.machine import Backends, connected_ports

SERVER = """
import socket, sys
out = [socket.create_connection(("127.0.0.1", int(port))) for port in sys.argv[1:]]
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
held = []
while True:
    held.append(server.accept())
"""


@pytest.fixture
def serve():
    """Start a process that listens and has connections to the given ports; returns its pid and port."""
    with contextlib.ExitStack() as stack:

        def start(*ports):
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", SERVER, *map(str, ports)], stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            return process.pid, int(process.stdout.readline())

        yield start


def test_the_engines_behind_a_chain_of_routers_are_found(serve):
    first, second = serve(), serve()
    inner = serve(first[1], second[1])
    front = serve(inner[1])
    alone = serve()
    backends = Backends(front[0])
    assert backends.look(0.0) == {inner[0], first[0], second[0]}
    assert alone[0] not in backends.look(0.0)


def test_clients_are_not_backends(serve):
    front = serve()
    with socket.create_connection(("127.0.0.1", front[1])), socket.create_server(("127.0.0.1", 0)):
        assert connected_ports([front[0]]) == set()
        assert Backends(front[0]).look(0.0) == frozenset()


def test_a_server_that_has_ended_has_none(serve):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert Backends(process.pid).look(0.0) == frozenset()


def test_servebench_itself_is_not_a_backend(serve):
    backend = serve()
    front = serve(backend[1])
    assert Backends(front[0], own=backend[0]).look(0.0) == frozenset()


def test_a_backend_that_is_connected_late_is_found_at_the_next_look(serve):
    front = serve()
    backends = Backends(front[0])
    assert backends.look(0.0) == frozenset()
    assert backends.look(6.0) == frozenset()
    backend = serve()
    backends.front = serve(backend[1])[0]
    assert backends.look(8.0) == frozenset()
    assert backends.look(11.5) == {backend[0]}
