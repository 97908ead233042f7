"""Points as lists and the dashboard read them."""

from dataclasses import replace

import pytest

from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt
from servebench.store import studies as read
from servebench.store.layout import RunFolder
from servebench.store.overview import listed_rows
from servebench.store.tables import read_rows
from support.studies import SimulatedEngine, SimulatedLoad, write_simulated_run


@pytest.fixture
def study(make_study):
    return make_study((SimulatedEngine(name="alpha"), SimulatedLoad(levels=(1, 4), requests=20)))


def test_lists_show_the_points_that_analyses_read(tmp_path):
    """To the digit: every column, also what is no number."""
    folder = RunFolder(tmp_path / "study" / "00_x")
    doubts = [Doubt(code=code, message="m", remedy="r") for code in ("too_short", "emulated")]
    write_simulated_run(folder, SimulatedEngine(name="=x"), SimulatedLoad(levels=(1, 4), requests=20), doubts=doubts)
    assert listed_rows(folder) == read_rows(folder)
    assert [row.doubts for row in listed_rows(folder)] == [("too_short", "emulated")] * 2


@pytest.mark.parametrize("damage", ["", "concurrency,schema_version\nmany,2\n", "concurrency,schema_version\n1,99\n"])
def test_a_csv_that_cannot_be_read_is_not_relied_on(study, damage):
    folder = RunFolder(read.load_study(study).runs[0].path)
    folder.points_csv.write_text(damage) if damage else folder.points_csv.unlink()
    assert listed_rows(folder) == read_rows(folder)


def test_a_list_of_runs_opens_no_parquet(study, monkeypatch):
    """A thousand of them take half a minute."""
    monkeypatch.setattr("servebench.util.bounded_parquet.read_parquet", None)
    monkeypatch.setattr("servebench.store.tables.read_table", None)
    (found,) = read.load_outputs(study.parent, listed_rows)
    assert len(found.runs[0].point_rows) == 2
    assert found.runs[0].faults == ()


def test_a_run_whose_points_are_damaged_has_the_fault_and_no_points(study):
    run = read.load_study(study).runs[0]
    RunFolder(run.path).points.write_bytes(b"PAR1 not really")
    assert (run.point_rows, len(run.faults)) == ((), 1)
    assert replace(run, rows=lambda: [PointRow()]).faults == ()
