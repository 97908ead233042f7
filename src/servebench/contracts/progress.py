"""What a long operation says while it works; the terminal's display implements it."""

from __future__ import annotations

from typing import Protocol


class ProgressDisplay(Protocol):
    """Receives what is being done now (`status`) and what is worth keeping on the screen (`say`)."""

    def status(self, text: str) -> None:
        """Replace the text of the live line."""

    def say(self, text: str) -> None:
        """Print a line that stays."""
