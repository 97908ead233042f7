"""The prompts that ship with servebench, and the words in them."""

import json
import re
from functools import cache
from importlib.resources import files


@cache
def builtin_prompts() -> tuple[str, ...]:
    """Return the shipped prompts: HumanEval and GSM8K (MIT), TruthfulQA (Apache-2.0); see data/NOTICE.md."""
    text = files("servebench.workload").joinpath("data", "prompts.jsonl").read_text(encoding="utf-8")
    return tuple(json.loads(line)["prompt"] for line in text.split("\n") if line)


@cache
def vocabulary() -> list[str]:
    """Return the lower-case words of three to nine letters in the shipped prompts, in alphabetical order."""
    words = {word for prompt in builtin_prompts() for word in re.findall(r"\b[a-z]{3,9}\b", prompt)}
    return sorted(words)
