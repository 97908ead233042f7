"""Studies in MLflow: from what is on disk alone, each once, whatever the server does."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt, Point
from servebench.store.layout import StudyFolder
from servebench.store.manifest import build_manifest, write_manifest
from servebench.store.mlflow_client import Mlflow, conversation, metric_name
from servebench.store.state import RunState, StudyState, write_run, write_study
from servebench.store.tables import write_points
from servebench.store.tracking import CALL_TIMEOUTS, _metrics, sync_study, tracked_run, tracking_uri
from servebench.study.tracking import ESTIMATORS
from servebench.util.file_redaction import clean_file, mark_unclean
from support.commands import run_program
from support.hostile import drip, silent
from support.servers import refusing_port

VOID = Doubt(code="errors", message="m", remedy="r", void=True)
TIMEOUT_S = 60.0


def point(concurrency, throughput, **changes):
    row = {
        "run_id": "x", "engine": "e", "concurrency": concurrency, "rate": None, "requests_ok": 5,
        "output_throughput_tok_s": throughput, "goodput_req_s": None, "nan": float("nan"), "inf": float("inf"),
        "emulated": False, "window_end_ns": 1_700_000_000_000_000_000 + concurrency * 10**9, "point": f"c{concurrency}",
    } | changes  # fmt: skip
    doubts = row.pop("with_doubts", ())
    return Point(row=PointRow.from_dict(row), doubts=doubts)


CONFIG = {
    "engine": {
        "name": "vllm",
        "env": {"HF_TOKEN": "tok-secret-1", "weird (name)": "1", "weird [name]": "2", "..": "3"},
    },
    "launch": {"name": "process", "api_key_env": "MY_KEY"},
    "model": {"name": "org/m", "path": None},
    "gpu": {"name": "none"},
    "workload": {"name": "unique", "input_tokens": 512, "long": "x" * 9000},
    "load": {"name": "baseline", "concurrency": [1, 2]},
}


def write_run_folder(study, name, status="finished", points=(), config=CONFIG, **changes):
    folder = study.create_run(name)
    state = RunState(run_id=f"{study.name}/{name}", title=f"title of {name}", overrides=(), started_s=1_700_000_000.0,
                     status=status, ended_s=None if status == "running" else 1_700_000_100.0)  # fmt: skip
    write_run(folder, replace(state, **changes))
    write_points(folder, points)
    facts = {"run_id": state.run_id, "servebench_version": "0", "engine_version": "1.2",
             "cold_start": {"seconds": 3.5, "phases": [{"name": "weights", "seconds": 2.0}]}}  # fmt: skip
    write_manifest(folder.manifest, build_manifest(config=config, facts=facts, machine={}))
    folder.engine_log.write_text("started with --api-key log-secret-1\nready\n")
    return folder


def write_one_study(outputs, name="study one", runs=("00_a",), status="finished", **changes):
    study = StudyFolder(outputs / name)
    study.path.mkdir(parents=True)
    state = StudyState(
        study_id=name,
        words=("engine=vllm", "+engine.env.HF_TOKEN=word-secret-1"),
        runs=tuple(runs),
        status=status,
        started_s=1_700_000_000.0,
        ended_s=None if status == "running" else 1_700_000_200.0,
    )
    write_study(study, replace(state, **changes))
    for run in runs:
        write_run_folder(study, run, points=[point(1, 100.0), point(2, 150.0), point(8, 900.0, with_doubts=(VOID,))])
    return study


@pytest.fixture(scope="module")
def fresh_database(tmp_path_factory):
    """An empty database of MLflow: its first use takes seconds, so it is made once and copied."""
    folder = tmp_path_factory.mktemp("database")
    study = write_one_study(folder / "outputs", runs=())
    assert send(study, uri=f"sqlite:///{folder}/mlflow.db", experiment="other").error is None
    return folder / "mlflow.db"


@pytest.fixture
def outputs(tmp_path, fresh_database):
    """An outputs folder with a database that has its tables."""
    (tmp_path / "outputs").mkdir()
    shutil.copy(fresh_database, tmp_path / "outputs" / "mlflow.db")
    return tmp_path / "outputs"


def send(study, uri=None, experiment="servebench", timeout_s=TIMEOUT_S):
    return sync_study(
        study,
        uri=uri or f"sqlite:///{study.path.parent}/mlflow.db",
        experiment=experiment,
        timeout_s=timeout_s,
        estimators=ESTIMATORS,
    )


def stored(outputs, experiment="servebench"):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{outputs}/mlflow.db")
    found = client.get_experiment_by_name(experiment)
    runs = client.search_runs([found.experiment_id]) if found else []
    parents = [run for run in runs if run.data.tags["servebench.kind"] == "study"]
    children = sorted(
        (run for run in runs if run.data.tags["servebench.kind"] == "run"), key=lambda run: run.info.run_name
    )
    return client, parents, children


@pytest.mark.slow
def test_a_study_is_a_parent_and_its_runs_are_children(outputs):
    """Names, statuses, times, parameters, tags and artifacts arrive."""
    study = write_one_study(outputs, runs=("00_a", "01_b"))
    report = send(study)
    assert (report.error, report.sent, report.unchanged) == (None, ("00_a", "01_b"), ())
    client, (parent,), (first, second) = stored(outputs)
    assert (parent.info.run_name, parent.info.status, parent.info.end_time) == (
        "study one",
        "FINISHED",
        1_700_000_200_000,
    )
    assert first.data.tags["mlflow.parentRunId"] == second.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (first.info.run_name, first.info.status) == ("title of 00_a", "FINISHED")
    assert (first.info.start_time, first.info.end_time) == (1_700_000_000_000, 1_700_000_100_000)
    assert first.data.params["workload.input_tokens"] == "512"
    assert first.data.params["launch.api_key_env"] == "MY_KEY"
    assert first.data.params["engine.env.weird _name_"] in "12"
    assert len(first.data.params["workload.long"]) == 500
    assert (first.data.tags["servebench.verdict"], first.data.tags["servebench.doubts"]) == ("void", "errors")
    names = {item.path for item in client.list_artifacts(first.info.run_id)}
    assert names == {"points.csv", "points.parquet", "manifest.json", "engine.log"}


def test_metrics_are_drawn_against_load(outputs):
    """The step is the concurrency; what is missing, not a number or infinite is left out; a void point is never best."""
    study = write_one_study(outputs)
    send(study)
    client, _, (run,) = stored(outputs)
    history = client.get_metric_history(run.info.run_id, "output_throughput_tok_s")
    assert [(one.step, one.value) for one in history] == [(1, 100.0), (2, 150.0), (8, 900.0)]
    assert history[0].timestamp == 1_700_000_001_000
    assert run.data.metrics["best_output_throughput_tok_s"] == 150.0
    assert run.data.metrics["best_output_throughput_level"] == 2.0
    assert (run.data.metrics["cold_start_s"], run.data.metrics["cold_start/weights_s"]) == (3.5, 2.0)
    assert not {"goodput_req_s", "nan", "inf", "rate", "emulated", "window_end_ns", "engine"} & set(run.data.metrics)


def test_runs_of_one_study_have_one_scale_of_rates_whatever_was_measured(tmp_path):
    study = StudyFolder(tmp_path / "s")
    study.path.mkdir()
    config = {**CONFIG, "load": {"name": "rate", "rate": [0.5, 4]}}
    folder = write_run_folder(
        study, "00_a", points=[Point(row=PointRow(rate=4.0, output_throughput_tok_s=9.0))], config=config
    )
    run = tracked_run(folder, at_work=False, estimators=ESTIMATORS)
    assert {step for name, _, step, _ in run.metrics if name == "output_throughput_tok_s"} == {400}
    assert run.tags["servebench.step"] == "requests a second x 100"


def test_a_level_that_is_infinite_in_one_point_has_no_metric():
    rows = [PointRow(concurrency=1, ttft_ms_p99=9.0, ttft_ms_p99_all=last) for last in (9.0, float("inf"))]
    assert [(name, value) for name, value, *_ in _metrics(rows, 0, ESTIMATORS, 1) if name.startswith("ttft")] == [
        ("ttft_ms_p99", pytest.approx(9.0))
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "pid", "expected"),
    [("finished", None, "FINISHED"), ("failed", None, "FAILED"), ("interrupted", None, "KILLED"),
     ("running", None, "RUNNING"), ("running", 999_999_999, "KILLED")],
)  # fmt: skip
def test_statuses(outputs, status, pid, expected):
    """As the run ended; `running` though nobody is at work was killed."""
    study = write_one_study(outputs, status=status, **({} if pid is None else {"pid": pid}))
    write_run_folder(study, "00_a", status=status, points=[point(1, 5.0)])
    assert send(study).error is None
    _, (parent,), (run,) = stored(outputs)
    assert (parent.info.status, run.info.status) == (expected, expected)
    assert (run.info.end_time is None) == (expected == "RUNNING")


@pytest.mark.slow
def test_a_running_study_is_brought_up_to_date(outputs):
    """Sent while it runs, and again when it is finished: the same runs, with what was added."""
    study = write_one_study(outputs, status="running", runs=("00_a", "01_b"))
    write_run_folder(study, "01_b", status="running", points=[point(1, 5.0)])
    send(study)
    _, (parent,), (_, running) = stored(outputs)
    assert (parent.info.status, running.info.status) == ("RUNNING", "RUNNING")
    write_run_folder(study, "01_b", points=[point(1, 5.0), point(2, 9.0)])
    write_study(study, StudyState(study_id=study.name, words=(), runs=("00_a", "01_b"), status="finished",
                                  started_s=1_700_000_000.0, ended_s=1_700_000_300.0))  # fmt: skip
    report = send(study)
    assert (report.sent, report.unchanged, report.error) == (("01_b",), ("00_a",), None)
    client, (after,), (_, done) = stored(outputs)
    assert (after.info.run_id, done.info.run_id) == (parent.info.run_id, running.info.run_id)
    assert (after.info.status, after.info.end_time, done.info.status) == ("FINISHED", 1_700_000_300_000, "FINISHED")
    history = client.get_metric_history(done.info.run_id, "output_throughput_tok_s")
    assert [(one.step, one.value) for one in history] == [(1, 5.0), (2, 9.0)]
    assert done.data.metrics["best_output_throughput_tok_s"] == 9.0


def test_a_log_that_is_not_clean_is_sent_when_it_is(outputs):
    """It may hold keys until then; what else the run has is sent at once."""
    study = write_one_study(outputs)
    log = study.run("00_a").engine_log
    mark_unclean(log)
    sent = tracked_run(study.run("00_a"), at_work=False, estimators=ESTIMATORS)
    assert log.exists()
    assert log not in sent.artifacts
    assert study.run("00_a").state.exists()
    clean_file(log)
    assert log in tracked_run(study.run("00_a"), at_work=False, estimators=ESTIMATORS).artifacts


def test_what_was_sent_is_not_sent_again(outputs):
    """A second call does not even ask the server."""
    study = write_one_study(outputs)
    send(study)
    before = (outputs / "mlflow.db").stat().st_mtime_ns
    report = send(study)
    assert (report.sent, report.unchanged, report.error) == ((), ("00_a",), None)
    assert (outputs / "mlflow.db").stat().st_mtime_ns == before


def sent_once(outputs, studies=1, runs=1, experiment="servebench"):
    """Whether nothing is there twice."""
    _, parents, children = stored(outputs, experiment)
    return (len(parents), len(children)) == (studies, runs)


@pytest.mark.slow
def test_what_was_sent_is_found_again_without_the_memory_of_it(outputs):
    """By its key; a broken memory is none."""
    study = write_one_study(outputs)
    send(study)
    study.run("00_a").tracking.unlink()
    for text in ("", "{", "[]", '"x"'):
        study.tracking.write_text(text)
        assert send(study).sent == ("00_a",)
    assert json.loads(study.tracking.read_text())["mlflow_run_id"]
    assert sent_once(outputs)


@pytest.mark.slow
def test_a_conversation_that_was_given_up_goes_no_further(outputs, monkeypatch):
    """It would send what somebody else sends by then: each run twice."""
    study = write_one_study(outputs, runs=("00_a", "01_b"))
    go_on, asked = threading.Event(), []
    at_once = Mlflow.send

    def slow_send(self, *words):
        asked.append(threading.current_thread())
        go_on.wait()
        at_once(self, *words)

    monkeypatch.setattr(Mlflow, "send", slow_send)
    monkeypatch.setattr("servebench.store.tracking.START_TIMEOUTS", 1)
    for timeout_s in (8.0, 64.0, 512.0):  # a slow machine may not get as far as to the first run
        report = send(study, timeout_s=timeout_s)
        if asked:
            break
    assert f"{timeout_s:g} s" in report.error
    go_on.set()
    asked[0].join()
    assert len(asked) == 1
    assert send(study).sent == ("01_b",)
    assert sent_once(outputs, runs=2)


@pytest.mark.slow
def test_studies_of_one_name_are_not_one(outputs, tmp_path):
    """Two outputs folders may send to one server; a name with a quote does not break the search either."""
    uri = f"sqlite:///{outputs}/mlflow.db"
    one = write_one_study(outputs, name="it's")
    other = write_one_study(tmp_path / "elsewhere", name="it's", started_s=1_700_000_001.0)
    assert send(one, uri=uri).error is None
    assert send(other, uri=uri).error is None
    assert sent_once(outputs, studies=2, runs=2)


def test_deleted_in_mlflow_is_made_anew(outputs):
    """A run that the user deleted there comes back when it changes, and the study's too."""
    study = write_one_study(outputs)
    send(study)
    client, (parent,), (child,) = stored(outputs)
    client.delete_run(parent.info.run_id)
    client.delete_run(child.info.run_id)
    write_run_folder(study, "00_a", points=[point(1, 7.0)])
    assert send(study).error is None
    _, parents, children = stored(outputs)
    assert (len(parents), len(children)) == (1, 1)
    assert children[0].data.tags["mlflow.parentRunId"] == parents[0].info.run_id


def test_another_place_gets_all_and_the_first_is_known_again(outputs):
    """Another experiment has its own runs; going back makes no second ones."""
    study = write_one_study(outputs)
    for experiment in ("servebench", "second", "servebench"):
        assert send(study, experiment=experiment).sent == ("00_a",)
    assert all(sent_once(outputs, experiment=experiment) for experiment in ("servebench", "second"))


def test_a_database_that_was_removed_is_filled_again(outputs, fresh_database):
    """What is remembered as sent is of no worth when the database is gone."""
    study = write_one_study(outputs)
    uri = f"sqlite:///{outputs}/second.db"
    shutil.copy(fresh_database, outputs / "second.db")
    assert send(study, uri=uri).sent == ("00_a",)
    (outputs / "second.db").unlink()
    assert send(study, uri=uri).sent == ("00_a",)


def test_a_broken_run_keeps_no_other_back(outputs):
    """The others are sent, and the broken one is named."""
    study = write_one_study(outputs, runs=("00_a", "01_b", "02_c", "03_d"))
    study.run("00_a").points.write_bytes(b"nonsense")
    study.run("01_b").state.write_text("{")
    study.run("02_c").manifest.write_text("[]")
    report = send(study)
    assert report.sent == ("03_d",)
    assert "00_a/points.parquet cannot be read" in report.error
    assert report.error.endswith("(and 2 more)")
    assert not report.tracker_down
    assert send(study).error == report.error


def change(path, *keys, value):
    whole = json.loads(path.read_text())
    inner = whole
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(whole))


EVIL = "<img src=x onerror=alert(1)>\n\r\x00\x1b]0;x\x07\u202e" + "A/" * 5000
NAMES = {"x" * 3000: "y", "a/" * 400: 1, "..": "x", "": "e", "a" * 243 + "/..b": 2, EVIL: EVIL}
TIMES = (float("nan"), float("inf"), 1e308, 1e200, -1e18)
DAMAGE = [
    *(("state", ("started_s",), value) for value in TIMES),
    *(("state", ("ended_s",), value) for value in TIMES),
    ("manifest", ("config", "engine"), "x"),
    ("manifest", ("config", "launch"), [1]),
    ("manifest", ("cold_start",), "x"),
    ("manifest", ("cold_start",), {"phases": [{"name": "x", "seconds": "y"}]}),
    ("manifest", ("quality",), [{"benchmark": "x", "doubts": "y"}]),
    ("manifest", ("search",), "x"),
]


@pytest.mark.parametrize(("file", "keys", "value"), DAMAGE)
def test_a_damaged_part_keeps_no_other_run_back(outputs, file, keys, value):
    study = write_one_study(outputs, runs=("00_a", "01_b"))
    change(getattr(study.run("00_a"), file), *keys, value=value)
    report = send(study)
    assert report.sent == ("01_b",)
    assert "00_a" in report.error
    assert "\n" not in report.error
    assert not report.tracker_down


def test_hostile_names_are_sent_as_text(outputs):
    """HTML, control characters, slashes and 10,000 characters in titles, errors, keys and values."""
    study = write_one_study(outputs)
    run = study.run("00_a")
    change(run.state, "title", value=EVIL)
    change(run.state, "error", value=EVIL)
    change(run.manifest, "config", "model", value=NAMES)
    change(run.manifest, "engine_version", value=[EVIL])
    assert send(study).error is None
    _, _, (sent,) = stored(outputs)
    texts = [*sent.data.params, *sent.data.params.values(), *sent.data.tags.values(), sent.info.run_name]
    assert not any(character in text for text in texts for character in "\x00\x1b\x07\u202e")
    assert max(map(len, sent.data.params)) <= 250
    assert len(sent.info.run_name) <= 250


def test_a_broken_study_is_one_line(outputs):
    """Nothing is raised."""
    study = write_one_study(outputs)
    for text in ("", "[]", "{}", '{"study_id": 3}', "null"):
        study.state.write_text(text)
        report = send(study)
        assert report.error.startswith(f"{study.state} cannot be read")
        assert "\n" not in report.error


def test_no_secret_reaches_any_file_or_the_database(outputs, monkeypatch):
    """Neither what was in the config, the words, an error or the log of the engine."""
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "env-secret-1")
    study = write_one_study(outputs)
    write_run_folder(study, "00_a", status="failed", points=[point(1, 1.0)], error="key env-secret-1 is wrong")
    assert send(study).error is None
    log = study.run("00_a").engine_log
    secrets = [b"tok-secret-1", b"word-secret-1", b"env-secret-1", b"log-secret-1"]
    seen = [path for path in outputs.rglob("*") if path.is_file() and path != log]
    assert any(path.name == "engine.log" for path in seen)
    assert any(path.name == "mlflow.db" for path in seen)
    for path in seen:
        data = path.read_bytes()
        assert [secret for secret in secrets if secret in data] == [], path


def test_long_and_odd_names():
    """MLflow refuses brackets, and paths that can be written in another way."""
    assert metric_name("ttft (p99) %") == "ttft _p99_ _"
    assert metric_name("a/b_s") == "a/b_s"
    assert metric_name("../a//b/./c") == "_/a/_/b/_/c"
    assert metric_name("/x/") == "_/x/_"
    assert metric_name("a" * 249 + "/b") == "a" * 249
    assert metric_name("a" * 247 + "/..b") == "a" * 247
    assert metric_name("") == metric_name("/." * 0) == "_"
    assert len(metric_name("x" * 400)) == 250


SYNC = """
import sys
from pathlib import Path
from servebench.store import mlflow_client, tracking
from servebench.store.layout import StudyFolder
from servebench.store.tracking import sync_study
from servebench.study.tracking import ESTIMATORS
mlflow_client.LOCK_TIMEOUT_S = tracking.LOCK_TIMEOUT_S = 600.0  # a slow machine may take longer than a user waits
for uri in sys.argv[3:]:
    options = {"experiment": "servebench", "timeout_s": float(sys.argv[2]), "estimators": ESTIMATORS}
    print(sync_study(StudyFolder(Path(sys.argv[1])), uri=uri, **options).error)
"""


def start_sync(study, uri):
    words = [sys.executable, "-W", "default", "-c", SYNC, str(study.path), "60", uri]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_processes_on_a_fresh_database(tmp_path):
    """Both make the tables at once, and both succeed; neither says anything of it."""
    studies = [write_one_study(tmp_path, name=name) for name in ("one", "two")]
    started = [start_sync(study, f"sqlite:///{tmp_path}/mlflow.db") for study in studies]
    assert [process.communicate(timeout=500) for process in started] == [("None\n", "")] * 2
    assert sent_once(tmp_path, studies=2, runs=2)


@pytest.mark.slow
def test_two_processes_on_one_study(outputs):
    """A study that is sent twice at once is there once."""
    study = write_one_study(outputs)
    started = [start_sync(study, f"sqlite:///{outputs}/mlflow.db") for _ in range(2)]
    assert [process.communicate(timeout=500)[0] for process in started] == ["None\n"] * 2
    assert sent_once(outputs)


def silent_tracker(connection, request):
    return (200, b"") if request.path == "/health" else silent(connection)


def dripping_tracker(connection, request):
    return drip(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" ")


@pytest.mark.slow
def test_a_server_that_is_healthy_and_fails(tmp_path, serve):
    """Whether it answers with an error, hangs or drips: bounded, one line, nothing raised, nothing remembered as sent."""
    servers = [serve(script) for script in (lambda *_: (500, b""), silent_tracker, dripping_tracker)]
    study = write_one_study(tmp_path, runs=("00_a", "01_b"))
    done = run_program(sys.executable, "-c", SYNC, study.path, "2", *[one.url for one in servers], cwd=tmp_path)
    errors = done.stdout.splitlines()
    for server, error in zip(servers, errors, strict=True):
        assert server.url in error
    assert re.search(f"{2 * CALL_TIMEOUTS} s|timed out", errors[2]), "one call of the server has a limit"
    assert done.stderr == ""
    assert not study.tracking.exists()


def test_the_environment_is_left_as_it_was(outputs, monkeypatch):
    """What is set for MLflow is not set for the engines that are started later; what the user set is the user's."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    before = dict(os.environ)
    assert send(write_one_study(outputs)).error is None
    assert {name: value for name, value in os.environ.items() if before.get(name) != value} == {}


def test_a_dead_server_costs_nothing_and_loses_nothing(outputs):
    """The report says so, and the next call sends all."""
    study = write_one_study(outputs)
    with refusing_port() as port:
        report = send(study, uri=f"http://127.0.0.1:{port}")
    assert report.tracker_down
    assert "refused" in report.error
    assert "\n" not in report.error
    assert send(study).sent == ("00_a",)


def test_a_broken_database_is_one_line(tmp_path):
    """It says that it is one and is none."""
    study = write_one_study(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(b"SQLite format 3\0" + b"rubbish" * 1000)
    report = send(study)
    assert report.tracker_down
    assert "\n" not in report.error


@pytest.mark.slow
def test_a_database_that_somebody_holds_is_one_line(outputs):
    """Another program writes to it for longer than SQLite waits."""
    study = write_one_study(outputs)
    holder = sqlite3.connect(outputs / "mlflow.db")
    try:
        holder.execute("BEGIN EXCLUSIVE")
        report = send(study, timeout_s=5.0)
    finally:
        holder.rollback()
        holder.close()
    assert "locked" in report.error
    assert send(study).error is None


def test_where_studies_are_sent(monkeypatch, tmp_path):
    """As asked, else as the environment says, else to a file in the outputs folder."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri(None, tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://a")
    assert tracking_uri(None, tmp_path) == "http://a"
    assert tracking_uri("http://b", tmp_path) == "http://b"


@pytest.mark.parametrize("statement", [130, 295])
def test_a_kill_while_the_database_is_made_leaves_no_half_of_it(tmp_path, statement):
    """MLflow cannot go on with a database whose tables were made in part."""
    program = f"""if True:
        import os, signal
        from itertools import count
        from pathlib import Path

        import sqlalchemy

        from servebench.store.mlflow_client import Mlflow, conversation

        statements = count(1)

        @sqlalchemy.event.listens_for(sqlalchemy.engine.Engine, "after_cursor_execute")
        def kill(*arguments):
            if next(statements) == {statement}:
                os.kill(os.getpid(), signal.SIGKILL)

        with conversation(60.0):
            Mlflow("sqlite:///mlflow.db", "e", Path.cwd())
    """
    assert run_program(sys.executable, "-c", program, cwd=tmp_path).returncode == -signal.SIGKILL
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with conversation(TIMEOUT_S):
        Mlflow(uri, "e", tmp_path)
        assert MlflowClient(uri).get_experiment_by_name("e") is not None
    assert {path.name for path in tmp_path.glob("*mlflow.db*")} == {"mlflow.db", ".mlflow.db.lock"}


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite+pysqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_keeps_nothing_and_is_refused(tmp_path, uri):
    report = sync_study(write_one_study(tmp_path), uri=uri, experiment="e", timeout_s=10, estimators=ESTIMATORS)
    assert (report.tracker_down, report.error.count("\n")) == (True, 0)
    assert uri in report.error
