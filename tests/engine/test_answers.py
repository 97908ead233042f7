from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from servebench.contracts.engine import Engine
from servebench.engine.adapters.openai import OpenAiEngine
from servebench.engine.supervisor.answers import generate, served_models, version_of
from servebench.util.bounded_http import client
from servebench.util.errors import EngineError


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    "lines",
    [
        ["data: {", 'data:  "choices": [', 'data:   {"text": "a"}]', "data: }", ""],
        [": hello", "event: message", "id: 1", 'data:{"choices": [{"text": "a"}]}', ""],
        ["data: [1]", "", 'data: {"choices": [{"text": "a"}]}'],
        ['{"choices": [', '  {"message": {"content": "a"}}', "]}"],
    ],
    ids=["several-lines", "fields", "no-end", "not-streamed"],
)
def test_content_is_found_however_the_stream_is_written(lines: list[str], size: int, end: str) -> None:
    body = end.join([*lines, ""]).encode()
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    ask(lambda _: httpx.Response(200, content=iter(pieces)))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "<html>\n<h1>Log in</h1></html>",
            r"generating anything; its answer begins with: <html> <h1>Log in</h1></html>$",
        ),
        ('data: {"id": 1}\n\ndata: [DONE]\n\n', r'begins with: \{"id": 1\}$'),
        ("", r"generating anything; its answer is empty$"),
        (
            'data: {"object": "error", "message": "too long"}\n\n',
            "^http://h/v1/chat/completions answers with an error: too long$",
        ),
    ],
)
def test_an_answer_without_content_is_quoted(body: str, told: str) -> None:
    with pytest.raises(EngineError, match=told):
        ask(lambda _: httpx.Response(200, text=body))


def ask(answer: Callable[[httpx.Request], httpx.Response]) -> None:
    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        generate(http, "http://h/v1", OpenAiEngine(), "m", 5.0)


@pytest.mark.parametrize(
    ("chat", "completions", "kind", "words"),
    [
        (503, 200, "not_ready", "chat/completions answers 503: no"),
        (429, 200, "not_ready", "answers 429"),
        (500, 200, "not_ready", "answers 500"),
        (400, 400, "other", "chat/completions answers 400: no"),
        (404, 503, "other", "chat/completions answers 404: no"),
        (413, 200, "other", "answers 413"),
        (401, 200, "unauthorized", "401"),
        (403, 200, "unauthorized", "403"),
    ],
)
def test_a_refusal_says_whether_it_may_pass(chat: int, completions: int, kind: str, words: str) -> None:
    """Only a missing or unusable chat route is made good by completions; what may pass is `not_ready`."""

    def answer(request: httpx.Request) -> httpx.Response:
        status = chat if "chat" in request.url.path else completions
        return httpx.Response(status, text='data: {"choices": [{"text": "a"}]}' if status == 200 else '{"error": "no"}')

    with pytest.raises(EngineError, match=words) as error:
        ask(answer)
    assert error.value.kind == kind


@pytest.mark.parametrize("status", [400, 404, 405, 422, 501])
def test_completions_do_where_chat_does_not(status: int) -> None:
    """A model without a chat template, or a server without the route."""

    def answer(request: httpx.Request) -> httpx.Response:
        if "chat" in request.url.path:
            return httpx.Response(status, text="{}")
        return httpx.Response(200, text='data: {"choices": [{"text": "a"}]}\n\n')

    ask(answer)


def test_a_stream_of_pings_ends_at_the_deadline() -> None:
    """A server that sends comments for ever does not hold us for ever."""

    def pings() -> Any:
        while True:
            yield b": ping\n\n"

    with (
        httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=pings()))) as http,
        pytest.raises(EngineError, match=r"nothing generated in time"),
    ):
        generate(http, "http://h/v1", OpenAiEngine(), "m", 0.2)


@pytest.mark.parametrize(
    ("status", "body", "models"),
    [
        (200, '{"data": [{"id": "a", "aliases": ["b"]}, {"id": "c"}]}', ["a", "c", "b"]),
        (200, '{"data": []}', None),
        (200, '{"data": "x"}', None),
        (200, "<html>", None),
        (200, "[]", None),
        (404, "{}", None),
    ],
)
def test_served_models(status: int, body: str, models: list[str] | None) -> None:
    """Ids and aliases; None for no list, an empty one, or one that is none."""
    with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(status, text=body))) as http:
        assert served_models(http, "http://h/v1") == models


@pytest.mark.parametrize(
    ("status", "body", "version"),
    [(200, '{"version": "0.33"}', "0.33"), (200, "{}", None), (200, "[]", None), (404, '{"version": "1"}', None)],
)
def test_the_version_that_a_server_tells(
    fake: Callable[[], Engine], status: int, body: str, version: str | None
) -> None:
    """None for what tells none; an engine without such a path is not asked."""
    with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(status, text=body))) as http:
        assert version_of(http, "http://h", fake()) == version
        assert version_of(http, "http://h", OpenAiEngine()) is None


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine is measured directly: a proxy would be measured with it."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with client(()) as http:
        assert not http.trust_env
        assert not [transport for transport in http._mounts.values() if transport is not None]
