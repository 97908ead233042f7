"""Connections through TLS."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from datetime import UTC, datetime

import pytest
import trustme

from servebench.contracts.exchange import Target
from support.servers import SSE_HEAD, Abandon, content_event, own_port
from support.streams import answer, body, outcomes, stream


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def tls_server(serve, authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return serve(answer, wrap=lambda connection: context.wrap_socket(connection, server_side=True))


def test_tls_has_kernel_stamps_too(tls_server, run):
    """Stamps belong to the encrypted bytes, the answer is decrypted, and the handshake is part of connecting."""
    target = Target(host="127.0.0.1", port=tls_server.port, tls=True, verify_tls=False)
    report, exchanges = run(tls_server, 10, target=target, padding=200_000)
    assert outcomes(exchanges) == {"complete": 10}
    assert report.stamp_source == "kernel"
    assert {body(exchange) for exchange in exchanges.values()} == {stream()}
    assert exchanges["r0"].connected_ns > exchanges["r0"].connect_started_ns


def test_a_certificate_that_is_not_trusted(tls_server, run):
    """It has its own outcome, and the error gives the reason."""
    target = Target(host="127.0.0.1", port=tls_server.port, tls=True)
    _, exchanges = run(tls_server, 3, target=target)
    assert outcomes(exchanges) == {"tls": 3}
    assert "certificate" in exchanges["r0"].error


@pytest.mark.parametrize("way", ["ca_file", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_an_authority_of_the_user_is_trusted(tls_server, run, authority, tmp_path, monkeypatch, way):
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    if way != "ca_file":
        monkeypatch.setenv(way, str(file))
    target = Target(
        host="127.0.0.1", port=tls_server.port, tls=True, verify_tls=str(file) if way == "ca_file" else True
    )
    _, exchanges = run(tls_server, 3, target=target)
    assert outcomes(exchanges) == {"complete": 3}


def with_version(authority, version):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = version
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return lambda connection: context.wrap_socket(connection, server_side=True)


def unverified(server):
    return Target(host="127.0.0.1", port=server.port, tls=True, verify_tls=False)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_ticket_does_not_end_an_idle_connection(serve, run, authority, version):
    """TLS 1.3 sends tickets after the handshake: connections that wait for a request stay as they are."""
    server = serve(answer, wrap=with_version(authority, version))
    times = [0.1 * index for index in range(20)]
    report, exchanges = run(server, 20, target=unverified(server), concurrency=8, connections=4, at_s=times)
    assert outcomes(exchanges) == {"complete": 20}
    assert report.connections_opened <= 12


def on_the_wire(data):
    """Send bytes that TLS does not know of, then leave the connection open."""

    def end(connection):
        with socket.socket(fileno=os.dup(connection.fileno())) as wire:
            wire.sendall(data)
        raise Abandon

    return end


def cut(connection):
    """Close without close_notify."""
    connection.close()
    raise Abandon


def say_goodbye(connection):
    """An event and close_notify at once; the TCP connection stays open."""
    connection.settimeout(0)
    connection.sendall(content_event("b "))
    with contextlib.suppress(OSError):
        connection.unwrap()
    raise Abandon


ENDS = {
    "cut": (cut, {"closed"}),
    "close_notify": (say_goodbye, {"closed"}),
    "garbage": (on_the_wire(b"\x99garbage" * 10), {"tls"}),
    "forged": (on_the_wire(b"\x17\x03\x03\x00\x20" + bytes(32)), {"tls"}),
    "huge": (on_the_wire(b"\x17\x03\x03\xff\xff" + bytes(70_000)), {"tls"}),
    "plain alert": (on_the_wire(b"\x15\x03\x03\x00\x02\x02\x28"), {"tls"}),
    "plain http": (on_the_wire(b"HTTP/1.1 500 Error\r\n\r\n"), {"tls"}),
    "empty records": (on_the_wire(b"\x17\x03\x03\x00\x00" * 1000), {"tls"}),
    "change cipher spec": (on_the_wire(b"\x14\x03\x03\x00\x01\x01" * 1000), {"tls"}),
}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("end", ENDS)
def test_how_tls_can_end_in_an_answer(serve, run, authority, end, version):
    """Each request has its own outcome long before it is late, and what had arrived is kept."""
    harm, expected = ENDS[end]

    def script(connection, _):
        connection.sendall(SSE_HEAD + content_event("a "))
        time.sleep(0.1)
        harm(connection)

    server = serve(script, wrap=with_version(authority, version))
    _, exchanges = run(server, 3, target=unverified(server), timeout_s=60.0)
    assert set(outcomes(exchanges)) == expected
    assert all(b"a " in body(exchange) for exchange in exchanges.values())
    assert not any("ssl.c" in exchange.error for exchange in exchanges.values())


def hang(connection):
    connection.recv(1 << 16)
    raise Abandon


def refuse(connection):
    connection.recv(1 << 16)
    cut(connection)


def flood(connection):
    connection.recv(1 << 16)
    for _ in range(10_000):
        connection.sendall(b"\x14\x03\x03\x00\x01\x01" * 1000)


def speak_http(connection):
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    raise Abandon


@pytest.mark.parametrize("shake", [hang, refuse, flood, speak_http])
def test_a_handshake_that_does_not_end(serve, run, shake):
    server = serve(answer, wrap=shake)
    _, exchanges = run(server, 3, target=unverified(server))
    assert set(outcomes(exchanges)) <= {"tls", "refused", "reset"}
    assert all(exchange.error.startswith("cannot connect: ") for exchange in exchanges.values())


def test_certificates_that_fit_less_and_less(serve, run, authority, tmp_path):
    """The certificate changes while load runs: connections that are open go on, new ones fail by name."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    past = {"not_before": datetime(2019, 1, 1, tzinfo=UTC), "not_after": datetime(2020, 1, 1, tzinfo=UTC)}
    makers = [
        authority.issue_cert("127.0.0.1"),
        authority.issue_cert("127.0.0.1", **past),
        authority.issue_cert("example.org"),
        trustme.CA().issue_cert("127.0.0.1"),
    ]
    served = iter([makers[0], *makers])

    def wrap(connection):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        next(served, makers[-1]).configure_cert(context)
        return context.wrap_socket(connection, server_side=True)

    def one_answer(connection, _):
        answer(connection, _)
        return False

    server = serve(one_answer, wrap=wrap)
    target = Target(host="127.0.0.1", port=server.port, tls=True, verify_tls=str(tmp_path / "ca.pem"))
    _, exchanges = run(server, 5, target=target, concurrency=1)
    assert set(outcomes(exchanges)) == {"complete", "tls"}
    reasons = " ".join(exchange.error or "" for exchange in exchanges.values())
    assert all(reason in reasons for reason in ("expired", "mismatch", "local issuer")), reasons


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, whose server renegotiates")
def test_a_server_that_wants_to_renegotiate(run, authority, tmp_path):
    """TLS 1.2 lets a server ask for a new handshake at any time; it is declined, and requests go on or end by name."""
    pem, port = tmp_path / "server.pem", own_port()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    command = ["openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-cert", pem, "-key", pem, "-tls1_2"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, bufsize=0, **pipes) as server:

        def serve():
            with contextlib.suppress(OSError, ValueError):
                for line in server.stdout:
                    if line == b"\r\n":
                        server.stdin.write(stream())
                        time.sleep(0.02)
                        # at the start of a line this is a command: ask for a new handshake
                        server.stdin.write(b"r\n")

        try:
            assert server.stdout.readline()
            threading.Thread(target=serve, daemon=True).start()
            target = Target(host="127.0.0.1", port=port, tls=True, verify_tls=False)
            _, exchanges = run(None, 8, target=target, concurrency=1, timeout_s=2.0)
        finally:
            server.kill()
    assert len(exchanges) == 8
    assert outcomes(exchanges)["complete"] >= 1
