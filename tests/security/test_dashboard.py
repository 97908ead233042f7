"""The dashboard answers its user alone: no other user of the machine, and no page of another site through the user's browser."""

import re
import socket
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest

from servebench.report.dashboard.local import Door, is_local
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
    assert is_local(host, origin) is local


DOOR = Door("t" * 43, 8501)
NAME, COOKIE = DOOR.cookie
HOST = (b"host", b"localhost:8501")


@pytest.mark.parametrize(
    ("headers", "query", "found"),
    [
        ([HOST], "", "refused"),
        ([HOST], f"token={DOOR.token}", "token"),
        ([HOST], f"view=Study&token={DOOR.token}", "token"),
        ([HOST], "token=", "refused"),
        ([HOST], "token", "refused"),
        ([HOST], f"token={DOOR.token}x", "refused"),
        ([HOST], f"token={DOOR.token[:-1]}", "refused"),
        ([HOST], f"token={COOKIE}", "refused"),
        ([HOST], "token=%ff%00é", "refused"),
        ([HOST], f"Token={DOOR.token}", "refused"),
        ([HOST, (b"cookie", f"{NAME}={COOKIE}".encode())], "", "in"),
        ([HOST, (b"Cookie", f"a=b; {NAME}={COOKIE}; _x=\xff".encode("latin-1"))], "token=wrong", "in"),
        ([HOST, (b"cookie", f"{NAME}=; {NAME}={COOKIE}".encode())], "", "in"),
        ([HOST, (b"cookie", f"{NAME}={DOOR.token}".encode())], "", "refused"),
        ([HOST, (b"cookie", f"servebench-8502={COOKIE}".encode())], "", "refused"),
        ([HOST, (b"cookie", f"{NAME}=".encode())], "", "refused"),
        ([(b"host", b"evil.example"), (b"cookie", f"{NAME}={COOKIE}".encode())], f"token={DOOR.token}", "refused"),
        ([HOST, HOST, (b"cookie", f"{NAME}={COOKIE}".encode())], "", "refused"),
        ([(b"cookie", f"{NAME}={COOKIE}".encode())], "", "refused"),
    ],
)
def test_who_comes_in(headers, query, found):
    assert DOOR.asks(headers, query.encode()) == found


def test_each_start_has_another_token_and_no_cookie_tells_it():
    assert Door("u" * 43, 8501).cookie[1] != COOKIE
    assert DOOR.token not in COOKIE


def answer(port, path, **headers):
    """Return the status and the headers of an answer; none where nobody listens."""
    lines = [f"GET {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            head = connection.recv(65536).split(b"\r\n\r\n")[0].decode().splitlines()
            return int(head[0].split()[1]), dict(line.lower().split(": ", 1) for line in head[1:])
    except (OSError, IndexError):
        return None, {}


def status(port, path, **headers):
    return answer(port, path, **headers)[0]


@pytest.mark.slow
def test_the_dashboard_answers_who_has_its_token_from_its_own_pages(tmp_path):
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
    paths = ("/", "/_stcore/health", "/_stcore/host-config", "/static/x", "/media/x", "/_stcore/stream")
    with servebench_started(tmp_path, "dashboard", "--port", str(port)) as process:
        url = urlsplit(re.search(r"http://\S+", process.stderr.readline())[0].rstrip(";"))
        assert url.netloc == own
        wait_until(lambda: status(port, "/", Host=own))
        words = " ".join(psutil.Process(process.pid).cmdline())
        (token,) = parse_qs(url.query)["token"]
        assert len(token) > 40
        assert token not in words
        for path in paths:
            assert status(port, path, Host=own) == 403
            assert status(port, path, Host=own, Cookie=f"servebench-{port}={token}") == 403
        code, found = answer(port, f"/?view=Study&{url.query}", Host=own)
        assert (code, found["location"], found["referrer-policy"]) == (303, "?view=study", "no-referrer")
        assert {"httponly", "samesite=lax"} <= set(found["set-cookie"].split("; "))
        shown = {"Cookie": found["set-cookie"].split(";")[0]}
        assert answer(port, f"//evil.example/?{url.query}", Host=own)[1]["location"] == "./"
        for path in paths[:2]:
            assert status(port, path, Host=own, **shown) == 200
            assert status(port, path, Host=f"localhost:{port}", **shown) == 200
        for path in paths:
            assert status(port, path, Host="evil.example", **shown) == 403
            assert status(port, f"{path}?{url.query}", Host="evil.example") == 403
            assert status(port, path, Host=own, Origin="http://evil.example", **shown) == 403
        stream, origin = paths[-1], f"http://{own}"
        assert status(port, stream, Host=own, Origin=origin, **socketed) == 403
        assert status(port, f"{stream}?{url.query}", Host=own, Origin=origin, **socketed) == 403
        assert status(port, stream, Host=own, Origin=origin, **socketed, **shown) == 101
        assert status(port, stream, Host=own, Origin="http://evil.example", **socketed, **shown) == 403
        evil = f"evil.example:{port}"
        assert status(port, stream, Host=evil, Origin=f"http://{evil}", **socketed, **shown) == 403
        process.terminate()
        out, err = process.communicate(timeout=300)
        assert token not in out + err
