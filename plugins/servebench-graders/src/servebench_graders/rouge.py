"""ROUGE: the overlap of an answer with a reference."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from servebench.plugin import (
    Grade,
    Item,
    ItemAnswer,
    Judged,
    QualitySettings,
    Record,
    Request,
    RowScorer,
    answer_of,
    answered_requests,
    item_of,
)

KINDS = ("rouge1", "rouge2", "rougeL")
FORMAT = '{"prompt": "...", "reference": "..."}'
_PROMPTS = ("prompt", "document", "article", "text", "question")
_REFERENCES = ("reference", "summary", "highlights", "target", "answer")
MAX_TOKENS = 256
_ASK = {"document": "Summarise the following text in a few sentences.\n\n{text}\n\nSummary:"}
_ASK["article"] = _ASK["text"] = _ASK["document"]


class RougeScorer(RowScorer):
    """Compares answers with references from a file (`quality.path`), else those of the load's workload, if it has any.

    The score is the F measure of ROUGE-L; nothing is right or wrong. `detail` has precision, recall and F of ROUGE-1, 2, L.
    """

    name = "rouge"
    method = "ROUGE-L F1, Porter stemmer (rouge-score)"
    load_reference = "summary"
    row_schema: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, settings: QualitySettings | None = None) -> None:
        super().__init__(settings)
        self.grades_load = self.settings.path is None
        self._measure: Any = None

    def item(self, row: Mapping[str, Any], item_id: str) -> Item:
        """See RowScorer.item. A row has a prompt (or a document to summarize) and a reference."""
        source = next((name for name in _PROMPTS if isinstance(row.get(name), str) and row[name].strip()), None)
        target = next((name for name in _REFERENCES if isinstance(row.get(name), str) and row[name].strip()), None)
        if source is None or target is None:
            raise ValueError(f"it has no text and reference; the format is {FORMAT}")
        prompt = _ASK.get(source, "{text}").format(text=row[source])
        return Item(item_id=item_id, prompt=prompt, expected=row[target], max_tokens=MAX_TOKENS)

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """See Scorer.grade."""
        if self._measure is None:
            # absl logs to the stderr of its import, and closes it with the handlers unless it is the process's own
            with contextlib.redirect_stderr(sys.__stderr__):
                from rouge_score.rouge_scorer import RougeScorer as Measure

            self._measure = Measure(KINDS, use_stemmer=True)
        scores = self._measure.score(item.expected, answer.text)
        detail = {
            kind: {"precision": one.precision, "recall": one.recall, "f": one.fmeasure} for kind, one in scores.items()
        }
        return Grade(correct=None, extracted=answer.text, score=float(scores["rougeL"].fmeasure), detail=detail)

    def grade_load(self, requests: Sequence[Request], records: Sequence[Record]) -> Sequence[Judged]:
        """See Scorer.grade_load. Requests without a `summary` in their reference are skipped."""
        judged = []
        for request, record in answered_requests(requests, records):
            reference = request.reference
            if isinstance(reference, Mapping) and isinstance(summary := reference.get("summary"), str) and summary:
                judged.append(self.judged(item_of(request, summary), answer_of(record)))
        return judged
