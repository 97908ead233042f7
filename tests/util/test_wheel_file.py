"""What pip says when it brings nothing; that a wheel is fetched is tested with the embedded engine's plugin."""

import pytest

from servebench.util.wheel_file import pip_reason


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (
            "WARNING: Retrying (Retry(total=1)) after connection broken by 'x'\nERROR: No matching distribution found for m==1\n",
            "the package index cannot be reached",
        ),
        ("ERROR: No matching distribution found for m==1\n\n", "ERROR: No matching distribution found for m==1"),
        ("", None),
    ],
)
def test_the_reason_is_told(told, reason):
    """pip's last line would blame the package when the network is missing."""
    assert pip_reason(told) == reason
