"""The built-in engines and launchers, registered by an entry point like those of third parties."""

from collections.abc import Sequence

from servebench.contracts.engine import Engine, Launcher
from servebench.contracts.hooks import hookimpl


@hookimpl
def servebench_engines() -> Sequence[type[Engine]]:
    """Return the built-in engines: vLLM, SGLang, TensorRT-LLM and any OpenAI-compatible endpoint."""
    from servebench.engine.adapters.openai import OpenAiEngine
    from servebench.engine.adapters.sglang import SglangEngine
    from servebench.engine.adapters.trtllm import TrtllmEngine
    from servebench.engine.adapters.vllm import VllmEngine

    return (VllmEngine, SglangEngine, TrtllmEngine, OpenAiEngine)


@hookimpl
def servebench_launchers() -> Sequence[type[Launcher]]:
    """Return the built-in launchers: a process, a container, a running endpoint, an emulated or a simulated engine."""
    from servebench.engine.launchers.attach import AttachLauncher
    from servebench.engine.launchers.docker import DockerLauncher
    from servebench.engine.launchers.emulated import EmulatedLauncher
    from servebench.engine.launchers.process import ProcessLauncher
    from servebench.engine.launchers.simulated import SimulatedLauncher

    return (ProcessLauncher, DockerLauncher, AttachLauncher, EmulatedLauncher, SimulatedLauncher)
