"""Write the engine's log to standard output."""

from __future__ import annotations

import sys


def log(line: str) -> None:
    """Write one line of the engine's log."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
