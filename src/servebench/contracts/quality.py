"""What passes between a scorer and what asks the engine: questions out, answers in, grades out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Item:
    """One question. `expected` is the right answer in the scorer's own form; `item_id` is the same for every engine."""

    item_id: str
    prompt: str
    expected: str
    max_tokens: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the engine said to one item. `error` is one line when it said nothing; `text` is then empty."""

    item_id: str
    text: str
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Grade:
    """`correct` is None when the item was never answered; `extracted` is what was read out of the answer, if anything."""

    correct: bool | None
    extracted: str | None


class Scorer:
    """Makes items from a file and grades answers. Both are pure of the engine: the same file and seed give the same items."""

    name: ClassVar[str]
    method: ClassVar[str]
    """How an answer is graded, in a few words, so that figures of other methods are not compared with it."""

    def items(self, path: Path, count: int, seed: int) -> Sequence[Item]:
        """A sample of `count` items (all, where there are fewer). Raises ConfigError when the file cannot be used."""
        raise NotImplementedError

    def grade(self, item: Item, answer: Answer) -> Grade:
        """Judge one answer."""
        raise NotImplementedError
