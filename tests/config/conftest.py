"""A registry with the built-in names, and one small plugin engine with a config folder and a key of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pluggy
import pytest

from servebench.contracts.engine import Engine, Launcher
from servebench.contracts.quality import Scorer
from servebench.contracts.request import Workload
from servebench.contracts.settings import EngineSettings, LaunchSettings, WorkloadSettings
from servebench.registry.registry import Registry


class OpenAi(Engine):
    name = "openai"
    launchable = False


@dataclass(frozen=True, kw_only=True)
class LlamaSettings(EngineSettings):
    threads: int | None = None


class Llama(Engine):
    name = "llamacpp"
    settings_type = LlamaSettings


@dataclass(frozen=True, kw_only=True)
class AttachSettings(LaunchSettings):
    base_url: str | None = None
    api_key_env: str | None = None
    verify_tls: bool = True


class Attach(Launcher):
    name = "attach"
    local = False
    settings_type = AttachSettings


class Process(Launcher):
    name = "process"


@dataclass(frozen=True, kw_only=True)
class ShareGptSettings(WorkloadSettings):
    dataset: str = "builtin"
    path: str | None = None
    subset: str | None = None
    split: str = "train"
    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None


class ShareGpt(Workload):
    name = "sharegpt"
    settings_type = ShareGptSettings


class Unique(Workload):
    name = "unique"


class Mmlu(Scorer):
    name = "mmlu"
    method = "letter"


LLAMA_YAML = "# llama.cpp\ndefaults:\n  - base\n  - _self_\n\nname: llamacpp\nthreads: null\n"

MakeRegistry = Callable[..., Registry]


@pytest.fixture(scope="session")
def plugin_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugin") / "conf"
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "llamacpp.yaml").write_text(LLAMA_YAML)
    return folder


@pytest.fixture(scope="session")
def make_registry(plugin_folder):
    """A registry, with or without the plugin."""

    def make(*, plugin=True, plugins=()):
        engines: Mapping[str, type[Engine]] = {"openai": OpenAi, "llamacpp": Llama} if plugin else {"openai": OpenAi}
        return Registry(
            pluggy.PluginManager("servebench"),
            plugins,
            {
                "engine": engines,
                "launch": {"process": Process, "attach": Attach},
                "workload": {"sharegpt": ShareGpt, "unique": Unique},
                "quality": {"mmlu": Mmlu},
            },
            (str(plugin_folder),) if plugin else (),
        )

    return make


@pytest.fixture(scope="session")
def registry(make_registry):
    return make_registry()
