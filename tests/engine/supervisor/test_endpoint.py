import json

import httpx
import pytest

from servebench.engine.adapters.openai import OpenAiEngine
from servebench.engine.supervisor.endpoint import generate_token, http_error_reason, served_models, version_of
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
def test_content_is_found_however_the_stream_is_written(lines, size, end):
    body = end.join([*lines, ""]).encode()
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    generate_from(lambda _: httpx.Response(200, content=iter(pieces)))


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ("<html>\n<h1>Log in</h1></html>", r": <html> <h1>Log in</h1></html>$"),
        ('data: {"id": 1}\n\ndata: [DONE]\n\n', r': \{"id": 1\}$'),
        ("", r"empty$"),
        ('data: {"object": "error", "message": "too long"}\n\n', "^http://h/v1/chat/completions .*: too long$"),
    ],
)
def test_an_answer_without_content_is_quoted(body, pattern):
    with pytest.raises(EngineError, match=pattern):
        generate_from(lambda _: httpx.Response(200, text=body))


def generate_from(answer, api="chat"):
    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        return generate_token(http, "http://h/v1", OpenAiEngine(), "m", 5.0, api=api, whole=True) is not None


@pytest.mark.parametrize(("finish", "tokens", "ready"), [("length", 8, True), ("length", 0, False), ("stop", 8, False)])
def test_an_answer_that_is_all_hidden_thinking_shows_a_server_that_generates(finish, tokens, ready):
    """A model may think unseen for longer than the request of the check lets it."""
    end = {"choices": [{"delta": {"content": ""}, "finish_reason": finish}], "usage": {"completion_tokens": tokens}}
    body = f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n"
    if ready:
        assert generate_from(lambda _: httpx.Response(200, text=body))
    else:
        with pytest.raises(EngineError):
            generate_from(lambda _: httpx.Response(200, text=body))


@pytest.mark.parametrize(
    ("api", "document"),
    [
        ("embeddings", {"data": [{"index": 0, "embedding": [0.5]}]}),
        ("rerank", [{"index": 0, "score": 0.5}]),
        ("chat", {"choices": [{"message": {"content": "a"}}]}),
    ],
)
def test_an_answer_in_one_piece_is_over(api, document):
    """It says so with its last byte."""
    assert generate_from(lambda _: httpx.Response(200, json=document), api)


def test_openai_takes_the_question_whether_responses_are_answered():
    """At least 16 tokens, and no temperature for a model that thinks."""

    def answer(request):
        body = json.loads(request.content)
        if body["max_output_tokens"] < 16 or "temperature" in body:
            return httpx.Response(400, text='{"error": "unsupported"}')
        return httpx.Response(200, text='data: {"type": "response.output_text.delta", "delta": "a"}\n\n')

    generate_from(answer, "responses")


def test_how_long_to_wait_is_told():
    with pytest.raises(EngineError, match="Retry-After: 7") as error:
        generate_from(lambda _: httpx.Response(429, headers={"Retry-After": "7"}, text='{"error": "slow down"}'))
    assert error.value.kind == "not_ready"


@pytest.mark.parametrize(
    ("chat", "completions", "kind", "words"),
    [
        (503, 200, "not_ready", "chat/completions .*503: no"),
        (429, 200, "not_ready", "429"),
        (500, 200, "not_ready", "500"),
        (400, 400, "other", "chat/completions .*400: no"),
        (404, 503, "other", "chat/completions .*404: no"),
        (413, 200, "other", "413"),
        (401, 200, "unauthorized", "401"),
        (403, 200, "unauthorized", "403"),
    ],
)
def test_a_rejection_says_whether_it_is_temporary(chat, completions, kind, words):
    """Completions are tried only if chat is missing or unusable; a temporary rejection has the kind `not_ready`."""

    def answer(request):
        status = chat if "chat" in request.url.path else completions
        return httpx.Response(status, text='data: {"choices": [{"text": "a"}]}' if status == 200 else '{"error": "no"}')

    with pytest.raises(EngineError, match=words) as error:
        generate_from(answer)
    assert error.value.kind == kind


@pytest.mark.parametrize(
    ("base_url", "hinted"), [("http://h/v2", True), ("http://h/v1", False), ("http://h/a/v1", False)]
)
def test_a_wrong_path_has_a_hint(base_url, hinted):
    transport = httpx.MockTransport(lambda _: httpx.Response(404, text='{"error": "no"}'))
    with httpx.Client(transport=transport) as http, pytest.raises(EngineError) as error:
        generate_token(http, base_url, OpenAiEngine(), "m", 5.0)
    assert str(error.value).endswith("/v1") == hinted


def test_a_redirect_names_the_address_to_set():
    def answer(request):
        return httpx.Response(307, headers={"Location": "https://other/v1/chat/completions"})

    with pytest.raises(EngineError, match=r"307: redirected to https://other/v1/chat/completions; set launch.base_url"):
        generate_from(answer)


@pytest.mark.parametrize("status", [400, 404, 405, 422, 501])
def test_completions_replace_a_missing_chat_route(status):
    """A model without a chat template, or a server without the route."""

    def answer(request):
        if "chat" in request.url.path:
            return httpx.Response(status, text="{}")
        return httpx.Response(200, text='data: {"choices": [{"text": "a"}]}\n\n')

    generate_from(answer)


def test_a_stream_of_pings_ends_at_the_deadline():
    """A server that sends comments forever does not block the probe."""

    def pings():
        while True:
            yield b": ping\n\n"

    with (
        httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=pings()))) as http,
        pytest.raises(EngineError, match="in time"),
    ):
        generate_token(http, "http://h/v1", OpenAiEngine(), "m", 0.2)


@pytest.mark.parametrize(
    ("status", "body", "models"),
    [
        (200, '{"data": [{"id": "a", "aliases": ["b"]}, {"id": "c"}]}', ["a", "c", "b"]),
        (200, '{"data": [{"id": "a", "aliases": ["a"]}, {"id": "a"}]}', ["a"]),
        (200, '{"data": []}', None),
        (200, '{"data": "x"}', None),
        (200, "<html>", None),
        (200, "[]", None),
        (404, "{}", None),
    ],
)
def test_served_models(status, body, models):
    """Ids and aliases; None if there is no list, or an empty or invalid one."""
    with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(status, text=body))) as http:
        assert served_models(http, "http://h/v1") == models


@pytest.mark.parametrize(
    ("status", "body", "version"),
    [(200, '{"version": "0.33"}', "0.33"), (200, "{}", None), (200, "[]", None), (404, '{"version": "1"}', None)],
)
def test_the_reported_version(fake, status, body, version):
    """None if the server reports none; an engine without a version path is not asked."""
    with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(status, text=body))) as http:
        assert version_of(http, "http://h", fake()) == version
        assert version_of(http, "http://h", OpenAiEngine()) is None


def test_proxies_of_the_environment_are_ignored(monkeypatch):
    """A proxy would be measured together with the engine."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with client(()) as http:
        assert not http.trust_env
        assert not [transport for transport in http._mounts.values() if transport is not None]


def test_a_reason_is_in_words():
    error = httpx.RemoteProtocolError("illegal chunk header: bytearray(b'zz\\r\\n').")
    assert http_error_reason(error) == "illegal chunk header: 'zz\\r\\n'"
