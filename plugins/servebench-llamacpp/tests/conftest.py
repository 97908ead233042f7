from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from servebench.plugin import GpuSettings, LaunchContext, ModelSettings, PackagedFile, RunningEngine, free_port
from servebench.testing import launch_process
from servebench_llamacpp.engine import LlamaCppEngine, LlamaCppSettings

ROOT = Path(__file__).parents[3]
CACHE = Path(os.environ.get("SERVEBENCH_CACHE") or Path.home() / ".cache" / "servebench")


def the_model() -> ModelSettings:
    described: Mapping[str, Any] = yaml.safe_load((ROOT / "conf/model/smollm2-135m-instruct.yaml").read_text())
    return ModelSettings(name=described["name"], gguf=PackagedFile(**described["gguf"]))


def make_context(*, model: ModelSettings | None = None, **engine: Any) -> LaunchContext:
    """A context with a free port, small enough for a busy machine."""
    settings: dict[str, Any] = {"name": "llamacpp", "max_num_seqs": 2, "max_model_len": 256, "stop_timeout_s": 300.0}
    return LaunchContext(
        engine=LlamaCppSettings(**{**settings, **engine}),
        model=model or the_model(),
        gpu=GpuSettings(name="none"),
        port=free_port("127.0.0.1"),
        cache_dir=CACHE,
    )


@pytest.fixture(name="context_of")
def context_maker() -> Callable[..., LaunchContext]:
    """Makes a launch context from settings of the engine."""
    return make_context


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The real model's file, fetched once to the cache that servebench itself uses."""
    context = make_context()
    LlamaCppEngine().prepare(context, lambda _: None)
    gguf = context.model.gguf
    assert gguf is not None
    return CACHE / "models" / gguf.sha256[:16] / Path(gguf.member).name


@pytest.fixture
def named() -> Callable[..., ModelSettings]:
    """A model by its file."""

    def make(path: Path | str) -> ModelSettings:
        return replace(the_model(), gguf=None, path=str(path))

    return make


@pytest.fixture
def launch(tmp_path: Path, model_path: Path) -> Iterator[Callable[..., RunningEngine]]:
    """Launches the engine; whatever a test leaves running is stopped."""
    started: list[RunningEngine] = []

    def start(context: LaunchContext) -> RunningEngine:
        running = launch_process(LlamaCppEngine(), context, log_path=tmp_path / "engine.log")
        started.append(running)
        return running

    yield start
    for running in started:
        running.stop()
