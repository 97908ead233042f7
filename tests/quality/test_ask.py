"""Questions put to a server that means harm: in time, in bounded memory, and an answer that can be stored."""

from __future__ import annotations

import importlib.util
import json
import resource
import time
from pathlib import Path

import orjson
import pytest

from servebench.contracts.quality import Endpoint, Item
from servebench.quality.ask import ask

spec = importlib.util.spec_from_file_location("hostile", Path(__file__).parents[1] / "hostile.py")
hostile = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hostile)

TIMEOUT_S = 1.5
GROWTH_KIB = 60 << 10
ITEM = Item(item_id="q", prompt="2 + 2", expected="4", max_tokens=8)


def answered(manner):
    server = hostile.Hostile(lambda number, method, path: manner)
    try:
        (answer,) = ask([ITEM], Endpoint(base_url=f"{server.url}/v1", model="tiny"), concurrency=1, timeout_s=TIMEOUT_S)
    finally:
        server.close()
    return answer


@pytest.mark.parametrize("name", hostile.MANNERS)
def test_no_manner_holds_up_or_fills_up(name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    answer = answered(name)
    assert time.monotonic() - began < 6 * TIMEOUT_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB
    # none of them answers as a completion that is not streamed does
    assert answer.error is not None
    assert answer.outcome in ("http_error", "protocol", "reset", "timeout")
    orjson.dumps([answer.error, answer.text])


def completion(**more):
    choice = {"message": {"content": "4"}, "finish_reason": "stop", **more.pop("choice", {})}
    body = json.dumps({"choices": [choice], **more}).encode()
    return hostile.say_and_close(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


STRANGE = {
    "half of a surrogate pair": ({"choice": {"message": {"content": "4 \ud800"}}}, "4 ?"),
    "counts that are none": ({"usage": {"prompt_tokens": "9", "completion_tokens": 10**12}}, "4"),
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
    monkeypatch.setitem(hostile.MANNERS, "strange", (completion(**more), {"ok"}))
    answer = answered("strange")
    assert (answer.error, answer.text) == (None, text)
    assert (answer.prompt_tokens, answer.output_tokens, answer.logprobs) == (None, None, None)
    assert answer.finish_reason in ("stop", None)
    orjson.dumps(answer)
