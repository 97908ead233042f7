from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from servebench.contracts.engine import Engine, LaunchContext, RunningEngine
from servebench.engine.adapters.openai import OpenAiEngine
from servebench.engine.launchers.attach import AttachLauncher, AttachSettings
from servebench.engine.supervisor.ports import accepts_connections, free_port
from servebench.util.errors import EngineError

Server = Callable[..., int]
ContextOf = Callable[..., LaunchContext]
Attach = Callable[..., RunningEngine]

KEY = "SERVEBENCH_TEST_KEY"


def settings(base_url: str | None, key: str | None = None) -> AttachSettings:
    return AttachSettings(name="attach", base_url=base_url, api_key_env=key)


@pytest.fixture
def attach(context_of: ContextOf) -> Attach:
    def start(base_url: str, key: str | None = None, *, engine: Engine | None = None) -> RunningEngine:
        return AttachLauncher().launch(
            engine or OpenAiEngine(),
            context_of(),
            settings(base_url, key),
            log_path=Path("unused"),
            say=said.append,
        )

    said: list[str] = []
    start.said = said  # type: ignore[attr-defined]
    return start


def test_a_server_of_somebody_else_is_measured_and_left_alone(
    server: Server, attach: Attach, fake: Callable[[], Engine]
) -> None:
    """It is reached, asked for its version, and goes on after `stop`."""
    port = server("--version", "7")
    running = attach(f"http://127.0.0.1:{port}/v1/", engine=fake())
    assert (running.base_url, running.root_url) == (f"http://127.0.0.1:{port}/v1", f"http://127.0.0.1:{port}")
    assert (running.model, running.version, running.pid, running.died()) == ("m", "7", None, None)
    assert not running.stop().stopped
    assert accepts_connections("127.0.0.1", port)


def test_a_base_url_without_v1_is_mended_and_told(server: Server, attach: Attach) -> None:
    """404 below the given address and a model list below `/v1`: the latter is used, and the user is told."""
    port = server()
    assert attach(f"http://127.0.0.1:{port}").base_url == f"http://127.0.0.1:{port}/v1"
    assert attach.said == [f"launch.base_url: using http://127.0.0.1:{port}/v1, where the API is"]  # type: ignore[attr-defined]


def test_an_api_elsewhere_is_used_as_given(server: Server, attach: Attach) -> None:
    """A gateway may have the API below another path."""
    port = server("--prefix", "/openai")
    assert attach(f"http://127.0.0.1:{port}/openai").base_url.endswith("/openai")


def test_nobody_there_is_told_in_a_moment(attach: Attach) -> None:
    """A refused connection: one line with the address and the reason, at once."""
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}/v1"
    began = time.monotonic()
    with pytest.raises(EngineError) as error:
        attach(url)
    assert time.monotonic() - began < 2
    assert error.value.kind == "unreachable"
    assert url in str(error.value)
    assert "connection refused" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_server_that_speaks_no_http(attach: Attach) -> None:
    """It accepts and closes: one line all the same."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"

        def close_first() -> None:
            deaf.accept()[0].close()

        threading.Thread(target=close_first).start()
        with pytest.raises(EngineError, match=r"cannot reach launch.base_url=") as error:
            attach(url)
    assert error.value.kind == "unreachable"


def test_a_model_that_is_not_served(server: Server, attach: Attach) -> None:
    """What is served is named, the nearest name first."""
    port = server("--models", "zzz,m-1")
    with pytest.raises(EngineError) as error:
        attach(f"http://127.0.0.1:{port}/v1")
    assert error.value.kind == "wrong_model"
    assert "model.name=m is not served" in str(error.value)
    assert "zzz, m-1" in str(error.value)


def test_without_a_list_the_generation_decides(server: Server, attach: Attach) -> None:
    """A server without a model list is used when it generates, and refused when it does not."""
    assert attach(f"http://127.0.0.1:{server('--models', '')}/v1").model == "m"
    with pytest.raises(EngineError, match=r"answered without generating anything"):
        attach(f"http://127.0.0.1:{server('--models', '', '--says', '')}/v1")


def test_a_list_that_takes_too_long_is_done_without(attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some gateways ask all of their servers for it; that it takes long says nothing of the endpoint."""
    monkeypatch.setattr("servebench.engine.launchers.attach.CONNECT_TIMEOUT_S", 0.3)
    answer = b'data: {"choices": [{"delta": {"content": "yes"}}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(answer)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
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
        assert attach.said == [f"{url}/models gives no list of models within 0.3 s; going on without"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("suffix", ["", "/v1"])
def test_a_key_is_sent_and_never_told(
    server: Server, attach: Attach, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """The right key opens; none or a wrong one is told by the variable's name, never by its value."""
    url = f"http://127.0.0.1:{server('--key', 'right-secret')}{suffix}"
    with pytest.raises(EngineError, match=r"export a key and name its variable with launch.api_key_env=") as error:
        attach(url)
    assert error.value.kind == "unauthorized"
    monkeypatch.setenv(KEY, "wrong-secret")
    with pytest.raises(EngineError, match=rf"the key in {KEY} is not accepted") as error:
        attach(url, KEY)
    assert "wrong-secret" not in str(error.value)
    monkeypatch.setenv(KEY, "right-secret")
    running = attach(f"{url.removesuffix('/v1')}/v1", KEY)
    assert running.headers == (("Authorization", "Bearer right-secret"),)
    assert "right-secret" not in repr(running)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (None, "launch.base_url=null: give the server's address"),
        ("host:8000/v1", "launch.base_url=host:8000/v1: give"),
        ("ftp://host/v1", "launch.base_url=ftp://host/v1: give"),
        ("http://", "launch.base_url=http://: give"),
        ("http://host:port/v1", "launch.base_url=http://host:port/v1: invalid port"),
        ("http://host:8000/v1?key=1", "ends in a query"),
        ("http://host:8000/v1/chat/completions", "it ends in /chat/completions, which is added to it; give"),
        ("https://host/v1/completions/", "it ends in /completions, which is added to it; give"),
        ("http://host:8000/v1/models", "it ends in /models, which is added to it; give"),
    ],
)
def test_an_address_that_is_none(context_of: ContextOf, url: str | None, words: str) -> None:
    """Each is one fault, before anything is tried."""
    (fault,) = AttachLauncher().check(OpenAiEngine(), context_of(), settings(url))
    assert words in fault


def test_a_password_in_the_address_is_refused_and_not_repeated(context_of: ContextOf) -> None:
    """It would stand in every file of the run."""
    (fault,) = AttachLauncher().check(OpenAiEngine(), context_of(), settings("http://me:hunter2@host/v1"))
    assert "hunter2" not in fault


@pytest.mark.parametrize("value", [None, "", "two words", "line\nend", "schl\u00fcssel"])
def test_a_key_that_cannot_be_sent(
    context_of: ContextOf, attach: Attach, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """A variable that is not set, or whose value no header can hold: named without its value."""
    monkeypatch.delenv(KEY, raising=False)
    if value is not None:
        monkeypatch.setenv(KEY, value)
    (fault,) = AttachLauncher().check(OpenAiEngine(), context_of(), settings("http://127.0.0.1:1/v1", KEY))
    assert fault.startswith(f"launch.api_key_env={KEY}: ")
    assert not value or value not in fault
    with pytest.raises(EngineError, match=KEY):
        attach("http://127.0.0.1:1/v1", KEY)


def test_a_good_address_has_no_fault(context_of: ContextOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key that is set, too."""
    monkeypatch.setenv(KEY, "sk-1")
    for url in ("http://host:8000/v1", "https://host", "http://[::1]:8000/v1"):
        assert AttachLauncher().check(OpenAiEngine(), context_of(), settings(url, KEY)) == []
