"""The step loop on a virtual clock: what each scheduler is known for."""

from dataclasses import replace

import pytest

from servebench.contracts.emulation import Emulation, EmulationSpec
from servebench.emulator.cost import BatchStep, Profile, StepCost, with_profile
from servebench.emulator.scheduler import BatchScheduler, EmulatedRequest
from servebench.emulator.text import answer_pieces
from support.virtual_clients import Clients, simulate

MODEL = {"parameters_b": 1.54, "layers": 28, "hidden_size": 1536, "heads": 12, "kv_heads": 2, "head_dim": 128}
GPU = {"memory_gb": 24, "bandwidth_gb_s": 1008, "bf16_tflops": 165}


def spec_with(own=None, **changes):
    """A spec of a 1.5B model on a card of 24 GB."""
    spec = EmulationSpec(
        engine="toy", model_name="m", host="127.0.0.1", port=1, emulation=own or Emulation(), model=MODEL, gpu=GPU
    )
    return replace(spec, **changes)


FLAT = Profile(decode_ms=10.0)
"""Every step takes 10 ms, so that counts of steps can be read off the clock."""


def clients(concurrency, requests, tokens=10, prompt=32):
    return Clients(concurrency=concurrency, requests=requests, input_tokens=prompt, output_tokens=tokens)


def scheduler_of(spec, costs=FLAT):
    return BatchScheduler(spec, StepCost(spec, costs))


def submit(core, count, prompt_tokens, answer_tokens):
    requests = [
        EmulatedRequest(
            key=i, prompt=f"{i:04}" * prompt_tokens, prompt_tokens=prompt_tokens, pieces=answer_pieces(i, answer_tokens)
        )
        for i in range(count)
    ]
    for request in requests:
        core.submit(request, 0.0)
    return requests


def steps_of(core):
    """Run the scheduler until it is idle; yield after each step."""
    now = 0.0
    while (ready := core.next_ready_s()) is not None:
        step = core.begin(max(now, ready))
        now = step.ends_s
        core.end(step, now)
        yield


def test_a_batch_shares_its_steps():
    """Ten at once take the time of one; one at a time takes ten times as long."""
    together = simulate(spec_with(), clients(10, 10), FLAT)
    alone = simulate(spec_with(max_num_seqs=1), clients(10, 10), FLAT)
    assert together.seconds == pytest.approx(0.1)
    assert alone.seconds == pytest.approx(1.0)
    assert max(alone.ttft_ms) == pytest.approx(910)


def test_same_seed_same_schedule():
    profile = replace(FLAT, latency_ms=20.0, latency_sigma=0.5)
    one, two = (simulate(spec_with(seed=3), clients(4, 40), profile) for _ in range(2))
    assert one == two
    assert simulate(spec_with(seed=4), clients(4, 40), profile) != one


def test_a_long_prompt_stalls_decoding_only_where_it_is_not_cut():
    """A prompt of 4,096 tokens in steps of 512, beside a sequence that decodes."""
    costs = Profile(decode_ms=1.0, prompt_token_ms=0.1)

    def gaps(own):
        spec = with_profile(spec_with(own), costs)
        core = BatchScheduler(spec, StepCost(spec, costs))
        short = EmulatedRequest(key=1, prompt="a" * 64, prompt_tokens=16, pieces=answer_pieces(1, 200))
        core.submit(short, 0.0)
        now, last, worst = 0.0, 0.0, 0.0
        for number in range(60):
            if number == 5:
                core.submit(
                    EmulatedRequest(key=2, prompt="b" * 16384, prompt_tokens=4096, pieces=answer_pieces(2, 5)), now
                )
            step = core.begin(now)
            now = step.ends_s
            if any(asked is short for asked, _ in core.end(step, now)):
                worst, last = max(worst, now - last), now
        return worst

    assert gaps(Emulation(token_budget=512, mixed_steps=True)) < 0.06
    assert gaps(Emulation(token_budget=512, mixed_steps=True, chunked_prefill=False)) > 0.4
    assert gaps(Emulation(token_budget=512, mixed_steps=False)) > 0.4


def test_captured_batches_are_padded_and_larger_ones_run_eagerly():
    """33 cost what 64 do; 65 pay for their launches."""
    own = Emulation(batch_sizes=(1, 2, 4, 8, 16, 32, 64))
    costs = Profile(decode_ms=1.0, sequence_ms=1.0)
    seconds = {n: simulate(spec_with(own), clients(n, n, tokens=20), costs).seconds for n in (32, 33, 64, 65)}
    assert seconds[33] == pytest.approx(seconds[64], rel=0.1)
    assert seconds[33] > 1.5 * seconds[32]
    spec = spec_with(own)
    extra = StepCost(spec, costs).seconds(BatchStep(decoding=65, eager=True)) - StepCost(spec, costs).seconds(
        BatchStep(decoding=65)
    )
    assert seconds[65] > seconds[64] + 19 * extra * 0.9


def test_memory_that_runs_out_preempts_the_youngest_and_loses_nothing():
    """Room for some of them: with optimistic admission requests are put back, and all are answered whole."""
    own = Emulation(prefix_cache_default=False)
    tight = spec_with(own, max_model_len=300, gpu_memory_fraction=0.1295)
    core = scheduler_of(tight)
    assert core.memory.capacity < 3000
    asked = submit(core, 24, 64, 120)
    for _ in steps_of(core):
        assert core.memory.used() <= core.memory.capacity
    assert core.totals.preemptions > 0
    assert all(one.generated == 120 for one in asked)
    assert core.memory.used() == 0


def test_reserved_output_is_never_preempted():
    """TensorRT-LLM's policy: admit only what is sure to fit."""
    spec = spec_with(
        Emulation(reserve_output=True, prefix_cache_default=False), max_model_len=300, gpu_memory_fraction=0.1295
    )
    core = scheduler_of(spec)
    submit(core, 24, 64, 120)
    most = max(core.in_engine() for _ in steps_of(core))
    assert core.totals.preemptions == 0
    assert 1 < most < 24


def test_speculation_gives_several_tokens_a_step():
    plain = simulate(spec_with(), clients(1, 1, tokens=240), FLAT)
    fast = simulate(spec_with(speculative_tokens=2.4), clients(1, 1, tokens=240), FLAT)
    assert 1.7 < plain.seconds / fast.seconds < 2.4


def test_shared_documents_are_computed_once():
    """With a cache, throughput of long shared prompts rises; without one it does not."""
    asked = Clients(concurrency=8, requests=40, input_tokens=1024, output_tokens=16, shared_tokens=960, documents=2)
    cached = simulate(spec_with(), asked)
    computed = simulate(spec_with(prefix_caching=False), asked)
    assert cached.throughput_tok_s > 1.5 * computed.throughput_tok_s
    by_prefix = simulate(spec_with(Emulation(longest_prefix_first=True)), asked)
    assert by_prefix.throughput_tok_s > 1.5 * computed.throughput_tok_s


def test_an_abandoned_request_gives_its_memory_back():
    spec = spec_with(Emulation(token_budget=64))
    core = scheduler_of(spec)
    asked = submit(core, 3, 128, 50)
    now = 0.0
    for _ in range(4):
        step = core.begin(now + 1.0)
        now = step.ends_s
        core.end(step, now)
    for one in asked:
        core.abort(one)
    assert (core.in_engine(), core.queued(), core.memory.used()) == (0, 0, 0)
    assert core.next_ready_s() is None
