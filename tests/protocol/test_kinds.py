"""The kinds of requests: how each is sent, and how a whole answer of it is read."""

import json

import pytest

from servebench.contracts.engine import Dialect, Engine
from servebench.contracts.request import Message, Request
from servebench.protocol.kinds.table import KINDS, api_problems, compose, kind_named, kind_of
from servebench.util.errors import ConfigError

CHAT, COMPLETIONS = KINDS["chat"], KINDS["completions"]


class Renaming(Engine):
    """An engine with a route and a field of its own."""

    dialect = Dialect(paths={"chat": "/talk"}, takes_seed=False)

    def adapt_body(self, body, request):
        limit = body.pop("max_tokens")
        return {**body, "limit": limit}


def test_a_request_is_composed_by_its_kind_the_dialect_and_the_engine():
    path, body = compose(Renaming(), CHAT.request("Hi", "r", output_tokens=3, seed=1), "m")
    assert path == "/talk"
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert (body["limit"], body["stream"]) == (3, True)
    assert not {"max_tokens", "seed"} & set(body)
    path, body = compose(Engine(), COMPLETIONS.request("Hi", "r", seed=1), "m")
    assert (path, body["prompt"], body["seed"]) == ("/completions", "Hi", 1)
    assert "stream" not in COMPLETIONS.body(COMPLETIONS.request("Hi", "r"), "m", Dialect(), streamed=False)


@pytest.mark.parametrize("name", ["chat", "completions", "responses", "messages"])
def test_a_temperature_is_left_to_the_server(name):
    """OpenAI's models that think reject any."""
    kind = KINDS[name]
    assert kind.body(kind.request("Hi", "r"), "m", Dialect())["temperature"] == 0
    assert "temperature" not in kind.body(kind.request("Hi", "r", temperature=None), "m", Dialect())


def test_the_kind_of_a_request_is_named_or_follows_from_its_prompt():
    assert kind_of(Request(request_id="r", messages=(Message("user", "Hi"),))) is CHAT
    assert kind_of(Request(request_id="r", prompt="Hi")) is COMPLETIONS
    assert kind_of(Request(request_id="r", prompt="Hi", api="chat")) is CHAT
    with pytest.raises(ConfigError):
        kind_named("cat")
    assert (api_problems("k", "chat"), len(api_problems("k", "cat"))) == ([], 1)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_a_probe_of_its_own_and_known_substitutes(name):
    kind = KINDS[name]
    assert kind_of(kind.probe) is kind
    assert set(kind.probe_instead) <= set(KINDS) - {name}


def whole(**choice):
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}).encode()


def test_a_whole_answer_is_read_like_a_streamed_one():
    answer = CHAT.read_whole(whole(message={"content": "Yes"}, finish_reason="stop"))
    assert (answer.text, answer.finish_reason, answer.prompt_tokens, answer.output_tokens) == ("Yes", "stop", 4, 2)
    told = {"tokens": ["Y", "es"], "token_logprobs": [-0.5, -1]}
    answer = COMPLETIONS.read_whole(whole(text="Yes", logprobs=told))
    assert (answer.text, answer.tokens, answer.logprobs) == ("Yes", ["Y", "es"], [-0.5, -1.0])


@pytest.mark.parametrize(
    "data",
    [b"<html>", b"[1]", b"{}", b'{"choices": []}', whole(text="Yes"), whole(message={"content": 1}), whole(message=[])],
)
def test_what_is_no_answer_of_the_kind_is_an_error(data):
    with pytest.raises(ValueError, match="it"):
        CHAT.read_whole(data)


def test_an_answer_that_its_server_gave_up_is_no_answer():
    """Nothing of it may be graded."""
    for reason in ("abort", "error"):
        with pytest.raises(ValueError, match=reason):
            CHAT.read_whole(whole(message={"content": "Ye"}, finish_reason=reason))


def test_the_arguments_of_a_call_may_be_an_object():
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    assert CHAT.read_whole(whole(message={"content": None, "tool_calls": [call]})).calls == [
        {"name": "f", "arguments": '{"a": 1}'}
    ]
