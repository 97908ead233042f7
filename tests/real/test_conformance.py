"""The conformance suite with the real programs: what the other tests run with a stand-in."""

import os
from pathlib import Path
from typing import Any

import pytest

from servebench.contracts.settings import ModelSettings
from servebench.engine.adapters.sglang import SglangEngine
from servebench.engine.adapters.vllm import VllmEngine
from servebench.registry.registry import registry
from servebench.testing import EngineConformance


class Real(EngineConformance):
    """An engine of this machine, with little memory and no GPU."""

    variable: str

    @pytest.fixture(autouse=True)
    def installed_here(self, real, installed):
        """Skips what is not there."""
        installed(type(self).__name__.removeprefix("Test").lower())
        self.place(real(self.variable), real("MODEL"))

    def place(self, executable: str, model: str) -> None:
        """Take the settings of a real start."""
        path = f"{Path(executable).parent}:{os.environ['PATH']}"
        self.settings = {  # type: ignore[misc]
            "dtype": "bfloat16",
            "ready_timeout_s": 300.0,
            "stop_timeout_s": 30.0,
            **self.more(),
            "executable": executable,
            "env": {"HF_HUB_OFFLINE": "1", "PATH": path, **self.more().get("env", {})},
        }
        self.folder = model

    def more(self) -> dict[str, Any]:
        return {}

    def real_model(self) -> ModelSettings:
        return ModelSettings(name="smollm2-135m-instruct", path=self.folder)


@pytest.mark.timeout(400)
class TestVllm(Real):
    engine = VllmEngine
    variable = "VLLM"
    has_timings = True

    def more(self):
        env = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0"}
        env["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
        return {"max_model_len": 1024, "max_num_seqs": 4, "extra_args": {"enforce-eager": True}, "env": env}


@pytest.mark.timeout(400)
class TestSglang(Real):
    engine = SglangEngine
    variable = "SGLANG"
    own_defaults = {"prefix_caching": True}

    def more(self):
        extra = {"device": "cpu", "attention-backend": "torch_native", "max-total-tokens": 16384}
        return {"max_model_len": 1024, "max_num_seqs": 4, "extra_args": extra}


@pytest.mark.timeout(400)
class TestTransformers(Real):
    # where the plugin is not installed every test is skipped, and the class must still be read
    engine = registry().kinds["engine"].get("transformers", VllmEngine)
    variable = "TRANSFORMERS"

    def more(self):
        extra = {"cb-block-size": 32, "cb-num-blocks": 512, "cb-max-batch-tokens": 512}
        return {"device": "cpu", "extra_args": extra}
