"""How long some computations take, and how exactly the emulated engines keep their schedule, on a quiet machine."""

import time
from typing import Any

import numpy as np
import psutil
import pytest

from emulator.conftest import context_of, launch  # noqa: F401 - fixtures
from emulator.test_exactness import CLIENTS, drive, many_streams
from servebench.analysis import statistics
from servebench.engine.launchers.emulated import EmulatedSettings, spec_of
from servebench.registry.registry import registry
from support.records import record_ms, summary_of
from support.virtual_clients import simulate

pytestmark = pytest.mark.bench


def test_a_point_of_two_hundred_thousand_events_is_summarised_in_three_seconds() -> None:
    records = [record_ms(n, [n + 10 * k for k in range(1, 129)], n + 1300) for n in range(1600)]
    began = time.perf_counter()
    summary_of(records, concurrency=64)
    assert time.perf_counter() - began < 3


def test_all_headline_intervals_take_under_two_seconds() -> None:
    gaps_ms = np.random.default_rng(0).gamma(25, 0.8, (500, 128))
    records = [record_ms(10 * n, list(10 * n + 50 + np.cumsum(gaps))) for n, gaps in enumerate(gaps_ms)]
    _, sample = summary_of(records)
    began = time.perf_counter()
    statistics.headline_intervals(sample)
    assert time.perf_counter() - began < 2


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
