"""What earlier attempts at a run have left."""

import pytest

from servebench.analysis.warnings import catalog
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt, Point
from servebench.run.prior import stored_points
from servebench.store.layout import RunFolder
from servebench.store.tables import read_rows, write_points


@pytest.mark.parametrize("verdict", ["valid", "doubtful", "void"])
def test_a_stored_point_keeps_its_verdict_when_its_run_goes_on(tmp_path, verdict):
    """A mark, such as that of an emulated engine, makes no point doubtful."""
    mark = catalog.EMULATED.issue("m")
    more = {
        "valid": (),
        "doubtful": (Doubt(code="x", message="m", remedy="r"),),
        "void": (catalog.ERRORS.issue("m", void=True),),
    }
    folder = RunFolder(tmp_path)
    write_points(folder, [Point(row=PointRow(point="c1-r0"), doubts=(mark, *more[verdict]))])
    write_points(folder, stored_points(folder))
    (row,) = read_rows(folder)
    assert row.verdict == verdict
