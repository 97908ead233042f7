"""How exactly the emulated engines keep their schedule, and what they cost, on a quiet machine."""

import time
from typing import Any

import psutil
import pytest

from emulator.conftest import context_of, launch  # noqa: F401 - fixtures
from emulator.test_exactness import CLIENTS, drive, many_streams
from servebench.engine.launchers.emulated import EmulatedSettings, spec_of
from servebench.registry.registry import registry
from support.virtual_clients import simulate

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_a_plain_client_measures_what_the_step_loop_says(name: str, launch: Any, context_of: Any) -> None:  # noqa: F811
    running = launch(name)
    expected = simulate(spec_of(registry().engine(name), context_of(name), EmulatedSettings(name="emulated")), CLIENTS)
    throughput, _ = drive(running)
    assert throughput == pytest.approx(expected.throughput_tok_s, rel=0.12)


def test_six_thousand_tokens_a_second_take_less_than_a_core(launch: Any) -> None:  # noqa: F811
    running = launch("vllm", max_num_seqs=256)
    server = psutil.Process(running.pid)
    before, began = server.cpu_times(), time.monotonic()
    tokens = 100 * len(many_streams(running))
    spent, seconds = server.cpu_times(), time.monotonic() - began
    assert (spent.user + spent.system - before.user - before.system) / tokens * 6000 < 0.8
    assert tokens / seconds > 1000
