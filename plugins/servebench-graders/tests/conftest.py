import pytest

from servebench_graders import sandbox
from support.fixtures import endpoint, memory, serve, servebench  # noqa: F401


@pytest.fixture
def working() -> None:
    """Skip where no sandbox works: that one is refused there is tested by itself."""
    if faults := sandbox.sandbox_errors():
        pytest.skip(faults[0])


@pytest.fixture
def sandbox_fault():
    """Give the one reason why no sandbox works now, which is one line; nothing is remembered before or after."""

    def fault() -> str:
        sandbox.require_sandbox.cache_clear()
        try:
            (line,) = sandbox.sandbox_errors()
        finally:
            sandbox.require_sandbox.cache_clear()
        assert "\n" not in line
        return line

    return fault
