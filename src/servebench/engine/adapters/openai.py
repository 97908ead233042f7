"""Any running server with OpenAI's HTTP API."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from servebench.contracts.engine import Command, Engine, LaunchContext
from servebench.engine.adapters import sglang, vllm
from servebench.util.errors import ConfigError


class OpenAiEngine(Engine):
    """An endpoint of an unknown engine: no exact output length, no health path. Metrics with the names of vLLM or SGLang are
    read."""

    name = "openai"
    health_path = None
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {
        word: (*vllm.METRICS[word], *sglang.METRICS.get(word, ())) for word in vllm.METRICS
    }
    needs_gpu = False
    launchable = False

    def command(self, context: LaunchContext) -> Command:
        """Raise ConfigError: an endpoint has no command."""
        raise ConfigError(
            "engine=openai has no command, since it is a running server; use launch=attach launch.base_url=..."
        )
