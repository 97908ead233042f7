"""Shipped prompts and their words."""

import json
import re
from importlib.resources import files

from servebench.workload.sources.prompts import builtin_prompts, vocabulary

LICENSES = {"HumanEval": "MIT", "GSM8K": "MIT", "TruthfulQA": "Apache-2.0"}


def shipped_rows():
    text = files("servebench.workload").joinpath("data", "prompts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def test_shipped_rows():
    """Each shipped prompt has an id of its own, text, a source, and the licence of that source; none is there twice."""
    rows = shipped_rows()
    assert len({row["id"] for row in rows}) == len({row["prompt"] for row in rows}) == len(rows) == 364
    for row in rows:
        assert set(row) == {"id", "source", "license", "prompt"}
        assert row["license"] == LICENSES[row["source"]]
        assert row["prompt"].strip()


def test_shipped_sources_are_acknowledged():
    """The notice names each source, with as many prompts as there are."""
    notice = files("servebench.workload").joinpath("data", "NOTICE.md").read_text(encoding="utf-8")
    sources = [row["source"] for row in shipped_rows()]
    for source, license in LICENSES.items():
        assert re.search(rf"\[{source}\].*\| {sources.count(source)} \| {license} \|", notice)


def test_shipped_file_is_lines():
    """Every line of the file is a JSON object: nothing blank, nothing broken."""
    text = files("servebench.workload").joinpath("data", "prompts.jsonl").read_text(encoding="utf-8")
    lines = text.removesuffix("\n").split("\n")
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert list(builtin_prompts()) == [json.loads(line)["prompt"] for line in lines]


def test_vocabulary():
    """Words are plain, sorted, and enough of them that prompts differ."""
    words = vocabulary()
    assert words == sorted(set(words))
    assert len(words) > 1000
    assert all(re.fullmatch(r"[a-z]{3,9}", word) for word in words)
