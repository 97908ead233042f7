"""GSM8K: grade-school arithmetic. Right when the last number of the answer equals the expected one."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from servebench.contracts.quality import Grade, Item, ItemAnswer, Scorer
from servebench.quality.rows import GSM8K, examples, read_rows, sample
from servebench.util.errors import ConfigError

_NUMBER = re.compile(r"-?\d[\d,]*+(?:\.\d++)?+")
_MARKED = re.compile(r"####\s*+\$?+(-?\d[\d,]*+(?:\.\d++)?+)")
_ASK = "{question}\n\nThink step by step, then end with a line '#### ' followed by the number alone."
MAX_TOKENS = 400


def number_of(text: str) -> str | None:
    """Return the number after the last `####`, else the last number of the text, without commas."""
    numbers = _MARKED.findall(text) or _NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else None


class Gsm8kScorer(Scorer):
    """GSM8K. Rows have `question` and `answer` (ending in `#### n`), or `prompt` and `expected`."""

    name = "gsm8k"
    method = "worked out in words; the number after the last ####, else the last number"
    source = GSM8K

    def items(self, path: Path, count: int, seed: int) -> Sequence[Item]:
        """See Scorer.items."""
        shown, rows = examples(read_rows(path), self.settings.shots, seed)
        solved = (_parts(row, f"an example of {path}") for row in shown)
        before = "".join(f"{_ASK.format(question=question)}\n{truth}\n\n" for question, truth, _ in solved)
        items = []
        for place, row in sample(rows, count, seed):
            question, _, expected = _parts(row, f"row {place} of {path}")
            prompt = before + _ASK.format(question=question)
            items.append(Item(item_id=f"gsm8k-{place}", prompt=prompt, expected=expected, max_tokens=MAX_TOKENS))
        return items

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """See Scorer.grade. 18 and 18.0 are equal."""
        number = number_of(answer.text)
        try:
            return Grade(correct=number is not None and Decimal(number) == Decimal(item.expected), extracted=number)
        except InvalidOperation:
            return Grade(correct=False, extracted=number)


def _parts(row: Mapping[str, Any], where: str) -> tuple[str, str, str]:
    question = row.get("question") or row.get("prompt")
    truth = str(row["answer"] if row.get("answer") not in (None, "") else row.get("expected"))
    expected = number_of(truth)
    if not question or expected is None:
        raise ConfigError(f"{where} is not a GSM8K question; it needs 'question' and 'answer'")
    return str(question), truth if "####" in truth else f"#### {expected}", expected
