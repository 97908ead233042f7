"""Authorities of the user are trusted where the judge is called."""

import ssl

import pytest
import trustme

from servebench_graders.judge import JudgeEndpoint, JudgeScorer, JudgeSettings
from servebench_graders.judge_client import Call, call_all
from support.servers import reply

AUTHORITY = trustme.CA()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def url(serve):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    server = serve(
        lambda connection, _: connection.sendall(reply(200, b"{}")),
        wrap=lambda connection: context.wrap_socket(connection, server_side=True),
    )
    return f"https://127.0.0.1:{server.port}"


@pytest.fixture
def ca_file(tmp_path):
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


def test_a_judge_is_called_with_its_authority(url, ca_file):
    """The server answers `{}`, which is no verdict: without the authority it is not even asked."""
    call = {
        "base_url": url,
        "model": "m",
        "key": None,
        "concurrency": 1,
        "timeout_s": 10,
        "give_up_after": 1,
        "max_tokens": 5,
    }
    (known,), (unknown,) = call_all(["?"], Call(**call, ca_file=ca_file)), call_all(["?"], Call(**call))
    assert (known.outcome, unknown.outcome) == ("protocol", "refused")
    assert "certificate" in unknown.error


def test_a_judge_with_an_unusable_authority_is_refused_before_the_load():
    judge = JudgeEndpoint(base_url="https://127.0.0.1:9/v1", model="m", ca_file="missing.pem")
    assert any(
        "quality.judge.ca_file=missing.pem" in fault
        for fault in JudgeScorer(JudgeSettings(name="judge", judge=judge)).check()
    )
