"""The built-in engines and launchers, registered by an entry point like those of third parties."""

from collections.abc import Mapping

from servebench.contracts.hooks import hookimpl


@hookimpl
def servebench_engines() -> Mapping[str, str]:
    """Return the built-in engines: vLLM, SGLang, TensorRT-LLM and any OpenAI-compatible endpoint."""
    return {
        "vllm": "servebench.engine.adapters.vllm:VllmEngine",
        "sglang": "servebench.engine.adapters.sglang:SglangEngine",
        "trtllm": "servebench.engine.adapters.trtllm:TrtllmEngine",
        "openai": "servebench.engine.adapters.openai:OpenAiEngine",
    }


@hookimpl
def servebench_launchers() -> Mapping[str, str]:
    """Return the built-in launchers: a process, a container, a running endpoint, an emulated or a simulated engine."""
    return {
        "process": "servebench.engine.launchers.process:ProcessLauncher",
        "docker": "servebench.engine.launchers.docker:DockerLauncher",
        "attach": "servebench.engine.launchers.attach:AttachLauncher",
        "emulated": "servebench.engine.launchers.emulated:EmulatedLauncher",
        "simulated": "servebench.engine.launchers.emulated:SimulatedLauncher",
    }
