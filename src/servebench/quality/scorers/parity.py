"""Parity: fixed prompts at temperature 0, answered alone and under load. The stored answers show whether two engines differ
by more than each differs from itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from servebench.contracts.quality import Endpoint, Grade, Item, ItemAnswer, Judged, Scorer
from servebench.quality.ask import ask_once
from servebench.quality.data import OPEN_PROMPTS
from servebench.quality.rows import prompt_items, read_rows
from servebench.util.errors import ConfigError
from servebench.util.text import common_prefix_length

MAX_TOKENS = 128
LOGPROB_DIGITS = 6


class ParityScorer(Scorer):
    """Sends each prompt twice: one at a time, then at the given concurrency. Right when both answers are identical.

    `answer` is the one alone, `extracted` the one under load; `detail` has the tokens and log-probabilities of both, where
    the engine returns them. `servebench compare` compares the answers of two runs. Rows of your own file need `prompt`.
    """

    name = "parity"
    method = "greedy; the same answer alone and under load"
    source = OPEN_PROMPTS
    asks_itself = True

    def check(self) -> list[str]:
        """See Scorer.check."""
        try:
            self._items(1)
        except ConfigError as error:
            return error.faults
        return []

    def items(self, path: Path, count: int, seed: int) -> Sequence[Item]:
        """See Scorer.items."""
        bound = self.settings.max_tokens or MAX_TOKENS
        return prompt_items(path, count, seed, name=self.name, max_tokens=bound)

    def evaluate(self, endpoint: Endpoint, *, count: int | None, concurrency: int) -> Sequence[Judged]:
        """See Scorer.evaluate."""
        items = self._items(count)
        requests = self._with_logprobs(items, endpoint)
        alone = self._ask(requests, endpoint, "alone", 1)
        loaded = self._ask(requests, endpoint, "under load", concurrency)
        return [
            Judged(item=item, answer=first, grade=parity_grade(first, second))
            for item, first, second in zip(items, alone, loaded, strict=True)
        ]

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """See Scorer.grade. A single answer cannot be compared."""
        return Grade(correct=None, extracted=answer.text or None)

    def _items(self, count: int | None) -> Sequence[Item]:
        path = OPEN_PROMPTS if self.settings.path is None else Path(self.settings.path).expanduser()
        return self.items(path, len(read_rows(path)) if count is None else count, self.settings.seed)

    def _with_logprobs(self, items: Sequence[Item], endpoint: Endpoint) -> Sequence[Item]:
        """Return the items with a request for log-probabilities, unless the engine rejects that."""
        extra: dict[str, Any] = {"logprobs": True} if self.settings.api == "chat" else {"logprobs": 1}
        extended = [replace(item, body={**item.body, **extra}) for item in items]
        (first,) = self._ask([replace(item, max_tokens=1) for item in extended[:1]], endpoint, "a first one", 1)
        return items if first.outcome == "http_error" else extended

    def _ask(self, items: Sequence[Item], endpoint: Endpoint, part: str, concurrency: int) -> list[ItemAnswer]:
        settings = self.settings
        return ask_once(items, endpoint, part, concurrency=concurrency, timeout_s=settings.timeout_s, api=settings.api)


def parity_grade(alone: ItemAnswer, loaded: ItemAnswer) -> Grade:
    """Grade whether both answers are identical; `correct` is None if one of them is missing."""
    if alone.error is not None:
        return Grade(correct=None, extracted=None)
    detail = {"alone": _tokens_of(alone), "loaded": _tokens_of(loaded)}
    if loaded.error is not None:
        return Grade(correct=None, extracted=None, note=f"under load: {loaded.error}", detail=detail)
    same = alone.text == loaded.text
    note = None if same else f"identical up to character {common_prefix_length(alone.text, loaded.text)}"
    return Grade(correct=same, extracted=loaded.text, note=note, detail=detail)


def _tokens_of(answer: ItemAnswer) -> dict[str, Any]:
    logprobs = answer.logprobs
    return {
        "tokens": None if answer.tokens is None else list(answer.tokens),
        "logprobs": None if logprobs is None else [round(one, LOGPROB_DIGITS) for one in logprobs],
    }
