"""What a plugin's own tests use: `from servebench.testing import EngineConformance`, inherit from it, name the engine; for
scorers and workloads `ScorerConformance` and `WorkloadConformance`.

Needs pytest, which servebench itself does not: install `servebench-suite[testing]`.
"""

import pytest

# its asserts explain themselves only when pytest rewrites them, which it does for test files alone
for _suite in ("conformance", "scorers", "workloads"):
    pytest.register_assert_rewrite(f"servebench.testing.{_suite}")

from servebench.testing.conformance import EngineConformance  # noqa: E402
from servebench.testing.scorers import ScorerConformance  # noqa: E402
from servebench.testing.server import FakeServer, Manners  # noqa: E402
from servebench.testing.stand_in import write_stand_in  # noqa: E402
from servebench.testing.workloads import WorkloadConformance  # noqa: E402

__all__ = [
    "EngineConformance",
    "FakeServer",
    "Manners",
    "ScorerConformance",
    "WorkloadConformance",
    "write_stand_in",
]
