"""Any server that speaks OpenAI's HTTP dialect and that somebody else runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from servebench.contracts.engine import Command, Engine, LaunchContext
from servebench.engine.adapters import sglang, vllm
from servebench.util.errors import ConfigError


class OpenAiEngine(Engine):
    """An endpoint of which only the dialect is known: no exact output length, no health path. Where it shows metrics under
    the names of an engine that we know, they are read."""

    name = "openai"
    health_path = None
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {
        word: (*vllm.METRICS[word], *sglang.METRICS.get(word, ())) for word in vllm.METRICS
    }
    needs_gpu = False
    launchable = False

    def command(self, context: LaunchContext) -> Command:
        """There is none. Raises ConfigError."""
        raise ConfigError(
            "engine=openai has no command: it is a server that runs already; use launch=attach launch.base_url=..."
        )
