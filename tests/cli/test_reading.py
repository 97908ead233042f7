"""Where speed is compared and advised on, right answers have their say."""

import json
import re

import pytest

from servebench.cli.main import dispatch
from servebench.store.graded import add_quality
from servebench.store.layout import RunFolder
from support.records import quality_records
from support.studies import SimulatedEngine, SimulatedLoad


@pytest.fixture
def study(make_study, tmp_path, monkeypatch):
    """Two engines, the faster of which is less right on 60 questions."""
    monkeypatch.chdir(tmp_path)
    fast = SimulatedEngine(name="fast"), SimulatedLoad(requests=200, workload="unique")
    slow = SimulatedEngine(name="slow", slow=1.6), SimulatedLoad(requests=200, workload="unique")
    path = make_study(fast, slow)
    add_quality(RunFolder(path / "00_fast_unique"), quality_records("mmlu", [True] * 20 + [False] * 40))
    add_quality(RunFolder(path / "01_slow_unique"), quality_records("mmlu", [True] * 50 + [False] * 10))
    return path


def test_a_winner_that_is_less_accurate_is_marked(study, capsys):
    assert dispatch(["recommend", "study"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "fast is less accurate than slow" in told
    assert "33.3% vs 83.3% on 60 questions" in told
    dispatch(["recommend", "study", "--json"])
    answers = json.loads(capsys.readouterr().out)["recommendations"]
    assert any("less accurate" in line for answer in answers for line in answer["quality"])


def test_a_study_without_points_is_not_an_empty_screen(study, capsys):
    for run in ("00_fast_unique", "01_slow_unique"):
        RunFolder(study / run).points.unlink()
    assert dispatch(["recommend", "study"]) == 0
    found = capsys.readouterr()
    assert (found.out, "nothing to recommend" in found.err) == ("", True)


@pytest.mark.slow
def test_the_page_and_show_have_the_figures(study, capsys):
    assert dispatch(["report", "study"]) == 0
    page = (study / "report.html").read_text()
    assert "less accurate" in page
    assert "mmlu at concurrency 8: different: 83.3% vs 33.3%" in page
    more = [row for level in (1, 32) for row in quality_records("mmlu", [True, False], concurrency=level)]
    add_quality(RunFolder(study / "00_fast_unique"), more)
    dispatch(["report", "study"])
    page = (study / "report.html").read_text()
    assert "right/s</th>" in page
    assert all(f"concurrency {level}</td>" in page for level in (1, 8, 32))
    capsys.readouterr()
    dispatch(["show", "study/00_fast_unique"])
    shown = capsys.readouterr().out
    assert re.search(r"quality: mmlu .*% right of \d+ \[.*\] at concurrency 8", shown)
    assert "sample_too_small: " in shown


@pytest.mark.parametrize(
    ("status", "command"),
    [("failed", "servebench resume study --failed"), ("interrupted", "servebench resume study"), ("finished", None)],
)
def test_a_run_that_did_not_finish_names_the_command_that_goes_on(study, capsys, status, command):
    run = RunFolder(study / "00_fast_unique")
    state = json.loads(run.state.read_text())
    run.state.write_text(json.dumps({**state, "status": status}))
    assert dispatch(["show", "study/00_fast_unique"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"next: {command}" if command else "next: " not in last
