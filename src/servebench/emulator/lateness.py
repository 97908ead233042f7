"""Measure how late the emulator hands tokens to the kernel."""

from __future__ import annotations

from collections import deque

LATENESS_STEPS = 20_000


class Lateness:
    """How late the tokens of the last steps were written, in seconds."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=LATENESS_STEPS)
        self.steps = 0

    def add(self, seconds: float) -> None:
        """Add the lateness of one step."""
        self._recent.append(max(0.0, seconds))
        self.steps += 1

    def summary_ms(self) -> dict[str, float]:
        """Return p50, p99 and max of the last steps; empty before the first one."""
        if not self._recent:
            return {}
        ordered = sorted(self._recent)
        return {
            "p50": ordered[len(ordered) // 2] * 1e3,
            "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] * 1e3,
            "max": ordered[-1] * 1e3,
        }
