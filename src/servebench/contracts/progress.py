"""Where a long operation reports its progress; the terminal's display implements it."""

from typing import Protocol


class ProgressDisplay(Protocol):
    """Shows what is being done now (`status`), and lines that stay on the screen (`say`)."""

    def status(self, text: str) -> None:
        """Replace the text of the live line."""

    def say(self, text: str) -> None:
        """Print a line that stays."""
