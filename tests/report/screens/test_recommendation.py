"""What `servebench recommend` prints on a terminal, and with -v."""

import pytest

from servebench.analysis.advice import Adviser
from servebench.analysis.answer.leads import row_between
from servebench.analysis.pairing import compare_speed, pairs_within
from servebench.analysis.recommendation.rules import load_rules
from servebench.contracts.labels import run_labels
from servebench.report.screens.recommendation import recommendation_blocks
from servebench.report.wording.recommendation import use_text
from servebench.store import studies as read
from support.screens import screen_of
from support.studies import SimulatedEngine, SimulatedLoad


def test_a_terminal_gets_the_choices_and_verbose_adds_what_would_change_them(make_study):
    engines = SimulatedEngine(name="a"), SimulatedEngine(name="b", slow=2.0)
    runs = read.load_study(make_study(*((one, SimulatedLoad(requests=90)) for one in engines))).runs
    found = Adviser(runs, load_rules()).recommendations()
    brief, full = (screen_of(recommendation_blocks(found, verbose=verbose)) for verbose in (False, True))
    assert "the answer may change" in full
    assert "the answer may change" not in brief
    lines = brief.splitlines()
    assert any(line.startswith("Fastest cold start: open: a ") for line in lines)
    assert lines[-1].startswith("no answer for ")
    assert lines[-1].endswith("-v")
    assert len(lines) <= 6


def test_a_terminal_names_what_all_uses_share_once(make_study):
    """Model, GPU and workload were repeated in each line, which then wrapped in the middle of an interval."""
    loads = [SimulatedLoad(requests=200, workload=name) for name in ("unique", "rag_prefix")]
    engines = SimulatedEngine(name="a"), SimulatedEngine(name="b", slow=2.0)
    runs = read.load_study(make_study(*((one, load) for load in loads for one in engines))).runs
    labels = run_labels(runs)
    comparisons = compare_speed(pairs_within(runs), earlier=[], labels=labels)
    found = Adviser(runs, load_rules(), labels=labels, comparisons=comparisons).recommendations()
    text = screen_of(recommendation_blocks(found, verbose=False))
    assert text.count("tiny-1b") == 1
    assert " · unique" not in text
    assert [line.partition(":")[0] for line in text.splitlines() if line.startswith("Most output (")] == [
        "Most output (unique)"
    ]


def test_a_use_without_a_winner_lists_the_first_too(make_study):
    """The values began with those of the second."""
    engines = SimulatedEngine(name="aa"), SimulatedEngine(name="bb", slow=1.001)
    runs = read.load_study(make_study(*((one, SimulatedLoad(requests=90)) for one in engines))).runs
    found = [one for one in Adviser(runs, load_rules()).recommendations() if one.use_case.name == "batch"]
    assert found[0].outcome == "no clear difference"
    assert found[0].sureness == "open"
    values = use_text(found[0])
    assert values.startswith("open: aa ")
    assert "bb" in values


@pytest.mark.slow
def test_a_winner_over_several_starts_is_one_by_the_comparison(make_study):
    """Both were on one page of the report: "best ... clear" and "not enough data", of the same numbers."""
    outcomes = set()
    for seed, slow in enumerate([1.0, 1.03, 1.06, 1.06, 1.08, 1.1, 1.3]):
        engines = [SimulatedEngine(name=name, slow=one, run_sd=0.02) for name, one in (("a", 1.0), ("b", slow))]
        loads = [SimulatedLoad(requests=60, starts=3, seed=2 * seed + number) for number in range(2)]
        pair = zip(engines, loads, strict=True)
        runs = read.load_study(make_study(*pair, name=f"s{seed}")).runs
        labels = run_labels(runs)
        compared = compare_speed(pairs_within(runs), earlier=[], labels=labels)
        found = Adviser(runs, load_rules(), labels=labels, comparisons=compared).recommendations()
        (batch,) = [one for one in found if one.use_case.name == "batch"]
        first, second = (one.entrant.run.run_id for one in batch.ranking[:2])
        row = row_between(first, second, batch.ranking[0].at, compared)
        outcomes.add((batch.outcome, row.result))
    assert ("best", "faster") in outcomes
    assert {result for outcome, result in outcomes if outcome == "best"} == {"faster"}
    assert any(outcome == "no clear difference" for outcome, _ in outcomes)
