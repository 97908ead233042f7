"""The base class of KV memories."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Holding:
    """What a running request occupies: `tokens` of private memory, and a pin on shared memory."""

    tokens: int
    cached: int
    pin: Any = None


class KvMemory:
    """The KV memory of one engine, in tokens. `_private` tokens belong to one running request each."""

    def __init__(self, capacity: int) -> None:
        """`capacity` in tokens."""
        self.capacity = capacity
        self._private = 0

    def used(self) -> int:
        """Return the tokens occupied by running requests."""
        return self._private

    def cached(self, text: str) -> int:
        """Return how many tokens of this prompt are cached. Changes nothing."""
        raise NotImplementedError

    def admit(self, text: str, tokens: int, reserve: int) -> Holding | None:
        """Allocate memory for a prompt of `tokens` and `reserve` more; return None if there is not enough."""
        raise NotImplementedError

    def computed(self, holding: Holding, text: str) -> None:
        """Note that the prompt is computed, so that other requests can share it."""

    def _make_room(self, tokens: int) -> bool:
        """Evict what is not in use until so many tokens are free; return false if that is impossible."""
        raise NotImplementedError

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Allocate more tokens; return false if there is not enough memory."""
        if not self._make_room(tokens):
            return False
        self._private += tokens
        holding.tokens += tokens
        return True

    def release(self, holding: Holding, text: str | None) -> None:
        """Free a finished request. `text`, prompt and answer, stays in the cache; None adds nothing."""
        raise NotImplementedError
