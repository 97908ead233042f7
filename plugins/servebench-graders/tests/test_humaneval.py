import gzip
import json

import pytest

from servebench.plugin import ConfigError, ItemAnswer, QualitySettings
from servebench_graders.humaneval import HumanEvalScorer, checks_of, code_of, program_of

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


def test_the_tests_fail_for_wrong_code_and_know_nothing_of_it():
    exec(checks_of(ROW), {"__name__": "tests", "total": sum})
    with pytest.raises(AssertionError):
        exec(checks_of(ROW), {"__name__": "tests", "total": lambda xs: 3})


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
def test_grades_by_running_the_tests(working, tmp_path, text, correct, outcome):
    scorer = HumanEvalScorer()
    (item,) = scorer.items(_file(tmp_path / "h.jsonl.gz", [ROW]), 1, 0)
    grade = scorer.grade(item, ItemAnswer(item_id=item.item_id, text=text))
    assert grade.correct is correct
    assert (grade.detail or {}).get("outcome") == outcome
    assert (grade.note is None) == correct


CHEATS = [
    # what was possible while the code ran in the interpreter of the verdict
    "def total(xs):\n    import sys, os\n    f = sys._getframe()\n    while f:\n        g = f.f_globals\n"
    "        if 'mark' in g:\n"
    "            [os.write(n, g['mark']) for n in range(3, 64) if os.path.exists(f'/proc/self/fd/{n}')]\n"
    "            os._exit(0)\n"
    "        f = f.f_back\n    return 3",
    "import sys\nsys._getframe(1).f_globals['names'] = {}\ndef total(xs): return 3",
    "def total(xs):\n    import sys\n    sys._getframe(1).f_globals['check'] = print\n    return 3",
    "def total(xs):\n    import os\n    os._exit(0)",
    "import atexit, os\natexit.register(os._exit, 0)\ndef total(xs): return 3",
    "class Same(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef total(xs): return Same(3)",
    "class Same:\n    def __eq__(self, other): return True\ndef total(xs): return Same()",
    "import builtins\nbuiltins.AssertionError = SystemExit\ndef total(xs): raise SystemExit",
    "import os\ndef total(xs):\n    for n in range(3, 64):\n        try: os.write(n, b'{\"value\": 3}\\n' * 9)\n"
    "        except OSError: pass\n    return 3",
    "import os\nos.closerange(3, 64)\ndef total(xs): return 3",
    "import gc\ndef total(xs):\n    for one in gc.get_objects():\n        if isinstance(one, dict) and 'mark' in one:\n"
    "            import os\n            os.write(one.get('end_fd', 3), one['mark'])\n    os._exit(0)",
]


@pytest.mark.parametrize("code", CHEATS)
def test_code_cannot_pass_by_its_own_word(working, tmp_path, code):
    scorer = HumanEvalScorer()
    (item,) = scorer.items(_file(tmp_path / "h.jsonl.gz", [ROW]), 1, 0)
    grade = scorer.grade(item, ItemAnswer(item_id=item.item_id, text=f"```python\n{code}\n```"))
    assert grade.correct is False
    assert grade.detail["outcome"] != "passed"


@pytest.mark.parametrize(
    ("code", "test"),
    [
        ("return tuple(x for x in xs)", "assert candidate([1, (2, 3)]) == (1, (2, 3))"),
        ("return iter(xs)", "assert tuple(candidate([1, 2])) == (1, 2)\n    assert candidate([1]) != [1]"),
        ("return {1: {2, 3}, 'é\\ud800': (b'x', 1j, None, 0.1)}", "assert candidate(0)[1] == {2, 3}"),
        ("xs.sort()", "xs = [2, 1]\n    assert candidate(xs) is None\n    assert xs == [1, 2]"),
        ("return 7 ** 9999", "assert candidate(0) == 7 ** 9999"),
        ("return float('nan')", "assert candidate(0) != candidate(0)"),
        ("return 1 / 0", "try:\n        candidate(0)\n    except ZeroDivisionError:\n        return\n    assert False"),
        ("return True", "assert candidate(xs=0) is True\n    assert total(0) is helper(True)"),
    ],
)  # fmt: skip
def test_values_of_all_plain_kinds_reach_the_tests(working, tmp_path, code, test):
    row = {**ROW, "test": f"def check(candidate):\n    {test}\n"}
    scorer = HumanEvalScorer()
    (item,) = scorer.items(_file(tmp_path / "h.jsonl.gz", [row]), 1, 0)
    text = f"```python\ndef total(xs):\n    {code}\n```"
    grade = scorer.grade(item, ItemAnswer(item_id=item.item_id, text=text))
    assert grade.correct is True, grade


def test_a_completion_is_the_body_of_the_function(working, tmp_path):
    scorer = HumanEvalScorer(QualitySettings(name="humaneval", api="completions"))
    (item,) = scorer.items(_file(tmp_path / "h.jsonl.gz", [ROW]), 1, 0)
    assert scorer.grade(item, ItemAnswer(item_id="", text=ROW["canonical_solution"])).correct is True
    assert scorer.grade(item, ItemAnswer(item_id="", text="    return 0\n")).correct is False
