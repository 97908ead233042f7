"""Faults on demand, through the launcher: each is what its name says, and each start ends with nothing left."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from servebench.contracts.emulation import EmulatedFaults
from servebench.util.errors import EngineError
from support.waiting import wait_ended, wait_until

HTTP = httpx.Client(trust_env=False, timeout=300.0)
"""Shared: creating a client takes longer than a request."""

BODY = {"prompt": "some words " * 12, "max_tokens": 24, "ignore_eos": True, "stream": True}
BODY["stream_options"] = {"include_usage": True}
LONG = 20_000


def stream(running, **more):
    """Return the request of an answer; `max_tokens=LONG` of one that has not ended when others come, however busy the machine."""
    timeout_s = more.pop("timeout_s", 300.0)
    url = f"{running.base_url}/completions"
    return HTTP.stream("POST", url, json={"model": running.model, **BODY, **more}, timeout=timeout_s)


def ask(running, **more):
    """Stream one answer; return `ok`, its status, or how it failed."""
    try:
        with stream(running, **more) as answer:
            if answer.status_code != 200:
                return str(answer.status_code)
            return "ok" if "[DONE]" in answer.read().decode() else "cut"
    except httpx.HTTPError as error:
        return type(error).__name__


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "llamacpp"])
def test_a_death_during_loading_is_explained(name, launch):
    with pytest.raises(EngineError) as error:
        launch(name, faults=EmulatedFaults(die_in_loading=True))
    assert error.value.kind == "out_of_memory"
    assert "exit code 1" in str(error.value)


@pytest.mark.slow
def test_an_engine_that_hangs_in_loading_ends_at_the_deadline(launch):
    with pytest.raises(EngineError) as error:
        launch("vllm", faults=EmulatedFaults(hang_in_loading=True), ready_timeout_s=2.0)
    assert error.value.kind == "not_ready"
    assert "engine.port" in str(error.value)


def test_out_of_memory_under_load_is_a_death(launch):
    running = launch("vllm", faults=EmulatedFaults(out_of_memory_at=4))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: ask(running, max_tokens=LONG), range(4)))
    assert "ok" not in answers
    assert "engine.gpu_memory_fraction" in (wait_until(running.died) or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (EmulatedFaults(reset_every=3), ["ok", "ok", "RemoteProtocolError", "ok", "ok", "RemoteProtocolError"]),
        (EmulatedFaults(stall_every=3), ["ok", "ok", "ReadTimeout", "ok", "ok", "ReadTimeout"]),
        (EmulatedFaults(), ["ok"] * 6),
    ],
    ids=["reset", "stall", "none"],
)
def test_every_third_request_is_hit(faults, expected, launch):
    running = launch("vllm", faults=faults)
    # a stalled one never ends by itself
    found = [ask(running, timeout_s=1.5 if hit == "ReadTimeout" else 300.0) for hit in expected]
    assert [
        ("RemoteProtocolError" if one in ("ReadError", "RemoteProtocolError") else one) for one in found
    ] == expected


@pytest.mark.slow
def test_a_slow_stream_is_ten_times_slower_and_whole(launch):
    # the fastest of some, since a busy machine makes single requests slow
    running = launch("vllm", faults=EmulatedFaults(slow_every=2))
    seconds = []
    for _ in range(12):
        began = time.monotonic()
        assert ask(running) == "ok"
        seconds.append(time.monotonic() - began)
    assert min(seconds[1::2]) > 4 * min(seconds[::2])


def test_requests_above_a_limit_are_rejected(launch):
    running = launch("vllm", faults=EmulatedFaults(reject_above=2))
    with stream(running, max_tokens=LONG) as one, stream(running, max_tokens=LONG) as other:
        assert (one.status_code, other.status_code) == (200, 200)
        assert ask(running) == "503"
    # as soon as it notices that the two have gone
    wait_until(lambda: ask(running) == "ok")


def test_usage_may_be_wrong(launch):
    running = launch("vllm", faults=EmulatedFaults(usage_factor=2.0))
    body = {**BODY, "model": running.model, "stream": False}
    del body["stream_options"]
    answer = HTTP.post(f"{running.base_url}/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == 48
    assert len(answer["choices"][0]["text"]) == 24 * 4


@pytest.mark.slow
def test_an_engine_that_ignores_sigterm_is_killed_with_its_child(launch, tmp_path):
    running = launch("vllm", faults=EmulatedFaults(ignore_sigterm=True, leave_child=True), stop_timeout_s=1.0)
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) == 1
    report = running.stop()
    assert report.stopped
    assert report.forced
    assert report.seconds >= 1.0
    assert report.leftover == ()
    wait_ended(*(child.pid for child in children))


def test_refusals_say_when_to_ask_again(launch):
    """Every third request gets HTTP 429 with a Retry-After."""
    running = launch("vllm", faults=EmulatedFaults(refuse_every=3))
    assert [ask(running) for _ in range(6)] == ["ok", "ok", "429"] * 2
    with stream(running), stream(running), stream(running) as refused:
        assert refused.headers["retry-after"] == "2"
