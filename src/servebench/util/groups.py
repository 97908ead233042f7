"""Items by what they have in common."""

from collections.abc import Callable, Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def grouped(items: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    """Return the items by their key; keys and items are in the order in which they come."""
    found: dict[K, list[V]] = {}
    for one in items:
        found.setdefault(key(one), []).append(one)
    return found
