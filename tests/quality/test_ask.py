"""Questions put to a server that means harm: in time, in bounded memory, and an answer that can be stored."""

import json
import resource

import orjson
import pytest

from servebench.contracts.quality import Endpoint, Item
from servebench.quality.ask import ask
from support.hostile import BEHAVIOURS, HostileServer, say_and_close
from support.servers import reply

TIMEOUT_S = 1.5
GROWTH_KIB = 60 << 10
ITEM = Item(item_id="q", prompt="2 + 2", expected="4", max_tokens=8)


def answered(behaviour, timeout_s=TIMEOUT_S):
    with HostileServer(lambda number, method, path: behaviour) as server:
        (answer,) = ask([ITEM], Endpoint(base_url=server.base_url, model="tiny"), concurrency=1, timeout_s=timeout_s)
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_no_behaviour_holds_the_client_up_or_fills_its_memory(name):
    # the slow ones never end by themselves: that this test ends shows that the client gave up
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = answered(name)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB
    # none of them answers as a completion that is not streamed does
    assert answer.error is not None
    assert answer.outcome in ("http_error", "protocol", "reset", "timeout")
    orjson.dumps([answer.error, answer.text])


def completion(**more):
    choice = {"message": {"content": "4"}, "finish_reason": "stop", **more.pop("choice", {})}
    body = json.dumps({"choices": [choice], **more}).encode()
    return say_and_close(reply(200, body))


STRANGE = {
    "half of a surrogate pair": ({"choice": {"message": {"content": "4 \ud800"}}}, "4 \N{REPLACEMENT CHARACTER}"),
    "counts that are none": ({"usage": {"prompt_tokens": "9e9", "completion_tokens": 10**12}}, "4"),
    "a usage that is a list": ({"usage": [1]}, "4"),
    "a finish reason that is a list": ({"choice": {"finish_reason": [1]}}, "4"),
    "log-probabilities of strange things": (
        {"choice": {"logprobs": {"content": ["x", {"token": "4", "logprob": 10**400}]}}}, "4",
    ),
    "no text": ({"choice": {"message": {"content": None}}}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_strange_can_be_stored(name, monkeypatch):
    more, text = STRANGE[name]
    monkeypatch.setitem(BEHAVIOURS, "strange", (completion(**more), {"ok"}))
    answer = answered("strange", timeout_s=60.0)
    assert (answer.error, answer.text) == (None, text)
    assert (answer.prompt_tokens, answer.output_tokens, answer.logprobs) == (None, None, None)
    assert answer.finish_reason in ("stop", None)
    orjson.dumps(answer)
