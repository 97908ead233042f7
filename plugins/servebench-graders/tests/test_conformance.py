import json

import pytest

from servebench.testing import ScorerConformance, registry
from servebench_graders.humaneval import HumanEvalScorer
from servebench_graders.judge import JudgeScorer
from servebench_graders.lm_eval import LmEvalScorer
from servebench_graders.rouge import RougeScorer


@pytest.mark.parametrize("scorer", [HumanEvalScorer, LmEvalScorer])
def test_servebench_finds_what_the_suite_may_skip(scorer):
    assert registry().find("quality", scorer.name) is scorer


class Quick(ScorerConformance):
    """Without the command: test_command.py asks with these."""

    test_run = None


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


class TestJudge(Quick):
    scorer = JudgeScorer
