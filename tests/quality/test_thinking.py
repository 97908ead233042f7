"""Every scorer grades what `ItemAnswer.to_grade` returns; whether that has thinking is said by the scorer."""

import orjson
import pandas as pd
import pytest

from servebench.analysis.quality.summary import summaries
from servebench.contracts.quality import Endpoint, ItemAnswer
from servebench.contracts.settings import QualitySettings
from servebench.quality.load_answers import answer_of
from servebench.quality.scorers.parity import ParityScorer
from servebench.registry.registry import registry
from support.records import quality_records

CALL = {"name": "add", "arguments": "{}"}


@pytest.mark.parametrize(
    ("answer", "text", "thinking", "failed"),
    [
        ({"text": "4"}, "4", None, False),
        ({"text": "<think>\n\n</think>\n\n4"}, "4", None, False),
        ({"text": "<think>2</think>4"}, "4", "cut", False),
        ({"text": "4", "reasoning": "2"}, "4", "cut", False),
        ({"text": "<think>2"}, "", "unfinished", True),
        ({"text": "", "reasoning": "2"}, "", "unfinished", True),
        # what follows is empty, and it has ended
        ({"text": "<think>2</think>"}, "", "cut", False),
        # the call is the answer
        ({"text": "", "reasoning": "2", "calls": (CALL,)}, "", "cut", False),
        ({"text": "<think>2", "error": "HTTP 500", "outcome": "http_error"}, "<think>2", None, True),
    ],
)
def test_what_is_graded_of_an_answer(answer, text, thinking, failed):
    found = ItemAnswer(item_id="q", **answer).to_grade()
    assert (found.text, found.thinking, found.error is not None) == (text, thinking, failed)
    assert found.to_grade() == found
    assert found.outcome == answer.get("outcome", "ok")


def test_thinking_that_is_graded_is_part_of_the_text():
    for answer, text in [
        ({"text": "4", "reasoning": "2"}, "24"),
        ({"text": "", "reasoning": "2"}, "2"),
        ({"text": "<think>2"}, "<think>2"),
    ]:
        found = ItemAnswer(item_id="q", **answer).to_grade(cut=False)
        assert (found.text, found.thinking, found.error) == (text, "graded", None)
    assert ItemAnswer(item_id="q", text="4").to_grade(cut=False).thinking is None


def test_answers_of_the_load_come_without_it(record):
    assert answer_of(record("r", text="<think>2</think>4")).text == "4"
    assert answer_of(record("r", text="", reasoning="2")).thinking == "unfinished"


def test_which_scorers_grade_thinking():
    known = registry()
    kinds = {name: known.find("quality", name) for name in known.kinds["quality"]}
    assert {name for name, kind in kinds.items() if not kind.cuts_thinking} == {"parity", "lm_eval"}


def test_parity_compares_thinking(serve, tmp_path):
    """Two answers that were cut inside their thinking are both empty: they must not count as equal for that."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_bytes(orjson.dumps({"prompt": "2 + 2"}))
    seen = iter(range(10))

    def think(connection, request):
        message = {"content": "", "reasoning_content": f"thought {next(seen)}"}
        return 200, {"choices": [{"message": message, "finish_reason": "length"}]}

    scorer = ParityScorer(QualitySettings(name="parity", path=str(prompts)))
    (one,) = scorer.evaluate(Endpoint(base_url=serve(think).base_url, model="m"), count=None, concurrency=1)
    assert (one.answer.thinking, one.grade.correct) == ("graded", False)
    assert one.answer.text.startswith("thought")


def test_a_summary_counts_them():
    rows = quality_records("gsm8k", [True] * 5, thinking="cut", reasoning="2")
    rows += quality_records("gsm8k", [None] * 3, outcome="ok", error="x", thinking="unfinished")
    rows += quality_records("gsm8k", [False, None])
    (one,) = summaries(pd.DataFrame(rows))
    assert (one.n, one.right, one.unanswered, one.with_thinking, one.unfinished_thinking) == (6, 5, 4, 8, 3)
    assert {doubt.code for doubt in one.doubts} >= {"unanswered", "unfinished_thinking"}
    assert "not_judged" not in {doubt.code for doubt in one.doubts}
