"""Sections of the page, from made-up data."""

from types import SimpleNamespace

import pytest

from servebench.analysis.answer.model import Answer
from servebench.analysis.conclude import Conclusions
from servebench.analysis.limits import RUNS_MAX
from servebench.analysis.limits.model import LevelFacts, LimitFinding, LimitReason
from servebench.contracts.level import Level
from servebench.report.screens.sections import limits


@pytest.mark.parametrize(("with_points", "rows"), [(0, 0), (1, 1), (RUNS_MAX, 1), (RUNS_MAX + 2, 2)])
def test_runs_without_a_finding_because_there_are_too_many_are_counted(with_points, rows):
    runs = [SimpleNamespace(rows=[object()])] * with_points + [SimpleNamespace(rows=[])] * 9
    finding = LimitFinding(
        facts=LevelFacts(level=Level(8), engine="vllm", requests=99, ttft_ms=1.0, e2e_ms=9.0),
        reason=LimitReason.NONE,
    )
    conclusions = Conclusions(answer=Answer(workloads=()), limits=(("a", finding),) * (with_points > 0))
    blocks = list(limits(SimpleNamespace(conclusions=conclusions, runs=runs)))
    assert len(blocks[0].rows if blocks else ()) == rows
    assert rows < 2 or blocks[0].rows[-1][0].text == "2 more"
