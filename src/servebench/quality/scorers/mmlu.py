"""MMLU by generated letter: the model writes A, B, C or D. Comparing the likelihood of the letters is another method."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servebench.contracts.quality import Grade, Item, ItemAnswer, Scorer
from servebench.quality.rows import MMLU, examples, read_rows, sample
from servebench.util.errors import ConfigError

MAX_TOKENS = 8
CHANCE = {"chance": 0.25}
"""The share that guessing gets right, stored with each grade."""
_COLUMNS = ("answer_a", "answer_b", "answer_c", "answer_d")
_STATED = re.compile(r"answer\s*+(?:is|:)?+\s*+\(?+\**+([ABCD])\b", re.IGNORECASE)
_FIRST = re.compile(r"^\W*([ABCD])(?![A-Za-z'])")


def letter_of(text: str) -> str | None:
    """Return the letter after 'answer is' or 'answer:', else a single letter at the beginning; None when there is neither."""
    match = _STATED.search(text) or _FIRST.search(text)
    return match.group(1).upper() if match else None


class MmluScorer(Scorer):
    """MMLU. Rows have `question`, `answer_a` to `answer_d`, `correct_answer` and `topic`."""

    name = "mmlu"
    method = "generated letter"
    source = MMLU

    def items(self, path: Path, count: int, seed: int) -> Sequence[Item]:
        """See Scorer.items. Headers among the rows are skipped."""
        rows = []
        for place, row in enumerate(read_rows(path)):
            if all(row.get(column) == column for column in _COLUMNS):
                continue
            lettered = row.get("correct_answer") in tuple("ABCD")
            if not lettered or not row.get("question") or any(row.get(column) is None for column in _COLUMNS):
                needs = f"'question', {_COLUMNS}, and A, B, C or D as 'correct_answer'"
                raise ConfigError(f"row {place} of {path} is not an MMLU question; it needs {needs}")
            rows.append(row)
        shown, rows = examples(rows, self.settings.shots, seed)
        before = "".join(f"{_question(row)} {row['correct_answer']}\n\n" for row in shown)
        return [
            Item(
                item_id=f"mmlu-{place}",
                prompt=before + _question(row),
                expected=str(row["correct_answer"]),
                max_tokens=MAX_TOKENS,
                task=str(row["topic"]) if row.get("topic") else None,
            )
            for place, row in sample(rows, count, seed)
        ]

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """See Scorer.grade."""
        letter = letter_of(answer.text)
        return Grade(correct=letter == item.expected, extracted=letter, detail=CHANCE)


def _question(row: Mapping[str, Any]) -> str:
    choices = "\n".join(f"{letter}. {row.get(column)}" for letter, column in zip("ABCD", _COLUMNS, strict=True))
    return f"{row.get('question')}\n{choices}\nAnswer with the letter alone.\nAnswer:"
