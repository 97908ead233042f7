import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from servebench.plugin import GpuSettings, LaunchContext, ModelSettings, PackagedFile
from servebench.testing import launch_process
from servebench_llamacpp.engine import LlamaCppEngine, LlamaCppSettings
from support.servers import own_port

ROOT = Path(__file__).parents[3]
CACHE = Path(os.environ.get("SERVEBENCH_CACHE") or Path.home() / ".cache" / "servebench")


def the_model():
    described = yaml.safe_load((ROOT / "conf/model/smollm2-135m-instruct.yaml").read_text())
    return ModelSettings(name=described["name"], gguf=PackagedFile(**described["gguf"]))


def make_context(*, model=None, **engine):
    """A context with a free port, small enough for a busy machine."""
    settings = {"name": "llamacpp", "max_num_seqs": 2, "max_model_len": 256, "stop_timeout_s": 300.0}
    return LaunchContext(
        engine=LlamaCppSettings(**{**settings, **engine}),
        model=model or the_model(),
        gpu=GpuSettings(name="none"),
        port=own_port(),
        cache_dir=CACHE,
    )


@pytest.fixture(name="context_of")
def context_maker():
    """Makes a launch context from settings of the engine."""
    return make_context


@pytest.fixture(scope="session")
def model_path():
    """The real model's file, fetched once to the cache that servebench itself uses."""
    context = make_context()
    LlamaCppEngine().prepare(context, lambda _: None)
    gguf = context.model.gguf
    return CACHE / "models" / gguf.sha256[:16] / Path(gguf.member).name


@pytest.fixture
def named():
    """A model by its file."""

    def make(path):
        return replace(the_model(), gguf=None, path=str(path))

    return make


@pytest.fixture
def launch(tmp_path, model_path):
    """Launches the engine; whatever a test leaves running is stopped."""
    started = []

    def start(context):
        running = launch_process(LlamaCppEngine(), context, log_path=tmp_path / "engine.log")
        started.append(running)
        return running

    yield start
    for running in started:
        running.stop()
