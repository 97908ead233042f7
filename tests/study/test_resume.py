"""What is left of a study, whatever state its files are in, and the command that continues it."""

import shlex

import pytest
from tests.study.test_recover import DEAD_PID, WORDS, outputs, write_spool

from servebench.analysis.answer.next_steps import needs_again
from servebench.cli.main import dispatch
from servebench.config import compose_jobs
from servebench.registry.registry import registry
from servebench.store.layout import StudyFolder
from servebench.store.plan import PlannedRun, read_plan, write_plan
from servebench.store.state import RunState, StudyState, read_study, write_run, write_study
from servebench.store.studies import load_study
from servebench.study.resume import (
    continue_command,
    measured_longer,
    print_continuation,
    print_remaining,
    remaining_runs,
    skipped,
    skipped_exit_code,
    standing_of,
)
from servebench.util.errors import ConfigError, EngineError, FailureKind, LoadError, QualityError, StoreError

__all__ = ["outputs"]
RUNS = ("00_a", "01_b")


@pytest.fixture
def study(outputs):
    """A killed study of two runs; the first has a whole phase on disk, the second one that was cut off."""
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
    remaining_runs(study, registry(), read_plan(study), retry_failed=False)
    first = study.run(RUNS[0])
    write_run(first, RunState(run_id="s/00_a", title="t", overrides=(), status="finished"))
    return study


def todo(left):
    return [run.execute for run in left]


def damaged(left):
    return [run.name for run in skipped(left, "damaged")]


@pytest.mark.slow
def test_finished_runs_are_not_executed_again(study):
    left = remaining_runs(study, registry(), read_plan(study), retry_failed=True)
    assert (todo(left), damaged(left)) == ([False, True], [])
    assert {str(point): count for point, count in left[1].earlier.attempts.items()} == {"c1-r0": 1, "c2-r0": 1}


@pytest.mark.slow
def test_doubtful_points_are_measured_again_and_longer_with_better(study):
    """Points of three requests are doubtful; those whose warnings no longer measurement settles are kept."""
    plain = remaining_runs(study, registry(), read_plan(study), retry_failed=False)
    doubtful = {point.first for point, one in plain[0].earlier.points.items() if one.verdict != "valid"}
    assert doubtful
    left = remaining_runs(study, registry(), read_plan(study), retry_failed=False, better=True)
    assert todo(left) == [True, True]
    assert not doubtful & set(left[0].earlier.points)
    load, before = (one[0].job.settings.load for one in (left, plain))
    assert (load.requests, load.max_duration_s) == (2 * before.requests, 2 * before.max_duration_s)
    assert left[0].job.resolved["load"]["requests"] == load.requests
    rest = {"prompt_size_approximate", "emulated"}
    assert [needs_again("doubtful", codes) for codes in (rest, {*rest, "too_short"})] == [False, True]


@pytest.mark.parametrize(
    ("levels", "requests", "wanted"), [("[1,64]", "20", 640), ("[1,16]", "20", 40), ("[4]", "auto", "auto")]
)
def test_longer_points_have_requests_enough_for_their_level(levels, requests, wanted):
    words = ("engine=vllm", "launch=simulated", f"load.concurrency={levels}", "load.until=null")
    (job,) = compose_jobs([*words, f"load.requests={requests}"], registry())
    again = [measured_longer(job, attempts=number).settings.load.requests for number in (1, 2, 3)]
    assert again == ([wanted] * 3 if wanted == "auto" else [wanted, 2 * wanted, 4 * wanted])


READ = [(0, "points.parquet"), (0, "run.json"), (1, "points.parquet"), (1, "requests.parquet"), (1, "run.json")]


@pytest.mark.slow
@pytest.mark.parametrize(("index", "name"), READ)
@pytest.mark.parametrize("content", [b"{}", b"PAR1 and no more"])
def test_a_damaged_run_does_not_stop_the_others(study, capsys, index, name, content):
    """It is skipped and reported; with `--failed` it is executed again, and its files are kept."""
    run = RUNS[index]
    (study.run(run).path / name).write_bytes(content)
    left = remaining_runs(study, registry(), read_plan(study), retry_failed=False)
    assert damaged(left) == [run]
    assert todo(left) == [False, run == RUNS[0]]
    assert skipped_exit_code(study, left) == StoreError.exit_code
    print_remaining(study, left)
    said = capsys.readouterr().err
    assert name in said
    assert "1 cannot be read (--failed" in said
    left = remaining_runs(study, registry(), read_plan(study), retry_failed=True)
    assert (todo(left), damaged(left)) == ([run == RUNS[0], True], [])
    assert (study.path / f"{run}.damaged-1" / name).read_bytes() == content
    assert not study.run(run).path.exists()
    again = remaining_runs(study, registry(), read_plan(study), retry_failed=True)
    assert todo(again) == todo(left)


@pytest.mark.slow
def test_a_run_with_points_and_without_its_state_is_damaged(study):
    """Its old requests would be counted with those of another attempt, and what was set aside is no run of the study."""
    (study.run(RUNS[0]).path / "run.json").unlink()
    left = remaining_runs(study, registry(), read_plan(study), retry_failed=False)
    assert (todo(left), damaged(left)) == ([False, True], [RUNS[0]])
    remaining_runs(study, registry(), read_plan(study), retry_failed=True)
    assert (study.path / f"{RUNS[0]}.damaged-1" / "points.parquet").exists()
    assert [run.name for run in load_study(study.path).runs] == list(RUNS)


@pytest.mark.slow
def test_an_error_of_the_system_is_no_damage(study, monkeypatch):
    """Nothing is renamed because the disk is full or a file cannot be read for a while."""

    def refuse(*_):
        raise StoreError("cannot write: the disk is full")

    write_spool(study.run(RUNS[1]), "c2-r0-a1", 3, 1)
    monkeypatch.setattr("servebench.run.recovery.recover_records", refuse)
    with pytest.raises(StoreError):
        remaining_runs(study, registry(), read_plan(study), retry_failed=True)
    assert sorted(path.name for path in study.path.iterdir() if path.is_dir()) == list(RUNS)


@pytest.mark.slow
def test_a_study_that_cannot_be_read_is_not_the_newest(study, outputs, capsys):
    write_study(study, StudyState(study_id="s", words=WORDS, runs=RUNS, status="finished"))
    broken = outputs / "z"
    broken.mkdir()
    (broken / "study.json").write_text("{")
    with pytest.raises(ConfigError, match="no unfinished study"):
        dispatch(["resume"])
    assert "z: " in capsys.readouterr().err


def set_states(study, *states):
    for name, (status, failure) in zip(RUNS, states, strict=True):
        state = RunState(run_id=f"s/{name}", title="t", overrides=(), status=status, failure=failure)
        write_run(study.run(name), state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "code", "status"),
    [
        (("finished", None), 0, "finished"),
        (("failed", "died"), EngineError.exit_code, "failed"),
        (("failed", "load"), LoadError.exit_code, "failed"),
        (("failed", "quality"), QualityError.exit_code, "failed"),
    ],
)
def test_resume_without_work_fails_as_long_as_a_run_is_failed(study, capsys, second, code, status):
    """Also a study that was killed after its last run: its state and exit code follow from its runs."""
    recover_points(study)
    set_states(study, ("finished", None), second)
    killed = StudyState(study_id="s", words=WORDS, runs=RUNS, pid=DEAD_PID, tracking={"name": "none"})
    write_study(study, killed)
    for _ in range(2):
        assert dispatch(["resume", "s"]) == code
        assert read_study(study).status == status
        lines = capsys.readouterr().err.splitlines()
        assert (lines[-1] == "servebench resume s --failed") is (code != 0)


def recover_points(study):
    """Remove the points of the second run that were cut off, so that nothing of it is to be measured again."""
    study.run(RUNS[1]).points.unlink()


@pytest.mark.parametrize(
    ("status", "failure", "whole", "standing"),
    [
        ("finished", None, True, "finished"),
        ("finished", None, False, "unfinished"),
        ("running", None, True, "unfinished"),
        ("interrupted", "interrupted", True, "unfinished"),
        ("interrupted", "lost", True, "unfinished"),
        ("failed", FailureKind.WORKER, True, "unfinished"),
        ("failed", "load", True, "failed"),
        ("failed", "died", False, "failed"),
    ],
)
def test_how_a_run_stands(status, failure, whole, standing):
    state = RunState(run_id="s/a", title="t", overrides=(), status=status, failure=failure)
    assert standing_of(state, whole=whole) == standing


@pytest.mark.parametrize(
    ("standings", "command"),
    [
        (["finished", "finished"], None),
        (["finished", "unfinished"], "servebench resume s"),
        (["failed", "finished"], "servebench resume s --failed"),
        (["unfinished", "damaged"], "servebench resume s --failed"),
    ],
)
def test_the_command_that_continues_a_study(outputs, standings, command):
    assert continue_command(StudyFolder(outputs / "s"), standings) == command


def test_the_command_names_a_study_elsewhere_by_its_path(outputs, tmp_path):
    folder = StudyFolder(tmp_path / "my results" / "s")
    command = continue_command(folder, ["unfinished"], here=True)
    assert shlex.split(command) == ["servebench", "resume", str(folder.path), "--here"]


def test_settings_that_would_fail_again_are_mended_in_the_command(study, capsys):
    """`resume --failed` keeps a wrong argument: it is not what continues such a run."""
    set_states(study, ("failed", "unknown_flag"), ("failed", "config"))
    print_continuation(study, RUNS)
    last = shlex.split(capsys.readouterr().err.splitlines()[-1])
    assert last == ["servebench", *[word for word in read_study(study).words if not word.startswith("study.name=")]]
    set_states(study, ("failed", "unknown_flag"), ("finished", None))
    print_continuation(study, RUNS)
    said = capsys.readouterr().err.splitlines()
    assert shlex.split(said[-1])[0] == "servebench"
    assert not any("resume" in line for line in said)
    set_states(study, ("failed", "unknown_flag"), ("failed", "endpoint"))
    print_continuation(study, RUNS)
    assert capsys.readouterr().err.splitlines()[-1] == "servebench resume s"


def test_the_last_line_is_the_command(study, capsys):
    set_states(study, ("failed", "load"), ("interrupted", "interrupted"))
    print_continuation(study, RUNS)
    assert capsys.readouterr().err.splitlines()[-1] == "servebench resume s --failed"
    set_states(study, ("finished", None), ("finished", None))
    print_continuation(study, RUNS)
    assert capsys.readouterr().err == ""
    (study.run(RUNS[1]).path / "run.json").write_text("{")
    print_continuation(study, [*RUNS, "02_never_started"])
    assert capsys.readouterr().err.splitlines()[-1] == "servebench resume s --failed"
