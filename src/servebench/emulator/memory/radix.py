"""KV memory as a radix tree of token strings."""

from __future__ import annotations

from dataclasses import dataclass, field

from servebench.emulator.memory.base import Holding, KvMemory
from servebench.emulator.text import CHARACTERS, count_tokens
from servebench.util.common_prefix import common_prefix_length

EVICT_PARTS = 50
"""An eviction frees at least this fraction (1 / EVICT_PARTS) of the capacity."""


@dataclass(slots=True, eq=False)
class _Node:
    """A node of the radix tree with the edge to it. Its text is a whole number of tokens, except for a leaf's."""

    text: str
    parent: _Node | None
    children: dict[str, _Node] = field(default_factory=dict)
    pins: int = 0
    used_at: int = 0


class RadixMemory(KvMemory):
    """A radix tree of token strings, shared to the token (SGLang). The least recently used leaves are evicted first."""

    def __init__(self, capacity: int) -> None:
        """`capacity` in tokens."""
        super().__init__(capacity)
        self._root = _Node("", None)
        self._tree = 0
        self._pinned = 0
        self._clock = 0

    def used(self) -> int:
        """Return private tokens and the tokens of pinned parts of the tree."""
        return self._private + self._pinned

    def _walk(self, text: str) -> tuple[_Node, int, int]:
        """Return the deepest matching node, how many of its characters match, and how many match in total."""
        node, done = self._root, 0
        while done < len(text):
            child = node.children.get(text[done : done + CHARACTERS])
            if child is None:
                break
            shared = _shared_length(child.text, text, done)
            done += shared
            if shared < len(child.text):
                return child, shared, done
            node = child
        return node, len(node.text), done

    def cached(self, text: str) -> int:
        """Return the cached tokens at the start of the prompt, to the token."""
        return min(self._walk(text)[2] // CHARACTERS, max(0, count_tokens(text) - 1))

    def _split(self, node: _Node, at: int) -> _Node:
        """Split a node after `at` characters and return its upper part."""
        assert node.parent is not None
        upper = _Node(node.text[:at], node.parent, pins=node.pins, used_at=node.used_at)
        node.parent.children[node.text[:CHARACTERS]] = upper
        node.text = node.text[at:]
        node.parent = upper
        upper.children[node.text[:CHARACTERS]] = node
        return upper

    def _reach(self, text: str, *, insert: bool) -> tuple[_Node, int]:
        """Return the node where the text ends, inserted if necessary, and the number of added tokens."""
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

    def _add_pins(self, node: _Node, change: int) -> None:
        self._clock += 1
        ancestor: _Node | None = node
        while ancestor is not None and ancestor is not self._root:
            ancestor.used_at = self._clock
            if change > 0 and ancestor.pins == 0:
                self._pinned += len(ancestor.text) // CHARACTERS
            ancestor.pins += change
            if change < 0 and ancestor.pins == 0:
                self._pinned -= len(ancestor.text) // CHARACTERS
            ancestor = ancestor.parent

    def _make_room(self, tokens: int) -> bool:
        free = self.capacity - self._private - self._tree
        if free >= tokens:
            return True
        if self.capacity - self._private - self._pinned < tokens:
            return False
        # evict more than needed, so that the tree is not walked for each request
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
        leaves, pending = [], [self._root]
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            if not node.children and node is not self._root and node.pins == 0:
                leaves.append(node)
        return sorted(leaves, key=lambda leaf: leaf.used_at)

    def admit(self, text: str, tokens: int, reserve: int) -> Holding | None:
        """Pin the cached prefix and allocate memory for the rest."""
        cached = min(self.cached(text), max(0, tokens - 1))
        node, _ = self._reach(text[: cached * CHARACTERS], insert=False)
        self._add_pins(node, +1)
        wanted = tokens - cached + reserve
        if not self._make_room(wanted):
            self._add_pins(node, -1)
            return None
        self._private += wanted
        return Holding(tokens=wanted, cached=cached, pin=node)

    def computed(self, holding: Holding, text: str) -> None:
        """Insert the prompt into the tree, where other requests find it."""
        node, added = self._reach(text, insert=True)
        self._add_pins(node, +1)
        self._add_pins(holding.pin, -1)
        holding.pin = node
        # another request may have computed the same at the same time; one copy is dropped
        moved = min(holding.tokens, max(added, count_tokens(text) - holding.cached))
        holding.tokens -= moved
        self._private -= moved

    def release(self, holding: Holding, text: str | None) -> None:
        """Insert prompt and answer into the tree."""
        self._private -= holding.tokens
        holding.tokens = 0
        if text is not None:
            node, _ = self._reach(text, insert=True)
            self._add_pins(node, +1)
            self._add_pins(node, -1)
        self._add_pins(holding.pin, -1)
        holding.pin = self._root


def _shared_length(edge: str, text: str, start: int) -> int:
    """Return how many characters of an edge the text shares from `start` on, rounded down to whole tokens."""
    if text.startswith(edge, start):
        return len(edge)
    length = common_prefix_length(edge, text[start : start + len(edge)])
    return length - length % CHARACTERS
