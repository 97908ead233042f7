"""Emulated engines, launched as whole server processes."""

import pytest

from servebench.contracts.emulation import EmulatedFaults
from servebench.contracts.engine import LaunchContext
from servebench.contracts.settings import GpuSettings, ModelSettings
from servebench.engine.launchers.emulated import EmulatedLauncher, EmulatedSettings
from servebench.registry.registry import registry
from support.servers import own_port

MODEL = ModelSettings(
    name="Qwen/Qwen2.5-1.5B-Instruct",
    parameters_b=1.54,
    layers=28,
    hidden_size=1536,
    heads=12,
    kv_heads=2,
    head_dim=128,
    context_length=32768,
)
GPU = GpuSettings(name="toy", count=1, memory_gb=24, bandwidth_gb_s=1008, bf16_tflops=165)


@pytest.fixture
def context_of(tmp_path):

    def make(name, **own):
        settings = {"ready_timeout_s": 300.0, "stop_timeout_s": 300.0, **own}
        return LaunchContext(
            engine=registry().engine(name).settings_type(name=name, **settings),
            model=MODEL,
            gpu=GPU,
            port=own_port(),
            cache_dir=tmp_path,
        )

    return make


@pytest.fixture
def launch(tmp_path, context_of, started):
    def start(name, *, faults=None, **own):
        asked = EmulatedSettings(name="emulated", time_scale=0.002, faults=faults or EmulatedFaults())
        running = EmulatedLauncher().launch(
            registry().engine(name),
            context_of(name, **own),
            asked,
            log_path=tmp_path / "engine.log",
            say=lambda _: None,
        )
        started.append(running)
        return running

    return start
