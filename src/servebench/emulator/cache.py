"""KV memory in tokens, and the prefix caches: what of a prompt need not be computed again.

All three keep what finished requests left until room is needed, least recently used first, and never throw out what a
running request uses. They work on the text itself, whose every four characters are a token (see `text`).

- `BlockMemory` (vLLM, TensorRT-LLM, LMDeploy): blocks of `block_tokens`, found by a chain of hashes; only whole blocks
  are shared, and the last token of a prompt is always computed.
- `RadixMemory` (SGLang): a radix tree of token strings, shared to the token.
- `SlotMemory` (llama.cpp, Ollama): each slot keeps its last conversation; a request takes the free slot that begins most
  like it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from servebench.emulator.text import CHARACTERS, count

EVICT_PARTS = 50


@dataclass(slots=True)
class Holding:
    """What a running request holds: `tokens` of memory of its own, and a pin on shared memory."""

    tokens: int
    cached: int
    pin: Any = None


class Memory(Protocol):
    """KV memory of one engine."""

    capacity: int

    def used(self) -> int:
        """Tokens held by running requests."""
        ...

    def cached(self, text: str) -> int:
        """Tokens of this prompt that are there. Changes nothing."""
        ...

    def admit(self, text: str, tokens: int, reserve: int) -> Holding | None:
        """Room for a prompt of `tokens`, and for `reserve` more; None when there is none."""
        ...

    def computed(self, holding: Holding, text: str) -> None:
        """The prompt is computed: others may share it from now on."""
        ...

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Room for so many tokens more; false when there is none."""
        ...

    def release(self, holding: Holding, text: str | None) -> None:
        """The request is over. `text` is what it leaves in the cache: prompt and answer; None leaves nothing new."""
        ...


def _rounded(tokens: int, block: int) -> int:
    return -(-tokens // block) * block


class BlockMemory:
    """Paged memory, with or without a prefix cache."""

    def __init__(self, capacity: int, block_tokens: int, *, shared: bool) -> None:
        """`capacity` in tokens."""
        self.capacity = capacity
        self._block = block_tokens
        self._shared = shared
        self._private = 0
        self._pins: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def used(self) -> int:
        """Private tokens and pinned blocks."""
        return self._private + len(self._pins) * self._block

    def _chain(self, text: str) -> list[int]:
        width = self._block * CHARACTERS
        found: list[int] = []
        last = 0
        for place in range(0, len(text) - width + 1, width):
            last = hash((last, text[place : place + width]))
            found.append(last)
        return found

    def _present(self, text: str) -> list[int]:
        if not self._shared:
            return []
        present = []
        # the last token of a prompt is computed in any case: it gives the first one of the answer
        for link in self._chain(text[: max(0, len(text) - 1)]):
            if link not in self._pins and link not in self._idle:
                break
            present.append(link)
        return present

    def cached(self, text: str) -> int:
        """Whole blocks at the front of the prompt."""
        return len(self._present(text)) * self._block

    def _pin(self, links: Iterable[int]) -> None:
        for link in links:
            self._idle.pop(link, None)
            self._pins[link] = self._pins.get(link, 0) + 1

    def _room(self, tokens: int) -> bool:
        free = self.capacity - self.used() - len(self._idle) * self._block
        while free < tokens and self._idle:
            self._idle.popitem(last=False)
            free += self._block
        return free >= tokens

    def admit(self, text: str, tokens: int, reserve: int) -> Holding | None:
        """Pins the cached blocks, and takes new ones for the rest."""
        links = self._present(text)
        self._pin(links)
        cached = min(len(links) * self._block, max(0, tokens - 1))
        wanted = _rounded(max(0, tokens + reserve - len(links) * self._block), self._block)
        if not self._room(wanted):
            self._unpin(links)
            return None
        self._private += wanted
        return Holding(tokens=wanted, cached=cached, pin=links)

    def _unpin(self, links: list[int]) -> None:
        # the deepest first: a chain is of no use without its beginning
        for link in reversed(links):
            left = self._pins[link] - 1
            if left:
                self._pins[link] = left
            else:
                del self._pins[link]
                self._idle[link] = None

    def computed(self, holding: Holding, text: str) -> None:
        """The prompt's whole blocks become shared ones, which the request pins."""
        if self._shared:
            self._share(holding, text)

    def _share(self, holding: Holding, text: str) -> None:
        more = self._chain(text)[len(holding.pin) :]
        for link in more:
            if holding.tokens < self._block:
                break
            holding.tokens -= self._block
            self._private -= self._block
            self._pin([link])
            holding.pin.append(link)

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Takes blocks as they are needed."""
        wanted = _rounded(tokens, self._block)
        if not self._room(wanted):
            return False
        self._private += wanted
        holding.tokens += wanted
        return True

    def release(self, holding: Holding, text: str | None) -> None:
        """Blocks of prompt and answer stay until their room is needed."""
        if self._shared and text is not None:
            self._share(holding, text)
        self._private -= holding.tokens
        holding.tokens = 0
        self._unpin(holding.pin)
        holding.pin = []


@dataclass(slots=True, eq=False)
class _Node:
    """An edge of the radix tree and all below it. The text is a whole number of tokens, but for a leaf's."""

    text: str
    parent: _Node | None
    children: dict[str, _Node] = field(default_factory=dict)
    pins: int = 0
    used_at: int = 0


class RadixMemory:
    """A radix tree of what was computed, least recently used leaves out first."""

    def __init__(self, capacity: int) -> None:
        """`capacity` in tokens."""
        self.capacity = capacity
        self._root = _Node("", None)
        self._private = 0
        self._tree = 0
        self._pinned = 0
        self._clock = 0

    def used(self) -> int:
        """Private tokens and pinned parts of the tree."""
        return self._private + self._pinned

    def _walk(self, text: str) -> tuple[_Node, int, int]:
        """The deepest node that the text reaches, how many of its characters match, and how many match in all."""
        node, done = self._root, 0
        while done < len(text):
            child = node.children.get(text[done : done + CHARACTERS])
            if child is None:
                break
            shared = _shared(child.text, text, done)
            done += shared
            if shared < len(child.text):
                return child, shared, done
            node = child
        return node, len(node.text), done

    def cached(self, text: str) -> int:
        """Tokens at the front of the prompt, to the token."""
        return min(self._walk(text)[2] // CHARACTERS, max(0, count(text) - 1))

    def _split(self, node: _Node, at: int) -> _Node:
        """The upper part of a node, cut after `at` characters."""
        assert node.parent is not None
        upper = _Node(node.text[:at], node.parent, pins=node.pins, used_at=node.used_at)
        node.parent.children[node.text[:CHARACTERS]] = upper
        node.text = node.text[at:]
        node.parent = upper
        upper.children[node.text[:CHARACTERS]] = node
        return upper

    def _reach(self, text: str, *, insert: bool) -> tuple[_Node, int]:
        """The node where the text ends in the tree (made where asked), and the tokens added."""
        node, inside, done = self._walk(text)
        if node is not self._root and inside < len(node.text):
            if inside == 0:
                assert node.parent is not None
                node = node.parent
            else:
                node = self._split(node, inside)
        added = 0
        rest = text[done : len(text) - (len(text) - done) % CHARACTERS]
        if insert and rest:
            leaf = _Node(rest, node)
            node.children[rest[:CHARACTERS]] = leaf
            added = len(rest) // CHARACTERS
            self._tree += added
            node = leaf
        return node, added

    def _touch(self, node: _Node, change: int) -> None:
        self._clock += 1
        place: _Node | None = node
        while place is not None and place is not self._root:
            place.used_at = self._clock
            if change > 0 and place.pins == 0:
                self._pinned += len(place.text) // CHARACTERS
            place.pins += change
            if change < 0 and place.pins == 0:
                self._pinned -= len(place.text) // CHARACTERS
            place = place.parent

    def _room(self, tokens: int) -> bool:
        free = self.capacity - self._private - self._tree
        if free >= tokens:
            return True
        if self.capacity - self._private - self._pinned < tokens:
            return False
        # some more than needed, so that the tree is not walked for each request
        wanted = tokens + self.capacity // EVICT_PARTS
        for leaf in self._leaves_by_age():
            node: _Node | None = leaf
            while node is not None and node is not self._root and not node.children and node.pins == 0:
                size = len(node.text) // CHARACTERS
                parent = node.parent
                assert parent is not None
                del parent.children[node.text[:CHARACTERS]]
                self._tree -= size
                free += size
                node = parent
            if free >= wanted:
                return True
        return free >= tokens

    def _leaves_by_age(self) -> list[_Node]:
        leaves, todo = [], [self._root]
        while todo:
            node = todo.pop()
            todo.extend(node.children.values())
            if not node.children and node is not self._root and node.pins == 0:
                leaves.append(node)
        return sorted(leaves, key=lambda leaf: leaf.used_at)

    def admit(self, text: str, tokens: int, reserve: int) -> Holding | None:
        """Pins the cached prefix, and takes room for the rest."""
        cached = min(self.cached(text), max(0, tokens - 1))
        node, _ = self._reach(text[: cached * CHARACTERS], insert=False)
        self._touch(node, +1)
        wanted = tokens - cached + reserve
        if not self._room(wanted):
            self._touch(node, -1)
            return None
        self._private += wanted
        return Holding(tokens=wanted, cached=cached, pin=node)

    def computed(self, holding: Holding, text: str) -> None:
        """The prompt goes into the tree, where others find it."""
        node, added = self._reach(text, insert=True)
        self._touch(node, +1)
        self._touch(holding.pin, -1)
        holding.pin = node
        # what another computed at the same time is thrown away
        given = min(holding.tokens, max(added, count(text) - holding.cached))
        holding.tokens -= given
        self._private -= given

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Room to the token."""
        if not self._room(tokens):
            return False
        self._private += tokens
        holding.tokens += tokens
        return True

    def release(self, holding: Holding, text: str | None) -> None:
        """Prompt and answer go into the tree."""
        self._private -= holding.tokens
        holding.tokens = 0
        if text is not None:
            node, _ = self._reach(text, insert=True)
            self._touch(node, +1)
            self._touch(node, -1)
        self._touch(holding.pin, -1)
        holding.pin = self._root


def _shared(edge: str, text: str, start: int) -> int:
    """How many characters of an edge the text shares from `start` on, in whole tokens."""
    if text.startswith(edge, start):
        return len(edge)
    length = common(edge, text[start : start + len(edge)])
    return length - length % CHARACTERS


def common(one: str, other: str) -> int:
    """How many characters two texts share at the front."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class SlotMemory:
    """As many conversations as slots, each with its part of the context."""

    def __init__(self, slots: int, capacity: int, *, shared: bool) -> None:
        """`capacity` in tokens, for all slots together."""
        self.capacity = capacity
        self._shared = shared
        self._texts = [""] * slots
        self._free = OrderedDict[int, None]((slot, None) for slot in range(slots))
        self._private = 0

    def used(self) -> int:
        """Tokens of the busy slots."""
        return self._private

    def _best(self, text: str) -> tuple[int | None, int]:
        best: tuple[int | None, int] = (next(iter(self._free), None), 0)
        for slot in self._free if self._shared else ():
            length = common(self._texts[slot], text) // CHARACTERS
            if length > best[1]:
                best = (slot, length)
        return best

    def cached(self, text: str) -> int:
        """Tokens that the best free slot shares."""
        return min(self._best(text)[1], max(0, count(text) - 1))

    def admit(self, text: str, tokens: int, reserve: int) -> Holding | None:
        """The free slot that begins most like it, else the one that was idle longest."""
        slot, shared = self._best(text)
        if slot is None:
            return None
        del self._free[slot]
        self._private += tokens
        return Holding(tokens=tokens, cached=min(shared, max(0, tokens - 1)), pin=slot)

    def computed(self, holding: Holding, text: str) -> None:
        """Nobody else can use a slot that is busy."""

    def grow(self, holding: Holding, tokens: int) -> bool:
        """A slot's context is its own."""
        self._private += tokens
        holding.tokens += tokens
        return True

    def release(self, holding: Holding, text: str | None) -> None:
        """The slot keeps the conversation."""
        self._private -= holding.tokens
        if text is not None:
            self._texts[holding.pin] = text
        self._free[holding.pin] = None
