import socket
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from servebench.engine.adapters.openai import OpenAiEngine
from servebench.engine.launchers.attach import AttachLauncher, AttachSettings
from servebench.engine.supervisor.endpoint import failing
from servebench.engine.supervisor.ports import accepts_connections
from servebench.protocol.kinds.table import KINDS, compose
from servebench.testing.server import FakeServer, plain_server
from servebench.util.errors import EngineError
from support.servers import ScriptedServer, refusing_port

KEY = "SERVEBENCH_TEST_KEY"
GATEWAY = {"api-key": "right-secret", "x-team": "bench", "x-pass": "with spaces", "?": "api-version=2024-10-21"}


def settings(base_url, key=None):
    return AttachSettings(name="attach", base_url=base_url, api_key_env=key)


@pytest.fixture
def attach(context_of):
    def start(base_url, key=None, *, engine=None):
        return AttachLauncher().launch(
            engine or OpenAiEngine(), context_of(), settings(base_url, key), log_path=Path("unused"), say=said.append
        )

    said = []
    start.said = said
    return start


def test_a_running_server_is_used_and_left_running(server, attach, fake):
    port = server("--version", "7")
    running = attach(f"http://127.0.0.1:{port}/v1/", engine=fake())
    assert (running.base_url, running.root_url) == (f"http://127.0.0.1:{port}/v1", f"http://127.0.0.1:{port}")
    assert (running.model, running.version, running.pid, running.died()) == ("m", "7", None, None)
    assert not running.stop().stopped
    assert accepts_connections("127.0.0.1", port)


@pytest.mark.parametrize("options", [(), ("--models-at-root",)])
def test_v1_is_appended_to_the_base_url(server, attach, options):
    """If the model list is below `/v1`, also where it is at the root too; the user is informed."""
    port = server(*options)
    assert attach(f"http://127.0.0.1:{port}").base_url == f"http://127.0.0.1:{port}/v1"
    (line,) = attach.said
    assert f"http://127.0.0.1:{port}/v1" in line


def test_an_api_below_another_path(server, attach):
    port = server("--prefix", "/openai")
    assert attach(f"http://127.0.0.1:{port}/openai").base_url.endswith("/openai")


def test_a_refused_connection(attach):
    with refusing_port() as port, pytest.raises(EngineError) as error:
        attach(url := f"http://127.0.0.1:{port}/v1")
    assert error.value.kind == "unreachable"
    assert url in str(error.value)
    assert "connection refused" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_server_that_does_not_speak_http(attach):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"

        def close_first():
            deaf.accept()[0].close()

        threading.Thread(target=close_first).start()
        with pytest.raises(EngineError, match=r"request to launch.base_url=.* failed") as error:
            attach(url)
    assert error.value.kind == "unreachable"


def test_a_model_that_is_not_served(server, attach):
    port = server("--models", "zzz,m-1")
    with pytest.raises(EngineError) as error:
        attach(f"http://127.0.0.1:{port}/v1")
    assert error.value.kind == "wrong_model"
    assert "model.name=m" in str(error.value)
    assert "zzz, m-1" in str(error.value)
    assert str(error.value).startswith(f"launch.base_url=http://127.0.0.1:{port}/v1: ")


@pytest.mark.parametrize(("other", "found"), [(404, True), (200, False)])
def test_a_model_that_is_served_and_not_listed(attach, other, found):
    """Aliases, deployments and tags are in no list. A server that answers for any name does not serve the one."""
    answer = b'data: {"choices": [{"delta": {"content": "yes"}}]}\n\ndata: [DONE]\n\n'

    def script(connection, request):
        if request.method == "GET":
            return 200, {"data": [{"id": "m:latest"}]}
        status = 200 if request.json()["model"] == "m" else other
        return status, answer if status == 200 else {"error": "no such model"}

    with ScriptedServer(script) as server:
        if found:
            assert attach(server.base_url).model == "m"
        else:
            with pytest.raises(EngineError) as error:
                attach(server.base_url)
            assert error.value.kind == "wrong_model"


def test_texts_are_sent_with_the_fields_that_a_server_needs(context_of):
    """NVIDIA's embedding models need an `input_type`."""

    def script(connection, request):
        if request.method == "GET":
            return 404, {}
        if request.json().get("input_type") != "query":
            return 400, {"detail": "'input_type' parameter is required"}
        return 200, {"data": [{"index": 0, "embedding": [0.5]}]}

    with ScriptedServer(script) as server:
        context = replace(context_of(), api="embeddings", body={"input_type": "query"})
        found = AttachLauncher().find(OpenAiEngine(), context, settings(server.base_url), say=lambda _: None)
        assert failing(found, OpenAiEngine(), 5.0, api="embeddings", extra={"input_type": "query"}) is None
        assert found.model == "m"


@pytest.mark.parametrize(
    ("api", "usual", "other", "refusal", "answer"),
    [
        (
            "chat",
            "max_tokens",
            "max_completion_tokens",
            (400, {"error": {"message": "'max_tokens' is not supported. Use 'max_completion_tokens' instead."}}),
            {"choices": [{"message": {"content": ""}, "finish_reason": "length"}], "usage": {"completion_tokens": 256}},
        ),
        (
            "rerank",
            "documents",
            "texts",
            (
                422,
                "Failed to deserialize the JSON body into the target type: missing field `texts` at line 1 column 55",
            ),
            [{"index": 0, "score": 0.5}],
        ),
    ],
)
def test_fields_that_a_server_knows_by_another_name(context_of, api, usual, other, refusal, answer):
    """Models of OpenAI that think, which take no temperature either; Text Embeddings Inference."""

    def script(connection, request):
        if request.method == "GET":
            return 404, {}
        body = request.json()
        return (200, answer) if other in body and body.get("temperature") is None else refusal

    with ScriptedServer(script) as server:
        said = []
        context = replace(context_of(), api=api)
        found = AttachLauncher().find(OpenAiEngine(), context, settings(server.base_url), say=said.append)
        assert failing(found, OpenAiEngine(), 5.0, api=api) is None
        assert found.names == {usual: other}
        assert [other in one and usual in one for one in said] == [True]
        _, body = compose(OpenAiEngine(), KINDS[api].probe, "m", found.names)
        assert usual not in body
        assert body[other] == KINDS[api].body(KINDS[api].probe, "m", OpenAiEngine.dialect)[usual]


@pytest.mark.parametrize(("api", "other"), [("completions", "chat"), ("chat", "completions")])
def test_a_server_without_the_route_of_the_load_says_which_one_to_set(context_of, api, other):
    """Before the run: each of its requests would have failed."""

    def script(connection, request):
        if request.method == "GET" or request.path.endswith("/chat/completions") != (other == "chat"):
            return 404, {}
        return 200, b'data: {"choices": [{"text": "yes", "delta": {"content": "yes"}}]}\n\ndata: [DONE]\n\n'

    with ScriptedServer(script) as server:
        find = partial(AttachLauncher().find, OpenAiEngine(), settings=settings(server.base_url), say=print)
        with pytest.raises(EngineError) as error:
            find(context=replace(context_of(), api=api))
        assert f"set workload.api={other}" in str(error.value)
        assert error.value.kind == "config"
        assert find(context=replace(context_of(), api=other)).base_url == server.base_url


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_may_not_list_models_is_good_for_requests(attach, status):
    """OpenAI's restricted keys."""

    def script(connection, request):
        if request.method == "GET":
            return status, {"error": {"message": "Missing scopes: api.model.read"}}
        return 200, b'data: {"choices": [{"delta": {"content": "yes"}}]}\n\ndata: [DONE]\n\n'

    with ScriptedServer(script) as server:
        assert attach(server.url).base_url == server.base_url


@pytest.mark.parametrize(("host", "named"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_proxy_that_is_not_used_is_named(attach, monkeypatch, host, named):
    """Unless the server is on this machine, where nobody expects a proxy."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    with refusing_port() as port, pytest.raises(EngineError) as error:
        attach(f"http://{host}:{port}/v1")
    assert error.value.kind == "unreachable"
    assert ("HTTPS_PROXY" in str(error.value)) == named


def test_without_a_list_the_generation_decides(server, attach):
    assert attach(f"http://127.0.0.1:{server('--models', '')}/v1").model == "m"
    with pytest.raises(EngineError, match=r"^launch\.base_url=.*/v1/chat/completions.*model\.name"):
        attach(f"http://127.0.0.1:{server('--models', '', '--says', '')}/v1")


def test_a_model_list_that_takes_too_long_is_skipped(attach, monkeypatch):
    """Some gateways query all of their servers for it; the endpoint itself may be fine."""
    monkeypatch.setattr("servebench.engine.launchers.attach.CONNECT_TIMEOUT_S", 0.3)
    answer = b'data: {"choices": [{"delta": {"content": "yes"}}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(answer)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            held = []
            while True:
                try:
                    held.append(listener.accept()[0])
                except OSError:
                    return
                if held[-1].recv(65536).startswith(b"POST"):
                    held[-1].sendall(head + answer)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        assert attach(url).model == "m"
        (line,) = attach.said
        assert line.startswith(f"{url}/models ")

        assert attach(url.removesuffix("/v1")).base_url == url


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", "/v1"])
def test_a_key_is_sent_and_never_shown(server, attach, monkeypatch, suffix):
    """An error about a missing or wrong key names its variable, never its value."""
    url = f"http://127.0.0.1:{server('--key', 'right-secret')}{suffix}"
    with pytest.raises(EngineError, match=r"launch\.api_key_env=") as error:
        attach(url)
    assert error.value.kind == "unauthorized"
    assert str(error.value).count("launch.api_key_env") == 1
    monkeypatch.setenv(KEY, "wrong-secret")
    with pytest.raises(EngineError, match=KEY) as error:
        attach(url, KEY)
    assert "wrong-secret" not in str(error.value)
    monkeypatch.setenv(KEY, "right-secret")
    running = attach(f"{url.removesuffix('/v1')}/v1", KEY)
    assert running.headers == (("Authorization", "Bearer right-secret"),)
    assert "right-secret" not in repr(running)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (None, "launch.base_url=null"),
        ("host:8000/v1", "launch.base_url=host:8000/v1"),
        ("ftp://host/v1", "launch.base_url=ftp://host/v1"),
        ("http://", "launch.base_url=http://"),
        ("http://host:port/v1", "launch.base_url=http://host:port/v1: invalid port"),
        ("http://host:8000/v1?key=1", "query"),
        ("http://host:8000/v1/chat/completions", "/chat/completions,"),
        ("https://host/v1/completions/", " /completions,"),
        ("http://host:8000/v1/models", " /v1/models,"),
    ],
)
def test_an_invalid_base_url(context_of, url, words):
    (problem,) = AttachLauncher().check(OpenAiEngine(), context_of(), settings(url))
    assert words in problem


def test_a_password_in_the_base_url_is_rejected_and_not_repeated(context_of):
    """It would be in every file of the run."""
    (problem,) = AttachLauncher().check(OpenAiEngine(), context_of(), settings("http://me:hunter2@host/v1"))
    assert "hunter2" not in problem


@pytest.mark.parametrize("value", [None, "", "two words", "line\nend", "schl\u00fcssel"])
def test_a_missing_or_invalid_key(context_of, attach, monkeypatch, value):
    """The variable is not set, or no header can hold its value: the error names it without its value."""
    monkeypatch.delenv(KEY, raising=False)
    if value is not None:
        monkeypatch.setenv(KEY, value)
    (problem,) = AttachLauncher().check(OpenAiEngine(), context_of(), settings("http://127.0.0.1:1/v1", KEY))
    assert problem.startswith(f"launch.api_key_env={KEY}: ")
    assert not value or value not in problem
    with pytest.raises(EngineError, match=KEY):
        attach("http://127.0.0.1:1/v1", KEY)


def test_a_valid_base_url(context_of, monkeypatch):
    monkeypatch.setenv(KEY, "sk-1")
    # the last one is that of Azure's model inference API
    for url in (
        "http://host:8000/v1",
        "https://host",
        "http://[::1]:8000/v1",
        "https://a.services.ai.azure.com/models",
    ):
        assert AttachLauncher().check(OpenAiEngine(), context_of(), settings(url, KEY)) == []


@pytest.mark.parametrize("left_out", [None, "api_key_env", "headers", "headers_env", "query"])
def test_a_gateway(context_of, monkeypatch, left_out):
    """Its key in a header of its own, further headers, and a parameter in each URL; without any of them it refuses."""
    monkeypatch.setenv(KEY, "right-secret")
    monkeypatch.setenv("TEST_PASS", "with spaces")
    keys = {
        "api_key_env": KEY, "headers": {"x-team": "bench"}, "headers_env": {"x-pass": "TEST_PASS"},
        "query": {"api-version": "2024-10-21"},
    }  # fmt: skip
    given = {name: value for name, value in keys.items() if name != left_out}
    with FakeServer(replace(plain_server("m"), wanted=GATEWAY)) as server:
        chosen = AttachSettings(name="attach", base_url=server.base_url, api_key_header="api-key", **given)

        def find():
            return AttachLauncher().find(OpenAiEngine(), context_of(), chosen, say=lambda _: None)

        if left_out:
            with pytest.raises(EngineError) as error:
                find()
            assert error.value.kind == "unauthorized"
            return
        running = find()
    assert (running.model, running.query) == ("m", (("api-version", "2024-10-21"),))
    assert dict(running.headers) == {name: value for name, value in GATEWAY.items() if name != "?"}
    assert "right-secret" not in repr(running)


@pytest.mark.parametrize(("value", "faults"), [(None, 1), ("", 1), ("line\nbreak", 1), ("Basic abc", 0)])
def test_variables_of_headers(context_of, monkeypatch, value, faults):
    """Each must hold what a header can hold."""
    monkeypatch.delenv("TEST_PASS", raising=False)
    if value is not None:
        monkeypatch.setenv("TEST_PASS", value)
    chosen = AttachSettings(name="attach", base_url="http://h/v1", headers_env={"x-pass": "TEST_PASS"})
    found = AttachLauncher().check(OpenAiEngine(), context_of(), chosen)
    assert [line.startswith("launch.headers_env.x-pass=TEST_PASS: ") for line in found] == [True] * faults


def test_a_query_has_a_key_of_its_own(context_of):
    chosen = AttachSettings(name="attach", base_url="http://h/v1?api-version=1")
    (fault,) = AttachLauncher().check(OpenAiEngine(), context_of(), chosen)
    assert "launch.query.NAME=VALUE" in fault
