"""Authorities of the user are trusted wherever servebench connects, and no error recommends to verify nothing."""

import asyncio
import ssl
from datetime import UTC, datetime

import httpx
import pytest
import trustme

from servebench.quality.ask import bounded_client as quality_client
from servebench.util.bounded_http import client
from servebench.util.errors import ConfigError
from servebench.util.tls import VARIABLES, tls_context
from support.commands import run_servebench
from support.servers import reply

AUTHORITY = trustme.CA()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def started(serve, *names, **options):
    """Start a server with a certificate for these names, and return its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert(*names, **options).configure_cert(context)
    server = serve(
        lambda connection, _: connection.sendall(reply(200, b"{}")),
        wrap=lambda connection: context.wrap_socket(connection, server_side=True),
    )
    return f"https://127.0.0.1:{server.port}"


@pytest.fixture
def url(serve):
    return started(serve, "127.0.0.1", "localhost")


@pytest.fixture
def ca_file(tmp_path):
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


def get(url, trust=True):
    with client((), verify_tls=trust) as http:
        return http.get(url).status_code


async def get_as_quality(url, trust=True):
    async with quality_client({}, timeout_s=60, verify_tls=trust) as http:
        return (await http.get(url)).status_code


def test_only_who_knows_the_authority_connects(url, ca_file):
    for trust, status in ((ca_file, 200), (False, 200), (True, None)):
        if status is None:
            with pytest.raises(httpx.ConnectError, match="certificate"):
                get(url, trust)
            with pytest.raises(httpx.ConnectError, match="certificate"):
                asyncio.run(get_as_quality(url, trust))
        else:
            assert (get(url, trust), asyncio.run(get_as_quality(url, trust))) == (status, status)


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_the_variables_that_other_tools_know(url, ca_file, monkeypatch, name):
    monkeypatch.setenv(name, ca_file)
    assert (get(url), asyncio.run(get_as_quality(url))) == (200, 200)


def test_another_authority_is_not_enough(url, tmp_path):
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    with pytest.raises(httpx.ConnectError, match="certificate"):
        get(url, str(tmp_path / "other.pem"))


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text("no certificate")])
def test_a_ca_file_that_cannot_be_used_is_one_line(tmp_path, monkeypatch, make):
    make(tmp_path / "ca.pem")
    for trust, named in ((str(tmp_path / "ca.pem"), "ca_file="), (True, "SSL_CERT_FILE=")):
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        with pytest.raises(ConfigError, match=named) as caught:
            tls_context(trust)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_error_of_a_run_names_the_ca_file_and_not_verify_tls(tmp_path, url):
    words = ("launch=attach", f"launch.base_url={url}/v1", "model.name=m", "gpu=none", "tracking=none")
    done = run_servebench(tmp_path, *words, code=4)
    assert "launch.ca_file" in done.stderr
    assert "verify_tls" not in done.stderr
    done = run_servebench(tmp_path, *words, "launch.ca_file=missing.pem", code=2)
    assert "launch.ca_file=missing.pem cannot be read" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (("other.example",), {}, "mismatch"),
        (("127.0.0.1",), {"not_after": datetime(2020, 1, 2, tzinfo=UTC)}, "expired"),
    ],
)
def test_a_certificate_that_no_authority_mends(tmp_path, serve, ca_file, names, options, said):
    """Of a known authority, but for another name or out of date: to name the authority would not help."""
    if options:
        options["not_before"] = datetime(2020, 1, 1, tzinfo=UTC)
    url = started(serve, *names, **options)
    words = ("launch=attach", f"launch.base_url={url}/v1", "model.name=m", "gpu=none", "tracking=none")
    done = run_servebench(tmp_path, *words, f"launch.ca_file={ca_file}", code=4)
    assert said in done.stderr
    assert "launch.ca_file" not in done.stderr
    assert "verify_tls" not in done.stderr
