"""The interface of a KV memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(slots=True)
class Holding:
    """What a running request occupies: `tokens` of private memory, and a pin on shared memory."""

    tokens: int
    cached: int
    pin: Any = None


class KvMemory(Protocol):
    """The KV memory of one engine, in tokens."""

    capacity: int

    def used(self) -> int:
        """Return the tokens occupied by running requests."""
        ...

    def cached(self, text: str) -> int:
        """Return how many tokens of this prompt are cached. Changes nothing."""
        ...

    def admit(self, text: str, tokens: int, reserve: int) -> Holding | None:
        """Allocate memory for a prompt of `tokens` and `reserve` more; return None if there is not enough."""
        ...

    def computed(self, holding: Holding, text: str) -> None:
        """Note that the prompt is computed, so that other requests can share it."""
        ...

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Allocate more tokens; return false if there is not enough memory."""
        ...

    def release(self, holding: Holding, text: str | None) -> None:
        """Free a finished request. `text`, prompt and answer, stays in the cache; None adds nothing."""
        ...
