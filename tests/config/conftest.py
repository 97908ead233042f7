"""A registry with a few of the built-in classes, and a small plugin engine with a config folder and a key of its own."""

from dataclasses import dataclass, replace

import pytest

from servebench.contracts.engine import Engine
from servebench.contracts.settings import EngineSettings
from servebench.registry.registry import build

BUILT_IN = {
    "engine": ["openai"],
    "launch": ["process", "attach"],
    "workload": ["sharegpt", "short", "medium", "unique"],
    "quality": ["mmlu"],
}
LLAMA_YAML = "# llama.cpp\ndefaults:\n  - base\n  - _self_\n\nname: llamacpp\nthreads: null\n"


@dataclass(frozen=True, kw_only=True)
class LlamaSettings(EngineSettings):
    threads: int | None = None


class Llama(Engine):
    name = "llamacpp"
    settings_type = LlamaSettings
    needs_gpu = False


@pytest.fixture(scope="session")
def make_registry(tmp_path_factory):
    """A registry, with or without the plugin, and with a few of the built-in classes or with `everything`."""
    folder = tmp_path_factory.mktemp("plugin") / "conf"
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "llamacpp.yaml").write_text(LLAMA_YAML)
    real = build([], set())
    few = {kind: {name: real.kinds[kind][name] for name in names} for kind, names in BUILT_IN.items()}

    def make(*, plugin=True, plugins=(), everything=False):
        kinds = real.kinds if everything else few
        engines = dict(kinds["engine"]) | ({"llamacpp": Llama} if plugin else {})
        paths = (str(folder),) if plugin else ()
        return replace(real, plugins=plugins, kinds={**kinds, "engine": engines}, config_paths=paths)

    return make


@pytest.fixture(scope="session")
def registry(make_registry):
    return make_registry()
