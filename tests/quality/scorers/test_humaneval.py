import gzip
import json
import shutil

import pytest

from servebench.contracts.quality import ItemAnswer
from servebench.contracts.settings import QualitySettings
from servebench.quality.sandbox import sandbox_errors
from servebench.quality.scorers.humaneval import HumanEvalScorer, code_of, program_of
from servebench.util.errors import ConfigError

NEEDS = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

PROMPT = (
    'from typing import List\n\n\ndef helper(x):\n    return x\n\n\ndef total(xs: List[int]) -> int:\n    """Sum."""\n'
)
ROW = {
    "task_id": "HumanEval/0",
    "prompt": PROMPT,
    "entry_point": "total",
    "canonical_solution": "    return sum(xs)\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n",
}
WHOLE = "def total(xs: List[int]) -> int:\n    return sum(xs)\n"


def _file(path, rows):
    path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))
    return path


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"Sure!\n```python\n{WHOLE}```\nThat is it.", WHOLE),
        (f"```\n{WHOLE}```", WHOLE),
        (f"```py\nimport x\n```\nthen\n```python\n{WHOLE}```\n```python\ntotal([1])\n```", WHOLE),
        (f"```python\n{WHOLE}", WHOLE),  # cut at its length
        ("  ```python\n  def total(xs):\n      return 1\n  ```", "def total(xs):\n    return 1\n"),
        (f"Here it is:\n{WHOLE}\nThis sums the list.", WHOLE),
        ("    return sum(xs)\n", "    return sum(xs)\n"),
        ("    return sum(xs)\n\nIt sums.", "    return sum(xs)\n"),
        ("I cannot help with that.", None),
        ("", None),
        ("```python\n```", None),
    ],
)
def test_code_of(text, code):
    found = code_of(text, "total")
    assert (found or "").rstrip() == (code or "").rstrip()
    assert (found is None) == (code is None)


@pytest.mark.parametrize(
    "code",
    [
        WHOLE,
        "    return sum(xs)\n",
        "return sum(xs)\n",
        "def total(xs):\n    return sum(helper(x) for x in xs)\n",
        "from typing import List\nimport math\n" + WHOLE,
        "def helper(x):\n    return x\n\ndef total(xs):\n    return helper(sum(xs))\n",
        WHOLE + "\nif __name__ == '__main__':\n    print(total(input()))\n",
    ],
)
def test_right_code_in_any_shape_is_a_program_that_passes(code):
    names: dict = {"__name__": "program"}
    exec(program_of(ROW, code), names)
    assert names["total"]([4]) == 4


def test_wrong_code_is_a_program_that_fails():
    with pytest.raises(AssertionError):
        exec(program_of(ROW, "    return 3\n"), {"__name__": "program"})


def test_items_are_the_problems_in_the_shape_of_the_api(tmp_path):
    path = _file(tmp_path / "h.jsonl.gz", [{**ROW, "task_id": f"HumanEval/{place}"} for place in range(9)])
    items = HumanEvalScorer().items(path, 4, 0)
    assert len(items) == 4
    assert items == HumanEvalScorer().items(path, 4, 0)
    assert all(PROMPT in item.prompt and "```python" in item.prompt for item in items)
    (item, *_) = HumanEvalScorer(QualitySettings(name="humaneval", api="completions")).items(path, 1, 0)
    assert item.prompt == PROMPT
    assert "\ndef " in item.body["stop"]


@pytest.mark.parametrize("wrong", [{"test": ""}, {"prompt": None}, {"entry_point": "a; import os"}])
def test_a_row_that_is_no_problem_is_one_line(tmp_path, wrong):
    with pytest.raises(ConfigError, match=r"row 0 of .*h\.jsonl\.gz"):
        HumanEvalScorer().items(_file(tmp_path / "h.jsonl.gz", [{**ROW, **wrong}]), 1, 0)


def test_a_cut_off_gzip_file_is_one_line(tmp_path):
    path = _file(tmp_path / "h.jsonl.gz", [ROW])
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ConfigError, match=r"h\.jsonl\.gz"):
        HumanEvalScorer().items(path, 1, 0)


@pytest.mark.slow
@NEEDS
@pytest.mark.parametrize(
    ("text", "correct", "outcome"),
    [
        (f"```python\n{WHOLE}```", True, "passed"),
        ("```python\ndef total(xs):\n    return 3\n```", False, "failed"),
        ("```python\ndef total(xs):\n    while True: pass\n```", False, "timeout"),
        ("```python\ndef total(xs):\n    import sys; sys.exit(0)\n```", False, "left_early"),
        ("```python\nimport numpy as np\ndef total(xs):\n    return int(np.sum(xs))\n```", False, "failed"),
        ("I cannot.", False, None),
    ],
)
def test_grades_by_running_the_tests(tmp_path, text, correct, outcome):
    if faults := sandbox_errors():
        pytest.skip(faults[0])
    scorer = HumanEvalScorer()
    (item,) = scorer.items(_file(tmp_path / "h.jsonl.gz", [ROW]), 1, 0)
    grade = scorer.grade(item, ItemAnswer(item_id=item.item_id, text=text))
    assert grade.correct is correct
    assert (grade.detail or {}).get("outcome") == outcome
    assert (grade.note is None) == correct


@NEEDS
def test_a_completion_is_the_body_of_the_function(tmp_path):
    if faults := sandbox_errors():
        pytest.skip(faults[0])
    scorer = HumanEvalScorer(QualitySettings(name="humaneval", api="completions"))
    (item,) = scorer.items(_file(tmp_path / "h.jsonl.gz", [ROW]), 1, 0)
    assert scorer.grade(item, ItemAnswer(item_id="", text=ROW["canonical_solution"])).correct is True
    assert scorer.grade(item, ItemAnswer(item_id="", text="    return 0\n")).correct is False


def test_what_was_never_answered_has_no_grade(tmp_path):
    scorer = HumanEvalScorer()
    (item,) = scorer.items(_file(tmp_path / "h.jsonl.gz", [ROW]), 1, 0)
    assert scorer.grade(item, ItemAnswer(item_id="", text="", error="down", outcome="refused")).correct is None


def test_without_a_sandbox_the_scorer_says_so_beforehand(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    from servebench.quality.sandbox import require_sandbox

    require_sandbox.cache_clear()
    (fault,) = HumanEvalScorer().check()
    assert "bubblewrap" in fault
