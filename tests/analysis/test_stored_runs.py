"""What the analyses get from stored runs."""

from pathlib import Path

from servebench.analysis.stored_runs import side_of
from servebench.store import studies
from servebench.store.layout import StudyFolder
from support.studies import SimulatedEngine, SimulatedLoad, write_simulated_run


def test_requests_that_the_client_abandoned_are_not_failed(tmp_path: Path) -> None:
    """A tenth is abandoned by the client (load.cancel_fraction): they are neither failed nor slow, and the failed ones are
    those that the row counts."""
    folder = StudyFolder(tmp_path / "study").run("run")
    engine = SimulatedEngine(leave_share=0.1, fail_share=0.05)
    write_simulated_run(folder, engine, SimulatedLoad(levels=(8,), requests=300))
    run = studies.load_run(folder.path)
    (point,) = side_of(run).samples
    (row,) = run.point_rows
    outcomes = run.requests["outcome"].value_counts()
    assert outcomes["abandoned"] > 15
    assert outcomes["http_error"] > 5
    assert row.requests_failed == outcomes["http_error"]
    assert 0 < point.failed.sum() <= outcomes["http_error"]
    assert point.failed.size <= 300 - outcomes["abandoned"]
