"""Connections through TLS."""

from __future__ import annotations

import ssl

import pytest
import trustme

from servebench.contracts.exchange import Target
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
