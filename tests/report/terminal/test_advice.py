"""What `servebench recommend` prints on a terminal, and with -v."""

from io import StringIO

from servebench.analysis.advice import recommend_runs
from servebench.analysis.pairing import pairs_within
from servebench.analysis.recommendation.rules import load_rules
from servebench.analysis.run_comparison import compare_speed
from servebench.contracts.labels import run_labels
from servebench.report.terminal.advice import print_recommendations
from servebench.report.terminal.tables import CleanConsole
from servebench.store import studies as read
from support.studies import SimulatedEngine, SimulatedLoad


def test_a_terminal_gets_the_choices_and_verbose_adds_what_would_change_them(make_study):
    engines = SimulatedEngine(name="a"), SimulatedEngine(name="b", slow=2.0)
    runs = read.load_study(make_study(*((one, SimulatedLoad(requests=90)) for one in engines))).runs
    found = recommend_runs(runs, load_rules())
    brief, full = StringIO(), StringIO()
    print_recommendations(found, CleanConsole(brief, width=80, soft_wrap=False), verbose=False)
    print_recommendations(found, CleanConsole(full, width=80, soft_wrap=False), verbose=True)
    assert "the answer may change" in full.getvalue()
    assert "the answer may change" not in brief.getvalue()
    lines = brief.getvalue().splitlines()
    assert "fastest start seen (one each): a" in brief.getvalue()
    assert sum(line.startswith("not measured: RAG with shared prefixes") for line in lines) == 1
    assert lines[-1].endswith("-v")
    assert len(lines) < len(full.getvalue().splitlines()) / 2


def test_a_terminal_names_what_all_uses_share_once(make_study):
    """Model, GPU and workload were repeated in each line, which then wrapped in the middle of an interval."""
    loads = [SimulatedLoad(requests=200, workload=name) for name in ("unique", "rag_prefix")]
    engines = SimulatedEngine(name="a"), SimulatedEngine(name="b", slow=2.0)
    runs = read.load_study(make_study(*((one, load) for load in loads for one in engines))).runs
    labels = run_labels(runs)
    comparisons = compare_speed(pairs_within(runs), earlier=[], labels=labels)
    brief = StringIO()
    found = recommend_runs(runs, load_rules(), labels=labels, comparisons=comparisons)
    print_recommendations(found, CleanConsole(brief, width=80, soft_wrap=False), verbose=False)
    text = brief.getvalue()
    assert text.count("tiny-1b") == 1
    assert " · unique" not in text
    assert [line for line in text.splitlines() if line.startswith("Batch throughput")] == ["Batch throughput  unique"]


def test_a_use_without_a_winner_lists_the_first_too(make_study):
    """The values began with those of the second."""
    engines = SimulatedEngine(name="aa"), SimulatedEngine(name="bb", slow=1.001)
    runs = read.load_study(make_study(*((one, SimulatedLoad(requests=90)) for one in engines))).runs
    found = [one for one in recommend_runs(runs, load_rules()) if one.use_case.name == "batch"]
    assert found[0].outcome == "no clear difference"
    brief = StringIO()
    print_recommendations(found, CleanConsole(brief, width=80, soft_wrap=False), verbose=False)
    (values,) = [line for line in brief.getvalue().splitlines() if ", then " in line]
    assert values.split()[0] == "aa"
    assert "bb" in values
