"""What a plugin's own tests use: inherit from `EngineConformance`, `ScorerConformance` or `WorkloadConformance`.

Needs pytest, which servebench itself does not: install `servebench-suite[testing]`.
"""

import pytest

# pytest rewrites assertions, so that they explain themselves, only in test files
for _suite in ("command", "engine.suite", "engine.adapter", "engine.life", "scorers", "workloads"):
    pytest.register_assert_rewrite(f"servebench.testing.{_suite}")

from servebench.engine.tokenize import engine_tokenizer  # noqa: E402
from servebench.protocol.kinds.table import compose  # noqa: E402
from servebench.registry.registry import registry  # noqa: E402
from servebench.testing.engine import EngineConformance  # noqa: E402
from servebench.testing.engine.suite import CHAT, SCHEMA, TEXT, launch_process  # noqa: E402
from servebench.testing.scorers import ScorerConformance  # noqa: E402
from servebench.testing.server import FakeServer, plain_server, write_stand_in  # noqa: E402
from servebench.testing.workloads import WorkloadConformance  # noqa: E402

__all__ = [
    "EngineConformance",
    "FakeServer",
    "ScorerConformance",
    "WorkloadConformance",
    "plain_server",
    "write_stand_in",
]
__all__ += ["CHAT", "SCHEMA", "TEXT", "compose", "engine_tokenizer", "launch_process", "registry"]
