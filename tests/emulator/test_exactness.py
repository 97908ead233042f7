"""A client of the emulated engine measures what the step loop computes on a virtual clock."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from servebench.engine.launchers.emulated import EmulatedSettings, spec_of
from servebench.registry.registry import registry
from support.virtual_clients import Clients, prompt_of, simulate

HTTP = httpx.Client(trust_env=False, timeout=300.0, limits=httpx.Limits(max_connections=64))
CLIENTS = Clients(concurrency=8, requests=40, input_tokens=64, output_tokens=64)


def drive(running):
    """A closed loop of threads: output tokens a second over the whole run, and each TTFT in ms."""

    def ttft_ms(number):
        body = {"model": running.model, "prompt": prompt_of(number, 64), "max_tokens": 64, "ignore_eos": True}
        began = time.monotonic()
        first = None
        with HTTP.stream("POST", f"{running.base_url}/completions", json={**body, "stream": True}) as answer:
            for line in answer.iter_lines():
                if first is None and '"text":"' in line:
                    first = time.monotonic()
        return ((first or 0.0) - began) * 1e3

    began = time.monotonic()
    with ThreadPoolExecutor(CLIENTS.concurrency) as pool:
        ttft = list(pool.map(ttft_ms, range(CLIENTS.requests)))
    return 40 * 64 / (time.monotonic() - began), ttft


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_a_client_measures_what_the_step_loop_predicts(name, launch, context_of):
    """It is never faster; `make bench` measures how near it comes on a quiet machine."""
    running = launch(name)
    engine, context = registry().engine(name), context_of(name)
    expected = simulate(spec_of(engine, context, EmulatedSettings(name="emulated")), CLIENTS)
    throughput, ttft = drive(running)
    assert throughput <= 1.12 * expected.throughput_tok_s
    assert len(ttft) == 40
    assert sorted(ttft)[20] >= min(expected.ttft_ms) * 0.9


def test_the_context_is_that_of_the_launch(context_of):
    context = context_of("vllm", max_num_seqs=7, prefix_caching=False, extra_args={"enforce-eager": True})
    spec = spec_of(registry().engine("vllm"), context, EmulatedSettings(name="emulated", seed=5))
    assert (spec.max_num_seqs, spec.prefix_caching, spec.eager, spec.seed) == (7, False, True, 5)
    assert spec.gpu["bandwidth_gb_s"] == 1008
    assert spec.metrics["vllm:num_requests_running"] == "requests_running"
