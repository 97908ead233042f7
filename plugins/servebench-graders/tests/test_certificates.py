"""Authorities of the user are trusted where the judge is called."""

import ssl

import pytest
import trustme

from servebench.plugin import Item, ItemAnswer
from servebench_graders.judge import JudgeEndpoint, JudgeScorer, JudgeSettings
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
    item = Item(item_id="x", prompt="?", expected="", max_tokens=5)
    found = {}
    for name in (ca_file, None):
        judge = JudgeEndpoint(base_url=url, model="m", ca_file=name, timeout_s=60)
        grade = JudgeScorer(JudgeSettings(name="judge", judge=judge)).grade(item, ItemAnswer(item_id="x", text="y"))
        found[name] = grade.detail["judge_outcome"]
    assert found == {ca_file: "protocol", None: "refused"}
    assert "certificate" in grade.note


def test_a_judge_with_an_unusable_authority_is_refused_before_the_load():
    judge = JudgeEndpoint(base_url="https://127.0.0.1:9/v1", model="m", ca_file="missing.pem")
    assert any(
        "quality.judge.ca_file=missing.pem" in fault
        for fault in JudgeScorer(JudgeSettings(name="judge", judge=judge)).check()
    )
