"""Who took the machine in points that are compared all the same, and that an open verdict says it."""

import json

import pytest

from servebench.analysis.disturbance import Taker
from servebench.analysis.verdict.model import Comparison
from servebench.analysis.warnings.disturbed import shared_with
from servebench.contracts.point_row import PointRow
from servebench.report.wording.comparison import shared_text

HOG = {"who": "python3", "pid": 4711, "took": "took 0.9 of 2 cores", "seconds": 8.0}
LESS = {**HOG, "pid": 12, "seconds": 3.0}


def row(by, *, disturbed_s=8.0, verdict="valid"):
    return PointRow(verdict=verdict, window_s=20.0, disturbed_s=disturbed_s, disturbed_by=by and json.dumps(by))


@pytest.mark.parametrize(
    ("rows", "pid"),
    [
        ([row(LESS), row(HOG)], 4711),
        ([row(LESS), row(HOG, verdict="void")], 12),
        ([row(HOG, disturbed_s=1.0)], None),
        ([row(None)], None),
        ([], None),
    ],
)
def test_who_took_a_part_of_points_that_count(rows, pid):
    found = shared_with(rows)
    assert (found and found.pid) == pid


def test_an_open_verdict_says_it_once_it_is_known():
    found = Comparison(baseline="a", candidate="b", rows=(), margin=0.05, shared_with=Taker(**HOG))
    assert "another program (pid 4711, python3) took 0.9 of 2 cores for 8 s" in shared_text(found)
    assert shared_text(Comparison(baseline="a", candidate="b", rows=(), margin=0.05)) == ""
