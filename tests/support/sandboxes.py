"""What this machine allows to a sandbox, asked once more for each test."""

from servebench.quality import sandbox


def sandbox_fault() -> str:
    """Return the one reason why no sandbox works now, which is one line; nothing is remembered before or after."""
    sandbox.require_sandbox.cache_clear()
    try:
        (fault,) = sandbox.sandbox_errors()
    finally:
        sandbox.require_sandbox.cache_clear()
    assert "\n" not in fault
    return fault
