"""How an engine's speed wanders on a machine, as one long point of it has shown."""

from collections.abc import Sequence
from dataclasses import dataclass

LONG_S = 200.0
"""A window of so many seconds shows how an engine wanders: shorter ones hardly tell slow wander from none."""
AGE_MAX_S = 31 * 86_400.0
"""After so long a machine is taken to have changed."""
FLAT_PRIOR = "flat"
"""What `interval_prior` says where nothing is known."""


@dataclass(frozen=True, kw_only=True)
class LearnedNoise:
    """What the point `run/point` has shown in a window of `window_s` seconds that ended at `ended_s` (since the epoch).

    `likelihood` has a row for each time of wander and a column for each size (`analysis.serial`), relative to the likeliest.
    """

    point: str
    ended_s: float
    window_s: float
    likelihood: Sequence[Sequence[float]]

    def usable(self, now_s: float) -> bool:
        """Return whether it still says something at this moment."""
        return 0 <= now_s - self.ended_s <= AGE_MAX_S
