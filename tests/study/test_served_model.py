import ssl

import pytest
import trustme

from servebench.study.served_model import with_served_model
from servebench.util.errors import ConfigError
from support.servers import ScriptedServer, refusing_port

ONE = {"data": [{"id": "org/mine:1b", "aliases": ["mine"]}]}


def _lists(models, path="/v1/models", **options):
    return ScriptedServer(lambda _, request: (200, models) if request.path == path else (404, {}), **options)


@pytest.mark.parametrize("path", ["", "/v1", "/v1/"])
def test_the_only_model_is_taken(path):
    with _lists(ONE) as server:
        word = f"endpoint={server.url}{path}"
        assert with_served_model([word]) == [word, 'model.name="org/mine:1b"']


@pytest.mark.parametrize(
    "more", [("model=qwen2.5-7b-instruct",), ("model.name=x",), ("model.path=x",), ("experiment=mine",)]
)
def test_a_named_model_stays(more):
    with _lists(ONE) as server:
        words = [f"endpoint={server.url}", *more]
        assert with_served_model(words) == words
        assert not server.requests


def test_several_models_are_not_guessed():
    with _lists({"data": [{"id": "a"}, {"id": "b"}]}) as server, pytest.raises(ConfigError, match=r"model\.name=a"):
        with_served_model([f"endpoint={server.url}"])


def test_what_cannot_be_asked_is_left_to_the_checks():
    with refusing_port() as port:
        words = [f"endpoint=127.0.0.1:{port}"]
        assert with_served_model(words) == words
    assert with_served_model(["endpoint=a:1,b:2"]) == ["endpoint=a:1,b:2"]
    assert with_served_model(["engine=vllm"]) == ["engine=vllm"]


def test_the_key_is_sent(monkeypatch):
    monkeypatch.setenv("MY_KEY", "k-1")
    with _lists(ONE) as server:
        with_served_model([f"endpoint={server.url}", "launch.api_key_env=MY_KEY"])
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer k-1"}


def test_the_key_is_sent_in_its_header(monkeypatch):
    monkeypatch.setenv("MY_KEY", "k-1")
    with _lists(ONE) as server:
        with_served_model([f"endpoint={server.url}", "launch.api_key_env=MY_KEY", "launch.api_key_header=x-key"])
        assert {(one.headers.get("x-key"), one.headers.get("authorization")) for one in server.requests} == {
            ("k-1", None)
        }


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("trusted", ["ca_file", "verify_tls", None, "a file that is not there"])
def test_a_server_with_a_certificate_of_its_own(tmp_path, trusted):
    authority, file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    words = {"ca_file": [f"launch.ca_file={file}"], "verify_tls": ["launch.verify_tls=False"], None: []}.get(
        trusted, [f"launch.ca_file={tmp_path / 'none.pem'}"]
    )
    with _lists(ONE, wrap=lambda one: context.wrap_socket(one, server_side=True)) as server:
        found = with_served_model([f"endpoint=https://127.0.0.1:{server.port}/v1", *words])
    assert ('model.name="org/mine:1b"' in found) == (trusted in ("ca_file", "verify_tls"))
