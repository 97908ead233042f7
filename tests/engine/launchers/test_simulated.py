"""The cold start of an imitated engine."""

import asyncio
from dataclasses import replace

import pytest

from servebench.contracts.settings import ModelSettings
from servebench.emulator import __main__ as emulator
from servebench.engine.adapters.vllm import VllmEngine
from servebench.engine.launchers.emulated import SimulatedLauncher, SimulatedSettings


@pytest.mark.parametrize(("quantization", "gigabytes"), [(None, "16.00"), ("fp8", "8.00")])
def test_a_cold_start_loads_weights_of_the_engines_precision(context_of, capsys, quantization, gigabytes):
    """8 billion parameters at 2 GB/s, and 24 s for everything else, on the virtual clock and in the emulator's process."""
    context = replace(context_of(1, quantization=quantization), model=ModelSettings(name="m", parameters_b=8.0))
    running = SimulatedLauncher().describe(VllmEngine(), context, SimulatedSettings(name="simulated"))
    assert running.ready_s == pytest.approx(24 + float(gigabytes) / 2)
    asyncio.run(emulator._load(replace(running.spec, time_scale=1e-6)))
    assert f"took {gigabytes} GB" in capsys.readouterr().out
