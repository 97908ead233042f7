"""What `servebench recommend` prints on a terminal, and with -v."""

from io import StringIO

from servebench.analysis.advice import recommend_runs
from servebench.analysis.recommendation.rules import load_rules
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
