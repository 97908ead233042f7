"""The keys that docs/decide.md promises to readers of `--json`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.studies import SimulatedEngine, SimulatedLoad

PAGE = Path(__file__).parents[2] / "docs" / "decide.md"


def promised(command: str, part: str) -> list[str]:
    """The keys of a part of what a command prints."""
    section = PAGE.read_text(encoding="utf-8").partition("## As JSON")[2].partition("\n## ")[0]
    last = ""
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3:
            last = cells[0].strip("`") or last
            if (last, cells[1]) == (command, part):
                return re.findall(r"`([a-z0-9_]+)`", re.sub(r"\([^)]*\)|;.*|but `\w+`", "", cells[2]))
    raise AssertionError(f"the page has no row for {part} of {command}")


@pytest.fixture
def printed(make_study, run_main):
    """What a command prints as JSON of a study in which some requests failed."""
    load = SimulatedLoad(levels=(4,), requests=40)
    make_study((SimulatedEngine(name="a"), load), (SimulatedEngine(name="b", fail_share=0.6), load))

    def run(*words: str) -> Any:
        done = run_main(*words, "--json", code=0)
        return json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    return run


def test_what_is_printed_has_the_keys_of_the_page(printed):
    assert list(printed("ls")[0]) == promised("ls", "each run")
    assert list(printed("run", "launch=simulated", "engine=vllm", "--dry-run")) == promised("--dry-run", "the plan")
    concluded = printed("compare", "study")
    assert list(concluded) == promised("compare", "the document")
    assert list(printed("recommend", "study")) == promised("compare", "the document")
    (compared,) = concluded["comparisons"]
    assert list(compared) == promised("compare", "each of `comparisons`")
    assert list(compared["rows"][0]) == promised("compare", "each of `rows`")
    assert list(printed("recommend", "study")["recommendations"][0]) == promised(
        "recommend", "each of `recommendations`"
    )
    page = printed("report", "study")
    assert list(page) == [*promised("report", "the page"), *promised("compare", "the document")]
    assert list(page["answer"]) == promised("compare", "`answer`")
    (workload,) = page["answer"]["workloads"]
    assert list(workload) == promised("compare", "each of `workloads`")
    assert list(workload["leads"][0]) == promised("compare", "each of `leads`")


def test_show_has_the_keys_of_the_page(printed):
    run = printed("show", "study/01_b_unique")
    assert run["rows"][0]["ttft_ms_p99_all"] is None
    assert {"manifest", "rows", "times", "limits", "slow_starts", *promised("ls", "each run")} - {"number"} == set(run)
    study = printed("show", "study")
    assert {*promised("show STUDY", "the study"), *promised("compare", "the document")} <= set(study)
    assert study["answer"] == printed("report", "study")["answer"]
    assert "seal" not in study
