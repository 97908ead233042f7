"""servebench's own scorers keep what is asked of a plugin's."""

import json

import pytest

from servebench.quality.scorers.gsm8k import Gsm8kScorer
from servebench.quality.scorers.humaneval import HumanEvalScorer
from servebench.quality.scorers.judge import JudgeScorer
from servebench.quality.scorers.mmlu import MmluScorer
from servebench.quality.scorers.parity import ParityScorer
from servebench.quality.scorers.rouge import RougeScorer
from servebench.quality.scorers.structured import JsonScorer
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


class TestHumanEval(Quick):
    scorer = HumanEvalScorer
    questions = tuple(
        {
            "task_id": f"own/{n}",
            "prompt": f'def add{n}(x):\n    """Add {n}."""\n',
            "entry_point": f"add{n}",
            "test": f"def check(candidate):\n    assert candidate(1) == {n + 1}\n",
        }
        for n in range(4)
    )

    @pytest.fixture(autouse=True)
    def _sandbox(self):
        if faults := HumanEvalScorer().check():
            pytest.skip(faults[0])

    def right(self, item):
        name = json.loads(item.expected)["entry_point"]
        return f"```python\ndef {name}(x):\n    return x + {name.removeprefix('add')}\n```"


class TestJson(Quick):
    scorer = JsonScorer
    references = (
        {"schema": {"type": "object", "required": ["a"]}, "expected": {"a": 1}},
        {"schema": {"type": "array", "minItems": 1}, "expected": [1, 2]},
    )

    def right(self, item):
        return item.expected


class TestRouge(ScorerConformance):
    scorer = RougeScorer
    references = ({"summary": "A bridge fell in spring."}, {"summary": "The mill burned down."})

    def right(self, item):
        return item.expected


class TestRougeOfAFile(ScorerConformance):
    """With a file it asks; its score is all that it gives."""

    scorer = RougeScorer
    questions = tuple({"prompt": f"Tell of {n}.", "reference": f"Once there were {n} of them."} for n in range(4))

    def right(self, item):
        return item.expected


class TestParity(Quick):
    scorer = ParityScorer


class TestJudge(Quick):
    scorer = JudgeScorer
