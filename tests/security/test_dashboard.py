"""The dashboard answers this machine alone: no page of another site reaches it through the user's browser."""

import socket

import pytest

from servebench.report.dashboard.local import is_local
from support.commands import servebench_started
from support.waiting import wait_until


@pytest.mark.parametrize(
    ("host", "origin", "local"),
    [
        ("127.0.0.1:8501", None, True),
        ("localhost:9000", None, True),
        ("[::1]:8501", None, True),
        ("LOCALHOST", None, True),
        ("localhost:8501", "http://localhost:8501", True),
        ("proxy.example", None, True),
        ("proxy.example", "https://proxy.example", True),
        ("localhost:8501", "https://proxy.example", True),
        (None, None, False),
        ("", None, False),
        ("evil.example:8501", None, False),
        ("evil.example:8501", "http://evil.example:8501", False),
        ("localhost.evil.example", None, False),
        ("127.0.0.1.nip.io:8501", None, False),
        ("localhost@evil.example", None, False),
        ("evil.example@localhost", None, False),
        ("localhost:x", None, False),
        ("evil.example#localhost", None, False),
        ("0.0.0.0:8501", None, False),
        ("localhost:8501", "http://evil.example", False),
        ("localhost:8501", "http://localhost:3000", False),
        ("localhost:8501", "http://127.0.0.1:8501", False),
        ("localhost:8501", "null", False),
        ("localhost:8501", "", False),
        ("localhost:8501", "file://localhost:8501", False),
    ],
)
def test_which_requests_are_local(host, origin, local):
    assert is_local(host, origin, frozenset(("proxy.example",))) is local


def status(port, path="/_stcore/health", **headers):
    lines = [f"GET {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            return int(connection.recv(64).split()[1])
    except (OSError, IndexError):
        return None


@pytest.mark.slow
def test_the_dashboard_refuses_foreign_names_and_origins(tmp_path):
    pytest.importorskip("streamlit")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = f"127.0.0.1:{port}"
    socketed = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec_WebSocket_Version": "13",
    }
    with servebench_started(tmp_path, "dashboard", "--port", str(port)):
        wait_until(lambda: status(port, Host=own) == 200)
        for path in ("/", "/_stcore/health", "/_stcore/host-config", "/static/x", "/media/x"):
            assert status(port, path, Host="evil.example") == 403
            assert status(port, path, Host=own, Origin="http://evil.example") == 403
        assert status(port, "/", Host=f"localhost:{port}") == 200
        stream = "/_stcore/stream"
        assert status(port, stream, Host=own, Origin=f"http://{own}", **socketed) == 101
        assert status(port, stream, Host=own, Origin="http://evil.example", **socketed) == 403
        assert (
            status(port, stream, Host=f"evil.example:{port}", Origin=f"http://evil.example:{port}", **socketed) == 403
        )
