"""The roofline against numbers worked out by hand."""

from dataclasses import replace

import pytest

from servebench.contracts.emulation import Emulation, EmulationSpec
from servebench.contracts.weights import weight_bytes_per_parameter
from servebench.emulator.cost import BatchStep, StepCost, kv_capacity, model_shape

BARE = Emulation(
    memory_efficiency=1.0, compute_efficiency=1.0, step_overhead_ms=0.0, sequence_overhead_ms=0.0, memory_fraction=0.9
)
LLAMA_8B = {
    "name": "llama-8b",
    "parameters_b": 8.0,
    "layers": 32,
    "hidden_size": 4096,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
}
H100 = {"memory_gb": 80, "bandwidth_gb_s": 3350, "bf16_tflops": 989.4, "fp8_tflops": 1978.9}


def spec(**changes):
    base = EmulationSpec(engine="e", model_name="m", host="h", port=1, emulation=BARE, model=LLAMA_8B, gpu=H100)
    return replace(base, **changes)


def test_one_token_reads_all_weights():
    """16 GB at 3,350 GB/s: 4.776 ms."""
    assert StepCost(spec()).seconds(BatchStep(decoding=1)) == pytest.approx(16 / 3350, rel=1e-6)


def test_a_long_prompt_is_bound_by_operations():
    """4,096 tokens: 2 x 8e9 each, and attention's 4 x 32 x 32 x 128 x 4096^2 / 2, at 989.4 TFLOP/s."""
    expected = (2 * 8e9 * 4096 + 4 * 32 * 32 * 128 * 4096**2 / 2) / 989.4e12
    assert StepCost(spec()).seconds(BatchStep(decoding=0, prompt=4096)) == pytest.approx(expected, rel=1e-6)


def test_cached_tokens_are_read():
    """131,072 bytes each (2 x 32 x 8 x 128 x 2): 100,000 of them add 3.9 ms."""
    assert model_shape(spec()).kv_token_bytes == 131072
    added = StepCost(spec()).seconds(BatchStep(decoding=1, context=100_000)) - StepCost(spec()).seconds(
        BatchStep(decoding=1)
    )
    assert added == pytest.approx(100_000 * 131072 / 3350e9, rel=1e-6)


def test_experts_are_read_as_they_are_needed():
    """5 of 100 billion: one token reads a twentieth, a large batch everything."""
    sparse = spec(model={**LLAMA_8B, "parameters_b": 100.0, "active_parameters_b": 5.0})
    one, many = (StepCost(sparse).seconds(BatchStep(decoding=n)) for n in (1, 500))
    assert one == pytest.approx(0.05 * 200 / 3350, rel=1e-6)
    assert many == pytest.approx(200 / 3350, rel=1e-3)


def test_two_gpus_share_the_work_and_pay_for_talking():
    one, two = (StepCost(spec(tensor_parallel=n)).seconds(BatchStep(decoding=8)) for n in (1, 2))
    assert one / 2 < two < one


def test_memory_beside_the_weights():
    """90 % of 80 GB less 16 GB, at 131,072 bytes a token."""
    assert kv_capacity(spec(), model_shape(spec())) == int((72e9 - 16e9) / 131072)


@pytest.mark.parametrize(
    ("name", "quantization", "dtype", "expected"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", None, None, 2.0),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", None, None, 1.0),
        ("m", "fp8", None, 1.0),
        ("m", "awq", None, 0.56),
        ("openai/gpt-oss-120b", None, None, 0.53),
        ("m", None, "float32", 4.0),
    ],
)
def test_bytes_a_parameter(name, quantization, dtype, expected):
    assert weight_bytes_per_parameter(name, quantization, dtype) == expected


def test_eager_mode_costs_its_launches():
    """0.22 ms a layer."""
    eager, compiled = (StepCost(spec(eager=flag)).seconds(BatchStep(decoding=1)) for flag in (True, False))
    assert eager - compiled == pytest.approx(32 * 0.22e-3)
