"""Parity: fixed prompts at temperature 0, answered alone and under load, kept so that two engines can be compared word by
word: whether they differ by more than each differs from itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from servebench.contracts.quality import Answer, Endpoint, Grade, Item, Judged, Scorer
from servebench.quality.ask import ask_once
from servebench.quality.rows import read_rows, sample
from servebench.util.errors import ConfigError

PROMPTS = Path(__file__).parent / "prompts" / "open.jsonl"
MAX_TOKENS = 128
LOGPROB_DIGITS = 6


class ParityScorer(Scorer):
    """Each prompt is asked twice: one at a time, then at the concurrency. Right: both answers are the same, letter for
    letter. `answer` is the one alone, `extracted` the one under load; `detail` has the tokens and their log-probabilities
    of both, where the engine gives them.

    `servebench compare` sets two runs' answers side by side. Rows of a file of one's own have `prompt`.
    """

    name = "parity"
    method = "greedy; the same answer alone and under load"
    source = PROMPTS
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
        found = []
        for place, row in sample(read_rows(path), count, seed):
            if not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
                raise ConfigError(f'row {place} of {path} has no prompt; give rows like {{"prompt": "..."}}')
            item_id = str(row.get("id") or f"parity-{place}")
            bound = self.settings.max_tokens or MAX_TOKENS
            found.append(Item(item_id=item_id, prompt=row["prompt"], expected="", max_tokens=bound))
        return found

    def evaluate(self, endpoint: Endpoint, *, count: int | None, concurrency: int) -> Sequence[Judged]:
        """See Scorer.evaluate."""
        items = self._items(count)
        told = self._with_logprobs(items, endpoint)
        alone = self._ask(told, endpoint, "alone", 1)
        loaded = self._ask(told, endpoint, "under load", concurrency)
        return [
            Judged(item=item, answer=first, grade=parity_grade(first, second))
            for item, first, second in zip(items, alone, loaded, strict=True)
        ]

    def grade(self, item: Item, answer: Answer) -> Grade:
        """See Scorer.grade: one answer has nothing to be compared with."""
        return Grade(correct=None, extracted=answer.text or None)

    def _items(self, count: int | None) -> Sequence[Item]:
        path = PROMPTS if self.settings.path is None else Path(self.settings.path).expanduser()
        return self.items(path, len(read_rows(path)) if count is None else count, self.settings.seed)

    def _with_logprobs(self, items: Sequence[Item], endpoint: Endpoint) -> Sequence[Item]:
        """The items with the field that asks for log-probabilities, unless the engine refuses it."""
        asked: dict[str, Any] = {"logprobs": True} if self.settings.api == "chat" else {"logprobs": 1}
        told = [replace(item, body={**item.body, **asked}) for item in items]
        (first,) = self._ask([replace(one, max_tokens=1) for one in told[:1]], endpoint, "a first one", 1)
        return items if first.outcome == "http_error" else told

    def _ask(self, items: Sequence[Item], endpoint: Endpoint, part: str, concurrency: int) -> list[Answer]:
        settings = self.settings
        return ask_once(items, endpoint, part, concurrency=concurrency, timeout_s=settings.timeout_s, api=settings.api)


def parity_grade(alone: Answer, loaded: Answer) -> Grade:
    """Whether both are the same. None where one of them did not come."""
    if alone.error is not None:
        return Grade(correct=None, extracted=None)
    detail = {"alone": _kept(alone), "loaded": _kept(loaded)}
    if loaded.error is not None:
        return Grade(correct=None, extracted=None, note=f"under load: {loaded.error}", detail=detail)
    same = alone.text == loaded.text
    shared = len(_common(alone.text, loaded.text))
    note = None if same else f"the same up to character {shared}"
    return Grade(correct=same, extracted=loaded.text, note=note, detail=detail)


def _kept(answer: Answer) -> dict[str, Any]:
    logprobs = answer.logprobs
    return {
        "tokens": None if answer.tokens is None else list(answer.tokens),
        "logprobs": None if logprobs is None else [round(one, LOGPROB_DIGITS) for one in logprobs],
    }


def _common(first: str, second: str) -> str:
    for place, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return first[:place]
    return min(first, second, key=len)
