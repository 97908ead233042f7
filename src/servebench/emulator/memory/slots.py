"""KV memory of slots, each with its last conversation."""

from collections import OrderedDict

from servebench.emulator.memory.base import Holding, KvMemory
from servebench.emulator.text import CHARACTERS, count_tokens
from servebench.util.common_prefix import common_prefix_length


class SlotMemory(KvMemory):
    """Slots that each keep their last conversation (llama.cpp, Ollama).

    A request takes the free slot with the longest common prefix.
    """

    def __init__(self, slots: int, capacity: int, *, shared: bool) -> None:
        """`capacity` is in tokens, for all slots together."""
        super().__init__(capacity)
        self._shared = shared
        self._texts = [""] * slots
        self._free = OrderedDict[int, None]((slot, None) for slot in range(slots))

    def _best(self, text: str) -> tuple[int | None, int]:
        best: tuple[int | None, int] = (next(iter(self._free), None), 0)
        for slot in self._free if self._shared else ():
            length = common_prefix_length(self._texts[slot], text) // CHARACTERS
            if length > best[1]:
                best = (slot, length)
        return best

    def cached(self, text: str) -> int:
        """Return the tokens shared with the best free slot."""
        return min(self._best(text)[1], max(0, count_tokens(text) - 1))

    def admit(self, text: str, tokens: int, reserve: int) -> Holding | None:
        """Take the free slot with the longest common prefix, else the one that was idle longest."""
        slot, shared = self._best(text)
        if slot is None:
            return None
        del self._free[slot]
        self._private += tokens
        return Holding(tokens=tokens, cached=min(shared, max(0, tokens - 1)), pin=slot)

    def _make_room(self, tokens: int) -> bool:
        """Always succeed: a slot has a context of its own."""
        return True

    def release(self, holding: Holding, text: str | None) -> None:
        """Keep the conversation in the slot."""
        self._private -= holding.tokens
        if text is not None:
            self._texts[holding.pin] = text
        self._free[holding.pin] = None
