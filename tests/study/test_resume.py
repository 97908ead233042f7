"""What is left of a study, whatever state its files are in."""

import pytest
from tests.study.test_recover import DEAD_PID, WORDS, outputs, write_spool

from servebench.cli.main import dispatch
from servebench.config import compose_jobs
from servebench.registry.registry import registry
from servebench.store import (
    PlannedRun,
    RunState,
    StudyFolder,
    StudyState,
    read_study,
    write_plan,
    write_run,
    write_study,
)
from servebench.study.resume import remaining, tell
from servebench.util.errors import ConfigError, StoreError

__all__ = ["outputs"]
RUNS = ("00_a", "01_b")


@pytest.fixture
def study(outputs):
    """A killed study of two runs; of the first a whole phase was stored, of the second one was cut off."""
    study = StudyFolder(outputs / "s")
    study.path.mkdir()
    jobs = compose_jobs(["-m", *WORDS, "workload.seed=1,2"], registry())
    write_plan(
        study, [PlannedRun(name=n, overrides=j.overrides, config=j.resolved) for n, j in zip(RUNS, jobs, strict=True)]
    )
    write_study(study, StudyState(study_id="s", words=WORDS, runs=RUNS, pid=DEAD_PID))
    for name in RUNS:
        folder = study.create_run(name)
        write_run(folder, RunState(run_id=f"s/{name}", title="t", overrides=()))
        for point, count in (("c1-r0", 3), ("c2-r0", 3)):
            write_spool(folder, point, count, 3 if name == RUNS[0] else 2)
    remaining(study, registry(), retry_failed=False)
    first = study.run(RUNS[0])
    write_run(first, RunState(run_id="s/00_a", title="t", overrides=(), status="finished"))
    return study


def todo(left):
    return [one is not None for one in left.earlier]


def test_what_is_done_is_not_done_again(study):
    left = remaining(study, registry(), retry_failed=True)
    assert (todo(left), left.damaged) == ([False, True], ())
    assert dict(left.earlier[1].attempts) == {"c1-r0": 1, "c2-r0": 1}


READ = [(0, "points.parquet"), (0, "run.json"), (1, "points.parquet"), (1, "requests.parquet"), (1, "run.json")]


@pytest.mark.parametrize(("index", "name"), READ)
@pytest.mark.parametrize("content", [b"{}", b"PAR1 and no more"])
def test_a_damaged_run_keeps_no_other_back(study, capsys, index, name, content):
    """It is left alone and told; with `--failed` it is done anew, and what is left of it is kept."""
    run = RUNS[index]
    (study.run(run).path / name).write_bytes(content)
    left = remaining(study, registry(), retry_failed=False)
    assert left.damaged == (run,)
    assert todo(left) == [False, run == RUNS[0]]
    tell(study, left)
    said = capsys.readouterr().err
    assert f"{name} cannot be read" in said
    assert f"{1 if run == RUNS[1] else 0} of 2 runs are done, 1 cannot be read (--failed does them anew)" in said
    left = remaining(study, registry(), retry_failed=True)
    assert (todo(left), left.damaged) == ([run == RUNS[0], True], ())
    assert (study.path / f"{run}.damaged-1" / name).read_bytes() == content
    assert not study.run(run).path.exists()
    again = remaining(study, registry(), retry_failed=True)
    assert todo(again) == todo(left)


def test_a_system_that_refuses_is_no_damage(study, monkeypatch):
    """Nothing is set aside because the disk is full or a file may not be read just now."""

    def refuse(*_):
        raise StoreError("cannot write: the disk is full")

    write_spool(study.run(RUNS[1]), "c2-r0-a1", 3, 1)
    monkeypatch.setattr("servebench.run.recovery.recover_run", refuse)
    with pytest.raises(StoreError, match="what was cut off cannot be recovered"):
        remaining(study, registry(), retry_failed=True)
    assert sorted(path.name for path in study.path.iterdir() if path.is_dir()) == list(RUNS)


def test_a_study_that_cannot_be_read_is_not_the_newest(study, outputs, capsys):
    write_study(study, StudyState(study_id="s", words=WORDS, runs=RUNS, status="finished"))
    broken = outputs / "z"
    broken.mkdir()
    (broken / "study.json").write_text("{")
    with pytest.raises(ConfigError, match="there is no unfinished study"):
        dispatch(["resume"])
    assert "z: " in capsys.readouterr().err


def test_a_study_that_was_killed_after_its_last_run_is_settled(study):
    """Nothing is left to do, and it says so from then on."""
    for name in RUNS:
        write_run(study.run(name), RunState(run_id=f"s/{name}", title="t", overrides=(), status="failed"))
    state = read_study(study)
    write_study(study, StudyState(study_id="s", words=WORDS, runs=RUNS, pid=DEAD_PID, tracking={"name": "none"}))
    assert state.status == "interrupted"
    assert dispatch(["resume", "s"]) == 0
    assert read_study(study).status == "failed"
