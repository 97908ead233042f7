"""MMLU by generated letter: the model writes A, B, C or D. Likelihood of the letters is another method and not this one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servebench.contracts.quality import Answer, Grade, Item, Scorer
from servebench.quality.data import MMLU
from servebench.quality.rows import examples, read_rows, sample
from servebench.util.errors import ConfigError

MAX_TOKENS = 8
CHANCE = {"chance": 0.25}
"""What guessing gets right: kept with each grade, so that a figure is told from it."""
_COLUMNS = ("answer_a", "answer_b", "answer_c", "answer_d")
_TOLD = re.compile(r"answer\s*(?:is|:)?\s*\(?\**([ABCD])\b", re.IGNORECASE)
_FIRST = re.compile(r"^\W*([ABCD])(?![A-Za-z'])")


def letter_of(text: str) -> str | None:
    """The letter after 'answer is' or 'answer:', else a letter that opens the text alone; None when there is neither."""
    found = _TOLD.search(text) or _FIRST.search(text)
    return found.group(1).upper() if found else None


class MmluScorer(Scorer):
    """MMLU. Rows have `question`, `answer_a` to `answer_d`, `correct_answer` and `topic`."""

    name = "mmlu"
    method = "generated letter"
    source = MMLU

    def items(self, path: Path, count: int, seed: int) -> Sequence[Item]:
        """See Scorer.items. Rows whose right answer is no letter are stray headers and are left out."""
        rows = [row for row in read_rows(path) if row.get("correct_answer") in {"A", "B", "C", "D"}]
        if not rows:
            raise ConfigError(f"no row of {path} is an MMLU question: 'correct_answer' must be A, B, C or D")
        shown, rows = examples(rows, self.settings.shots, seed)
        before = "".join(f"{_asked(row)} {row['correct_answer']}\n\n" for row in shown)
        found = []
        for place, row in sample(rows, count, seed):
            if not row.get("question") or any(row.get(column) is None for column in _COLUMNS):
                raise ConfigError(f"row {place} of {path} is no MMLU question: it needs 'question' and {_COLUMNS}")
            found.append(
                Item(
                    item_id=f"mmlu-{place}",
                    prompt=before + _asked(row),
                    expected=str(row["correct_answer"]),
                    max_tokens=MAX_TOKENS,
                    task=str(row["topic"]) if row.get("topic") else None,
                )
            )
        return found

    def grade(self, item: Item, answer: Answer) -> Grade:
        """See Scorer.grade."""
        if answer.error is not None:
            return Grade(correct=None, extracted=None)
        said = letter_of(answer.text)
        return Grade(correct=said == item.expected, extracted=said, detail=CHANCE)


def _asked(row: Mapping[str, Any]) -> str:
    choices = "\n".join(f"{letter}. {row.get(column)}" for letter, column in zip("ABCD", _COLUMNS, strict=True))
    return f"{row.get('question')}\n{choices}\nAnswer with the letter alone.\nAnswer:"
