"""The conformance suite with the real programs: what the other tests run with a stand-in."""

import pytest

from servebench.contracts.settings import ModelSettings
from servebench.engine.adapters.sglang import SglangEngine
from servebench.engine.adapters.vllm import VllmEngine
from servebench.registry.registry import registry
from servebench.testing import EngineConformance
from support.real_engines import settings_on_a_cpu


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
        times = {"ready_timeout_s": 300.0, "stop_timeout_s": 30.0}
        name = type(self).__name__.removeprefix("Test").lower()
        self.settings = settings_on_a_cpu(name, executable, **times)  # type: ignore[misc]
        self.folder = model

    def real_model(self) -> ModelSettings:
        return ModelSettings(name="smollm2-135m-instruct", path=self.folder)


@pytest.mark.timeout(400)
class TestVllm(Real):
    engine = VllmEngine
    variable = "VLLM"
    has_timings = True


@pytest.mark.timeout(400)
class TestSglang(Real):
    engine = SglangEngine
    variable = "SGLANG"
    own_defaults = {"prefix_caching": True}


@pytest.mark.timeout(400)
class TestTransformers(Real):
    # where the plugin is not installed every test is skipped, and the class must still be read
    engine = registry().kinds["engine"].get("transformers", VllmEngine)
    variable = "TRANSFORMERS"
