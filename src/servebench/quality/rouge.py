"""ROUGE: how many of the words of a reference an answer has. Needs the package rouge-score, of the extra `quality`."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servebench.contracts.quality import Answer, Grade, Item, Judged, Scorer
from servebench.contracts.request import Request
from servebench.contracts.results import Record
from servebench.contracts.settings import QualitySettings
from servebench.quality.load_answers import answer_of, answered, item_of
from servebench.quality.rows import read_rows, sample
from servebench.util.errors import ConfigError

KINDS = ("rouge1", "rouge2", "rougeL")
FORMAT = '{"prompt": "...", "reference": "..."}'
_PROMPTS = ("prompt", "document", "article", "text", "question")
_REFERENCES = ("reference", "summary", "highlights", "target", "answer")
MAX_TOKENS = 256
_ASK = {"document": "Summarise the following text in a few sentences.\n\n{text}\n\nSummary:"}
_ASK["article"] = _ASK["text"] = _ASK["document"]


class RougeScorer(Scorer):
    """Answers against references: those of a file (`quality.path`), else the load's own where its workload has summaries.

    The score is the F measure of ROUGE-L; nothing is right or wrong. `detail` has precision, recall and F of ROUGE-1, 2, L.
    """

    name = "rouge"
    method = "ROUGE-L F1, Porter stemmer (rouge-score)"
    load_reference = "summary"

    def __init__(self, settings: QualitySettings | None = None) -> None:
        super().__init__(settings)
        self.grades_load = self.settings.path is None
        self._measure: Any = None

    def check(self) -> list[str]:
        """See Scorer.check."""
        if importlib.util.find_spec("rouge_score") is None:
            return [
                "quality=rouge needs the package rouge-score; install it with pip install 'servebench-suite[quality]'"
            ]
        return []

    def items(self, path: Path, count: int, seed: int) -> Sequence[Item]:
        """See Scorer.items. A row has a prompt (or a document to be summarised) and a reference."""
        found = []
        for place, row in sample(read_rows(path), count, seed):
            asked = next((name for name in _PROMPTS if isinstance(row.get(name), str) and row[name].strip()), None)
            wanted = next((name for name in _REFERENCES if isinstance(row.get(name), str) and row[name].strip()), None)
            if asked is None or wanted is None:
                raise ConfigError(f"row {place} of {path} has no text and reference; give rows like {FORMAT}")
            prompt = _ASK.get(asked, "{text}").format(text=row[asked])
            item_id = str(row.get("id") or f"rouge-{place}")
            found.append(Item(item_id=item_id, prompt=prompt, expected=row[wanted], max_tokens=MAX_TOKENS))
        return found

    def grade(self, item: Item, answer: Answer) -> Grade:
        """See Scorer.grade."""
        if answer.error is not None:
            return Grade(correct=None, extracted=None)
        if self._measure is None:
            from rouge_score.rouge_scorer import RougeScorer as Measure

            self._measure = Measure(KINDS, use_stemmer=True)
        found = self._measure.score(item.expected, answer.text)
        detail = {
            kind: {"precision": one.precision, "recall": one.recall, "f": one.fmeasure} for kind, one in found.items()
        }
        return Grade(correct=None, extracted=answer.text, score=float(found["rougeL"].fmeasure), detail=detail)

    def grade_load(self, requests: Sequence[Request], records: Sequence[Record]) -> Sequence[Judged]:
        """See Scorer.grade_load. Requests whose reference has no `summary` are passed over."""
        found = []
        for request, record in answered(requests, records):
            reference = request.reference
            if isinstance(reference, Mapping) and isinstance(summary := reference.get("summary"), str) and summary:
                item, answer = item_of(request, summary), answer_of(record)
                found.append(Judged(item=item, answer=answer, grade=self.grade(item, answer)))
        return found
