"""servebench's own scorers keep what is asked of a plugin's."""

import json
from typing import ClassVar

from servebench.contracts.quality import ItemAnswer
from servebench.quality.scorers.gsm8k import Gsm8kScorer
from servebench.quality.scorers.mmlu import MmluScorer
from servebench.quality.scorers.parity import ParityScorer
from servebench.quality.scorers.rerank import RerankScorer
from servebench.quality.scorers.structured import JsonScorer
from servebench.quality.scorers.tool_calls import ToolCallScorer
from servebench.testing import ScorerConformance


class Quick(ScorerConformance):
    """Without the command: the flow tests ask with these."""

    test_run = None


class TestMmlu(Quick):
    scorer = MmluScorer
    questions = tuple(
        {
            "question": f"Which letter is number {place}?",
            "correct_answer": letter,
            "topic": "letters",
            **{f"answer_{one}": one * (place + 1) for one in "abcd"},
        }
        for place, letter in enumerate("ABCDA")
    )

    def right(self, item):
        return f"The answer is {item.expected}."


class TestGsm8k(ScorerConformance):
    scorer = Gsm8kScorer
    questions = tuple({"question": f"What is {n} + {n}?", "answer": f"Add. #### {n + n}"} for n in range(1, 6))

    def right(self, item):
        return f"It is simple.\n#### {item.expected}"


class TestJson(Quick):
    scorer = JsonScorer
    references = (
        {"schema": {"type": "object", "required": ["a"]}, "expected": {"a": 1}},
        {"schema": {"type": "array", "minItems": 1}, "expected": [1, 2]},
    )

    def right(self, item):
        return item.expected


class TestToolCalls(Quick):
    scorer = ToolCallScorer
    questions = tuple(
        {
            "question": f"Count to {n}.",
            "tools": [{"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}],
            "expected": [{"name": "count", "arguments": {"to": [n]}}],
        }
        for n in range(1, 6)
    )

    def right_answer(self, item):
        calls = [{"name": "count", "arguments": json.dumps({"to": json.loads(item.expected)[0]["arguments"]["to"][0]})}]
        return ItemAnswer(item_id=item.item_id, text="", calls=calls)


class TestRerank(Quick):
    scorer = RerankScorer
    settings: ClassVar[dict[str, str]] = {"api": "rerank"}
    wrong = "[0, 1, 2]"
    questions = tuple({"query": f"Where is {n}?", "documents": ["a", "b", str(n)], "relevant": [2]} for n in range(5))

    def right(self, item):
        return "[2, 0, 1]"


class TestParity(Quick):
    scorer = ParityScorer
