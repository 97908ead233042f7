"""GSM8K: school arithmetic in words. Right when the last number of the answer equals the expected one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path

from servebench.contracts.quality import Answer, Grade, Item, Scorer
from servebench.errors import ConfigError
from servebench.quality.rows import read_rows, sample

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_MARKED = re.compile(r"####\s*\$?(-?\d[\d,]*(?:\.\d+)?)")
_ASK = "{question}\n\nThink step by step, then end with a line '#### ' followed by the number alone."


def number_of(text: str) -> str | None:
    """The number after the last `####`, else the last number of the text, without commas."""
    found = _MARKED.findall(text) or _NUMBER.findall(text)
    return found[-1].replace(",", "") if found else None


class Gsm8kScorer(Scorer):
    """Zero-shot GSM8K. Rows have `question` and `answer` (ending in `#### n`), or `prompt` and `expected`."""

    name = "gsm8k"
    method = "zero-shot; the number after the last ####, else the last number"

    def items(self, path: Path, count: int, seed: int) -> Sequence[Item]:
        """See Scorer.items."""
        found = []
        for place, row in sample(read_rows(path), count, seed):
            question, truth = row.get("question") or row.get("prompt"), row.get("answer") or row.get("expected")
            expected = number_of(str(truth)) if truth is not None else None
            if not question or expected is None:
                raise ConfigError(f"row {place} of {path} is no GSM8K question: it needs 'question' and 'answer'")
            prompt = _ASK.format(question=question)
            found.append(Item(item_id=f"gsm8k-{place}", prompt=prompt, expected=expected, max_tokens=400))
        return found

    def grade(self, item: Item, answer: Answer) -> Grade:
        """See Scorer.grade. 18 and 18.0 are equal."""
        if answer.error is not None:
            return Grade(correct=None, extracted=None)
        said = number_of(answer.text)
        try:
            return Grade(correct=said is not None and Decimal(said) == Decimal(item.expected), extracted=said)
        except InvalidOperation:
            return Grade(correct=False, extracted=said)
