"""Parity: fixed prompts at temperature 0, answered alone and under load. The stored answers show whether two engines differ
by more than each differs from itself."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from servebench.contracts.quality import Endpoint, Grade, Item, ItemAnswer, Judged
from servebench.protocol.kinds.table import kind_named
from servebench.quality.rows import OpenPromptScorer
from servebench.util.common_prefix import common_prefix_length
from servebench.util.errors import ConfigError

LOGPROB_DIGITS = 6


class ParityScorer(OpenPromptScorer):
    """Sends each prompt twice: one at a time, then at the given concurrency. Right when both answers are identical.

    `answer` is the one alone, `extracted` the one under load; `detail` has the tokens and log-probabilities of both, where
    the engine returns them. `servebench compare` compares the answers of two runs. Thinking is compared with the answer that
    follows it: it is generated as well. Rows of your own file need `prompt`.
    """

    name = "parity"
    method = "greedy; the same answer alone and under load"
    max_tokens = 128
    cuts_thinking = False

    def check(self) -> list[str]:
        """See Scorer.check."""
        try:
            self.own_items(1)
        except ConfigError as error:
            return error.faults
        return []

    def evaluate(self, endpoint: Endpoint, *, count: int | None, concurrency: int) -> Sequence[Judged]:
        """See Scorer.evaluate."""
        items = self.own_items(count)
        requests = self._with_logprobs(items, endpoint)
        alone = self.ask(requests, endpoint, "alone", 1)
        loaded = self.ask(requests, endpoint, "under load", concurrency)
        return [
            Judged(item=item, answer=first, grade=parity_grade(first, second))
            for item, first, second in zip(items, alone, loaded, strict=True)
        ]

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """See Scorer.grade. A single answer cannot be compared."""
        return Grade(correct=None, extracted=answer.text or None)

    def _with_logprobs(self, items: Sequence[Item], endpoint: Endpoint) -> Sequence[Item]:
        """Return the items with a request for log-probabilities, unless the engine rejects that."""
        fields = kind_named(self.settings.api).logprob_fields
        extended = [replace(item, body={**item.body, **fields}) for item in items]
        (first,) = self.ask([replace(item, max_tokens=1) for item in extended[:1]], endpoint, "a first one", 1)
        return items if first.outcome == "http_error" else extended


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
