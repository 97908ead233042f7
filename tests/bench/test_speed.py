"""How exactly the emulated engines keep their schedule, and what they cost, on a quiet machine."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from emulator.conftest import context_of, launch  # noqa: F401 - fixtures
from emulator.test_exactness import CLIENTS, HTTP, drive
from servebench.engine.launchers.emulated import EmulatedSettings, spec_of
from servebench.registry.registry import registry
from support.virtual_clients import prompt_of, simulate

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_a_plain_client_measures_what_the_step_loop_says(name: str, launch: Any, context_of: Any) -> None:  # noqa: F811
    running = launch(name)
    expected = simulate(spec_of(registry().engine(name), context_of(name), EmulatedSettings(name="emulated")), CLIENTS)
    throughput, _ = drive(running)
    assert throughput == pytest.approx(expected.throughput_tok_s, rel=0.12)


def answer_on_many_streams(running: Any) -> int:
    """Send four requests on each of 48 streams; return the number of tokens that were asked for."""

    def length(number: int) -> int:
        body = {"model": running.model, "prompt": prompt_of(number, 16), "max_tokens": 100, "ignore_eos": True}
        with HTTP.stream("POST", f"{running.base_url}/completions", json={**body, "stream": True}) as answer:
            return len(answer.read())

    with ThreadPoolExecutor(48) as pool:
        return 100 * len(list(pool.map(length, range(4 * 48))))


def test_six_thousand_tokens_a_second_take_less_than_a_core(launch: Any) -> None:  # noqa: F811
    running = launch("vllm", max_num_seqs=256)
    server = psutil.Process(running.pid)
    before, began = server.cpu_times(), time.monotonic()
    tokens = answer_on_many_streams(running)
    spent, seconds = server.cpu_times(), time.monotonic() - began
    assert (spent.user + spent.system - before.user - before.system) / tokens * 6000 < 0.8
    assert tokens / seconds > 1000
