"""KV memory in tokens, and the prefix cache: which part of a prompt need not be computed again.

What finished requests left is kept until memory is needed, and the least recently used is evicted first, never what a running
request uses. The memory works on the text itself: every four characters are a token (see `text`).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from servebench.emulator.text import CHARACTERS


@dataclass(slots=True)
class Holding:
    """What a running request occupies: `tokens` of private memory, and a pin on shared memory."""

    tokens: int
    cached: int
    pin: Any = None


def _round_up(tokens: int, block: int) -> int:
    return -(-tokens // block) * block


class KvMemory:
    """The KV memory of one engine, in blocks, with an optional prefix cache.

    Blocks are found by a chain of hashes. Only whole blocks are shared, and the last token of a prompt is always computed.
    An engine that shares single tokens has blocks of one.
    """

    def __init__(self, capacity: int, block_tokens: int, *, shared: bool) -> None:
        """`capacity` in tokens."""
        self.capacity = capacity
        self._private = 0
        """Tokens that belong to one running request each."""
        self._block = block_tokens
        self._shared = shared
        self._pins: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def used(self) -> int:
        """Return the tokens occupied by running requests: their own, and those of pinned blocks."""
        return self._private + len(self._pins) * self._block

    def _chain(self, text: str) -> Iterator[int]:
        width = self._block * CHARACTERS
        last = 0
        for start in range(0, len(text) - width + 1, width):
            last = hash((last, text[start : start + width]))
            yield last

    def _present(self, text: str) -> list[int]:
        if not self._shared:
            return []
        present = []
        # the last token of a prompt is always computed, since it generates the first token of the answer
        for link in self._chain(text[: max(0, len(text) - 1)]):
            if link not in self._pins and link not in self._idle:
                break
            present.append(link)
        return present

    def cached(self, text: str) -> int:
        """Return how many tokens of this prompt are cached: those of whole blocks at its start. Changes nothing."""
        return len(self._present(text)) * self._block

    def _pin(self, links: Iterable[int]) -> None:
        for link in links:
            self._idle.pop(link, None)
            self._pins[link] = self._pins.get(link, 0) + 1

    def _make_room(self, tokens: int) -> bool:
        """Evict what is not in use until so many tokens are free; return false if that is impossible."""
        free = self.capacity - self.used() - len(self._idle) * self._block
        while free < tokens and self._idle:
            self._idle.popitem(last=False)
            free += self._block
        return free >= tokens

    def admit(self, text: str, tokens: int, reserve: int) -> Holding | None:
        """Pin the cached blocks of a prompt of `tokens` and allocate blocks for the rest and `reserve` more; return None if there
        is not enough memory."""
        links = self._present(text)
        self._pin(links)
        cached = min(len(links) * self._block, max(0, tokens - 1))
        wanted = _round_up(max(0, tokens + reserve - len(links) * self._block), self._block)
        if not self._make_room(wanted):
            self._unpin(links)
            return None
        self._private += wanted
        return Holding(tokens=wanted, cached=cached, pin=links)

    def _unpin(self, links: list[int]) -> None:
        # the deepest is evicted first: a chain is useless without its beginning
        for link in reversed(links):
            left = self._pins[link] - 1
            if left:
                self._pins[link] = left
            else:
                del self._pins[link]
                self._idle[link] = None

    def computed(self, holding: Holding, text: str) -> None:
        """Turn the prompt's whole blocks into shared ones, pinned by the request."""
        for link in islice(self._chain(text), len(holding.pin), None) if self._shared else ():
            if holding.tokens < self._block:
                break
            holding.tokens -= self._block
            self._private -= self._block
            self._pin([link])
            holding.pin.append(link)

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Allocate whole blocks for more tokens; return false if there is not enough memory."""
        tokens = _round_up(tokens, self._block)
        if not self._make_room(tokens):
            return False
        self._private += tokens
        holding.tokens += tokens
        return True

    def release(self, holding: Holding, text: str | None) -> None:
        """Free a finished request. The blocks of `text`, prompt and answer, stay until their memory is needed; None adds none."""
        if text is not None:
            self.computed(holding, text)
        self._private -= holding.tokens
        holding.tokens = 0
        self._unpin(holding.pin)
        holding.pin = []
