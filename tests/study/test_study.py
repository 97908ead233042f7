"""How a study ends: its exit code, its stored status, and what goes to the tracking server."""

import pytest

from servebench.analysis.events import StudyAnswered
from servebench.cli.main import dispatch
from servebench.contracts.events import ErrorSaid, Notice
from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import TrackingSettings
from servebench.store.layout import StudyFolder
from servebench.store.state import StudyState, read_study, write_study
from servebench.store.tracking import SyncReport
from servebench.study import tracking
from servebench.study.study import StudySession, study_exit_code
from servebench.util.errors import EngineError, FailureKind, Interrupted, LoadError, StoreError
from support.orchestration import Recorder
from support.servers import ScriptedServer
from support.studies import SimulatedEngine, SimulatedLoad, write_simulated_run

ENDS = {
    "ok": ("finished", None),
    "died": ("failed", "died"),
    "load": ("failed", "load"),
    "stopped": ("interrupted", "interrupted"),
    "lost": ("interrupted", "lost"),
}


def outcome(end, run_id="s/a"):
    status, failure = ENDS[end]
    return RunOutcome(run_id=run_id, status=status, failure=failure and FailureKind(failure))


class Tracker:
    def __init__(self):
        self.calls = []

    def sync(self):
        self.calls.append("sync")

    def conclude(self, state):
        self.calls.append(("conclude", state.status))

    def say_where(self):
        self.calls.append("location")


def test_a_dead_tracking_server_is_reported_once(tmp_path, monkeypatch):
    """After each run and at the end it fails for the same reason; another reason is printed, too."""
    reasons = iter(["refused", "refused", "refused", "full"])
    monkeypatch.setattr(tracking, "sync_study", lambda *_, **__: SyncReport(error=next(reasons), tracker_down=True))
    events = Recorder()
    tracker = tracking.StudyTracker(StudyFolder(tmp_path / "s"), TrackingSettings(name="mlflow"), events)
    state = StudyState(study_id="s", words=(), runs=())
    tracker.sync()
    tracker.sync()
    tracker.conclude(state)
    tracker.conclude(state)
    assert [one.note for one in events.of(Notice)] == ["refused"]
    tracker.conclude(state)
    assert [one.note for one in events.of(Notice)] == ["refused", "full"]


@pytest.mark.parametrize(
    ("ends", "other", "code"),
    [
        (["ok", "ok"], 0, 0),
        (["ok", "died", "load"], 0, EngineError.exit_code),
        (["load", "died"], 6, LoadError.exit_code),
        (["ok"], 6, 6),
        (["stopped"], 0, Interrupted.exit_code),
    ],
)
def test_the_first_failure_is_the_exit_code(ends, other, code):
    assert study_exit_code([outcome(end) for end in ends], other) == code


@pytest.mark.parametrize(
    ("ends", "interrupted", "other", "status", "code"),
    [
        (["ok", "ok"], False, 0, "finished", 0),
        (["died", "ok"], False, 0, "failed", EngineError.exit_code),
        (["ok", "ok"], False, StoreError.exit_code, "failed", StoreError.exit_code),
        (["died", "stopped"], True, 0, "interrupted", Interrupted.exit_code),
        (["ok"], True, 0, "interrupted", Interrupted.exit_code),
        (["lost", "ok"], False, 0, "interrupted", EngineError.exit_code),
        ([], True, 0, "interrupted", Interrupted.exit_code),
    ],
)
def test_the_end_of_a_study_is_stored(tmp_path, ends, interrupted, other, status, code):
    folder = StudyFolder(tmp_path)
    state = StudyState(study_id="s", words=(), runs=("a", "b"))
    write_study(folder, state)
    tracker, events = Tracker(), Recorder()
    session = StudySession(folder=folder, state=state, events=events, tracker=tracker, other_code=other)
    # a cluster's runs may end in any order
    for name, end in reversed(list(zip("ab", ends, strict=False))):
        session.add_outcome(name, outcome(end))
    assert session.finish("ab", interrupted=interrupted) == code
    stored = read_study(folder)
    assert stored.status == status
    assert stored.ended_s is not None
    assert tracker.calls == ["sync"] * len(ends) + [("conclude", status), "location"]
    assert [name for name, _ in session.outcomes] == list("ab")[: len(ends)]
    assert bool(events.of(StudyAnswered)) is bool(ends)


@pytest.mark.parametrize("name", ["run.json", "points.parquet"])
def test_a_run_whose_stored_results_were_damaged_has_not_finished(tmp_path, name):
    """On a cluster a job may end well and leave something else on the disk."""
    study = StudyFolder(tmp_path / "s")
    write_simulated_run(study.run("a"), SimulatedEngine(), SimulatedLoad(levels=(2,), requests=30))
    state = StudyState(study_id="s", words=(), runs=("a",))
    write_study(study, state)
    (study.run("a").path / name).write_bytes(b"PAR1 no more")
    events = Recorder()
    session = StudySession(folder=study, state=state, events=events, tracker=Tracker())
    session.add_outcome("a", outcome("ok"))
    assert session.finish(["a"], interrupted=False) == StoreError.exit_code
    (said,) = events.of(ErrorSaid)
    assert name in said.text


def test_what_a_server_repeats_of_secret_headers_is_not_printed(tmp_path, monkeypatch):
    """It is asked before the study has begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY", "value-of-a-gateway")

    def script(_, request):
        return 401, {"error": {"message": f"refused {request.headers.get('x-team')}"}}

    with ScriptedServer(script) as server:
        words = [f"endpoint={server.url}/v1", "model.name=m", "launch.headers_env={x-team:GATEWAY}", "--dry-run"]
        with pytest.raises(EngineError, match=r"refused \[redacted\]"):
            dispatch(words)
