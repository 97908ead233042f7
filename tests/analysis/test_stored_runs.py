"""What the analyses get from stored runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servebench.analysis.stored_runs import samples_of
from servebench.store import studies
from servebench.store.layout import StudyFolder
from support.studies import SimulatedEngine, SimulatedLoad, with_columns, write_simulated_run


@pytest.mark.parametrize("rate", [None, 5.0])
def test_users_of_an_open_loop_wait_from_the_schedule_on(tmp_path: Path, rate: float | None) -> None:
    """A client that sends 40 ms late makes the engine no slower in a closed loop; the users of an open one wait longer."""
    folder = StudyFolder(tmp_path / "study").run("run")
    write_simulated_run(folder, SimulatedEngine(), SimulatedLoad(levels=(4,), requests=50))
    run = studies.load_run(folder.path)
    requests = run.requests
    requests["scheduled_ns"] = requests["sent_ns"] - 40_000_000
    late = replace(with_columns(run, rate=rate), tables=lambda name: requests)
    (before,), (after,) = samples_of(run), samples_of(late)
    for name, more in (("ttft_ms", 40.0), ("e2e_ms", 40.0), ("tpot_ms", 0.0)):
        waited = getattr(after, name) - getattr(before, name)
        assert np.nanmean(waited) == pytest.approx(more if rate else 0.0, abs=1e-6), name


def test_what_comes_in_one_piece_has_no_ttft(tmp_path: Path) -> None:
    """The point of embeddings has none, though each answer has a first event."""
    folder = StudyFolder(tmp_path / "study").run("run")
    write_simulated_run(folder, SimulatedEngine(), SimulatedLoad(levels=(4,), requests=50))
    (point,) = samples_of(with_columns(studies.load_run(folder.path), ttft_ms_n=None, tpot_ms_n=None))
    assert np.isnan(point.ttft_ms).all()
    assert np.isnan(point.tpot_ms).all()
    assert np.isfinite(point.e2e_ms).all()


def test_requests_that_the_client_abandoned_are_not_failed(tmp_path: Path) -> None:
    """A tenth is abandoned by the client (load.cancel_fraction): they are neither failed nor slow, and the failed ones are
    those that the row counts."""
    folder = StudyFolder(tmp_path / "study").run("run")
    engine = SimulatedEngine(leave_share=0.1, fail_share=0.05)
    write_simulated_run(folder, engine, SimulatedLoad(levels=(8,), requests=300))
    run = studies.load_run(folder.path)
    (point,) = samples_of(run)
    (row,) = run.point_rows
    outcomes = run.requests["outcome"].value_counts()
    assert outcomes["abandoned"] > 15
    assert outcomes["http_error"] > 5
    assert row.requests_failed == outcomes["http_error"]
    assert 0 < point.failed.sum() <= outcomes["http_error"]
    assert point.failed.size <= 300 - outcomes["abandoned"]
