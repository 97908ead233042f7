"""Real engines are found by environment variables; what is not there is skipped with the way to bring it.

SERVEBENCH_REAL_VLLM=/venvs/vllm/bin/python                  a Python that has vllm
SERVEBENCH_REAL_SGLANG=/venvs/sglang/bin/python              a Python that has sglang
SERVEBENCH_REAL_TRANSFORMERS=/venvs/tf/bin/transformers      the command `transformers`
SERVEBENCH_REAL_LMDEPLOY=/tmp/lmdeploy                       a folder into which lmdeploy's wheel was unpacked
SERVEBENCH_REAL_MODEL=/models/SmolLM2-135M-Instruct          a small Hugging Face folder
SERVEBENCH_REAL_GGUF=/models/smollm2-135m-instruct.gguf      a small GGUF file, for llama.cpp
"""

import os
from pathlib import Path

import pytest
import yaml

from servebench.registry.registry import registry
from support.real_engines import settings_on_a_cpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is real, and may take its time."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)
            # a real engine on a busy machine is slow: this only ends what hangs
            item.add_marker(pytest.mark.timeout(3 * 3600))


@pytest.fixture
def real():
    """Where a real thing is, by the last word of its variable; skips the test where it is not."""

    def find(name: str) -> str:
        variable = f"SERVEBENCH_REAL_{name.upper()}"
        place = os.environ.get(variable)
        if not place:
            pytest.skip(f"{variable} is not set; tests/real/conftest.py says what it must name")
        if not Path(place).exists():
            pytest.fail(f"{variable}={place}: there is no such file")
        return place

    return find


@pytest.fixture
def vllm_on_a_cpu(real, tmp_path):
    """The words that have the command start vLLM on this machine's CPU, with a small model and no network."""
    executable, model = real("vllm"), real("model")
    folder = tmp_path / "my" / "engine"
    folder.mkdir(parents=True)
    settings = settings_on_a_cpu("vllm", executable)
    (folder / "real.yaml").write_text(yaml.safe_dump({"defaults": ["vllm", "_self_"], **settings}))
    return ("--config-dir", str(tmp_path / "my"), "engine=real", f"model.path={model}")


@pytest.fixture
def installed():
    """The registry, if the plugin of this engine is installed."""

    def find(engine: str):
        if engine not in registry().kinds["engine"]:
            pytest.skip(f"the plugin servebench-{engine} is not installed")
        return registry()

    return find
