"""Any server that speaks OpenAI's HTTP dialect and that somebody else runs."""

from __future__ import annotations

from servebench.contracts.engine import Command, Engine, LaunchContext
from servebench.errors import ConfigError


class OpenAiEngine(Engine):
    """An endpoint of which only the dialect is known: no exact output length, no health or metrics path."""

    name = "openai"
    health_path = None
    metrics_path = None
    needs_gpu = False
    launchable = False

    def command(self, context: LaunchContext) -> Command:
        """There is none. Raises ConfigError."""
        raise ConfigError(
            "engine=openai has no command: it is a server that runs already; use launch=attach launch.base_url=..."
        )
