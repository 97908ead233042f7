"""A study that a stranger hands over: its names, links and addresses lead nowhere without a yes, and showing it never asks."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

SIMULATED = ("-m", "engine=vllm,sglang", "launch=simulated", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct",
             "workload=unique", "workload.output_tokens=16", "load.concurrency=[1]", "load.requests=5",
             "load.self_check=never", "study.name=s", "study.starts=1", "tracking=none")  # fmt: skip
RUN, OTHER = "00_vllm_unique", "01_sglang_unique"
TOKEN = "kq7-not-for-strangers"
READING = (
    ("ls",),
    ("show", "s"),
    ("compare", "s"),
    ("report", "s"),
    ("recommend", "s"),
    ("export", "s", "--format", "csv"),
)
ACTING = (("resume", "s"), ("resume", "s", "--trust"), ("recover", "s"), ("sync", "s"), ("sync", "s", "--trust"),
          ("work", "s", RUN), ("work", "s", RUN, "--trust"), ("sync",), ("recover",))  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished study and the cache of who made it."""
    from support.commands import run_servebench

    folder = tmp_path_factory.mktemp("made")
    run_servebench(folder, *SIMULATED, env={"SERVEBENCH_CACHE": str(folder / "cache")}, code=0)
    return folder


@pytest.fixture
def study(made, tmp_path, monkeypatch):
    """One's own study, without a terminal."""
    monkeypatch.setenv("SERVEBENCH_CACHE", str(made / "cache"))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115,PTH123 - for the test's whole time
    shutil.copytree(made / "outputs", tmp_path / "outputs")
    yield tmp_path / "outputs" / "s"
    sys.stdin.close()


@pytest.fixture
def listener(serve):
    return serve(lambda *_: (404, {}))


def changed(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def unfinished(study):
    """As if killed before its second run."""
    changed(study / "study.json", lambda state: state.update(status="interrupted"))
    shutil.rmtree(study / OTHER)


def stranger(study):
    """As a study is that someone else made."""
    changed(study / "study.json", lambda state: state.pop("seal", None))


def in_one_line(done):
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def entries(folder):
    return sorted(str(path) for path in folder.rglob("*") if "outputs/s/" not in str(path))


NAMES = ("../../out", "..", "/tmp/out", "a/../../../out", ".hidden", "", "a\x00b", "a\nb", "\x1b]0;x\x07", "x" * 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_that_lead_out_of_a_study_are_refused(run_main, study, tmp_path, name):
    unfinished(study)
    changed(study / "study.json", lambda state: state.update(runs=[RUN, name]))
    before = entries(tmp_path)
    for words in ACTING:
        in_one_line(run_main(*words))
    for words in READING:
        done = run_main(*words)
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stdout + done.stderr
    assert entries(tmp_path) == before


@pytest.mark.parametrize("name", NAMES[:5])
def test_names_of_a_plan_are_refused_too(run_main, study, tmp_path, name):
    unfinished(study)
    changed(study / "plan.json", lambda plan: plan["runs"][1].update(name=name))
    before = entries(tmp_path)
    for words in (("resume", "s"), ("resume", "s", "--trust")):
        in_one_line(run_main(*words))
    assert entries(tmp_path) == before


def link_file(path, target):
    path.unlink()
    path.symlink_to(target)


def link_run(study, target):
    shutil.rmtree(study / OTHER)
    (study / OTHER).symlink_to(target.parent)


def link_study(study, target):
    study.rename(target.parent / "moved")
    study.symlink_to(target.parent / "moved")


def fifo(study, _):
    (study / RUN / "points.csv").unlink()
    os.mkfifo(study / RUN / "points.csv")


def hard(path, target):
    """The file under a second name: nothing but the number of its links tells it from a file of the study."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.hardlink_to(target)


OF_RUN = ("engine.log", "manifest.json", "run.json", "points.parquet", "points.csv", "requests.parquet", "answers.parquet",
          "quality.parquet", "telemetry.parquet", "report.html", "raw/c1-r0.spool",
          "raw/c1-r0.telemetry", "parts/0.parquet")  # fmt: skip
FILES = ("study.json", "plan.json", "tracking.json", "report.html", "summary/x.html", "prompts/x.json.gz",
         *(f"{RUN}/{name}" for name in OF_RUN))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_hard_links_in_a_study_are_not_followed(run_main, study, tmp_path, file):
    """Of a file with other content, and of the study's own, which is then another's to change."""
    secret = tmp_path / "private" / "diary.txt"
    secret.parent.mkdir()
    secret.write_text(f"dear diary {TOKEN}\n")
    own = tmp_path / "private" / "own"
    if (study / file).exists():
        own.hardlink_to(study / file)
        for words in ACTING:
            in_one_line(run_main(*words))
        own.unlink()
    changed(study / RUN / "run.json", lambda state: state.update(status="failed"))
    hard(study / file, secret)
    for words in ACTING:
        in_one_line(run_main(*words))
    for words in (*READING, ("report", "s", "--out", "page.html"), ("report", f"s/{RUN}", "--out", "page.html")):
        done = run_main(*words)
        assert "Traceback" not in done.stderr
        assert TOKEN not in done.stdout
    for page in (tmp_path / "page.html", study / "report.html", study / RUN / "report.html"):
        assert not page.is_file() or page.samefile(secret) or TOKEN not in page.read_text()
    assert secret.read_text() == f"dear diary {TOKEN}\n"


LINKS = {
    "a table": lambda study, target: link_file(study / RUN / "points.parquet", target),
    "a log": lambda study, target: (
        (study / RUN / "engine.log").unlink() or (study / RUN / "engine.log").symlink_to(target)
    ),
    "a report to write": lambda study, target: (study / "report.html").symlink_to(target),
    "a report of a run": lambda study, target: (study / RUN / "report.html").symlink_to(target),
    "the plan": lambda study, target: link_file(study / "plan.json", target),
    "spools": lambda study, target: (study / RUN / "raw").symlink_to(target.parent),
    "a run": link_run,
    "the study": link_study,
    "a pipe": fifo,
}


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_links_in_a_study_are_not_followed(run_main, study, tmp_path, link):
    secret = tmp_path / "private" / "diary.txt"
    secret.parent.mkdir()
    secret.write_text(f"dear diary {TOKEN}\n")
    link(study, secret)
    for words in ACTING:
        in_one_line(run_main(*words))
    for words in READING:
        done = run_main(*words)
        assert "Traceback" not in done.stderr
        assert TOKEN not in done.stdout
    for page in (study / "report.html", study / RUN / "report.html"):
        if page.is_file() and not page.is_symlink():
            assert TOKEN not in page.read_text()
    assert secret.read_text() == f"dear diary {TOKEN}\n"
    assert [path.name for path in secret.parent.iterdir() if path.name != "moved"] == ["diary.txt"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["{secret}", "../../private/diary.txt", "x/../../../private/diary.txt", "linked/diary.txt",
                                  RUN + "/diary.log"])  # fmt: skip
def test_a_report_shows_no_file_from_outside(run_main, study, tmp_path, form):
    secret = tmp_path / "private" / "diary.txt"
    secret.parent.mkdir()
    secret.write_text(f"dear diary {TOKEN}\n")
    (tmp_path / "outputs" / "linked").symlink_to(secret.parent)
    if form.endswith(".log"):
        (study / RUN / "diary.log").symlink_to(secret)
    for file, fact in (
        ("manifest.json", {"engine_log": form.format(secret=secret)}),
        ("run.json", {"status": "failed"}),
    ):
        changed(study / OTHER / file, lambda document, fact=fact: document.update(fact))
    run_main("report", f"s/{OTHER}", "--out", "page.html", code=0)
    assert TOKEN not in (tmp_path / "page.html").read_text()


def test_the_log_of_the_run_that_started_the_engine_is_shown(run_main, study, tmp_path):
    (study / RUN / "engine.log").write_text("shared words\n")
    for file, fact in (("manifest.json", {"engine_log": f"{RUN}/engine.log"}), ("run.json", {"status": "failed"})):
        changed(study / OTHER / file, lambda document, fact=fact: document.update(fact))
    assert run_main("report", f"s/{OTHER}", "--out", "page.html").returncode == 0
    assert "shared words" in (tmp_path / "page.html").read_text()


def test_own_studies_ask_nothing_also_after_a_kill_and_a_move(run_main, study):
    """The second run is gone with its state, as after a kill; recover rewrites the state and keeps the signature."""
    shutil.rmtree(study / OTHER)
    for words in (("recover", "s"), ("resume", "s"), ("resume", "s"), ("sync", "s"), ("sync",)):
        run_main(*words, code=0)
    assert (study / OTHER / "points.parquet").exists()
    study.rename(study.with_name("renamed"))
    shutil.rmtree(study.with_name("renamed") / RUN)
    run_main("resume", "renamed", code=0)


SPLICED = {
    "another plan": lambda study: changed(study / "plan.json", lambda plan: plan["runs"][1]["config"]["load"].update(requests=6)),
    "another server": lambda study: changed(
        study / "study.json", lambda state: state.update(tracking={"name": "mlflow", "uri": "http://elsewhere.example"})
    ),
    "another cluster": lambda study: changed(
        study / "study.json", lambda state: state.update(launcher={"name": "submitit_local"})
    ),
    "another signature": lambda study: changed(
        study / "study.json",
        lambda state: state.update(seal=json.loads((study / RUN / "manifest.json").read_text())["seal"]),
    ),
    "no signature": stranger,
}  # fmt: skip


@pytest.mark.parametrize("change", SPLICED.values(), ids=SPLICED)
def test_a_study_that_is_not_as_it_was_signed_is_not_continued(run_main, study, change):
    change(study)
    shutil.rmtree(study / RUN / "raw", ignore_errors=True)
    before = (study / "study.json").read_bytes()
    for words in (("resume", "s"), ("work", "s", RUN), ("recover", "s"), ("resume", "s")):
        done = run_main(*words)
        if words[0] != "recover":
            in_one_line(done)
            assert "--trust" in done.stderr
    assert (study / "study.json").read_bytes() == before


def test_a_study_without_its_plan_is_not_continued_by_its_manifests(run_main, study):
    (study / "plan.json").unlink()
    before = (study / "study.json").read_bytes()
    for words in (("resume", "s"), ("work", "s", RUN)):
        done = run_main(*words)
        in_one_line(done)
        assert "has no plan.json: run the study's command again" in done.stderr
    assert (study / "study.json").read_bytes() == before


def test_recovering_a_study_of_a_stranger_does_not_sign_it(run_main, study):
    stranger(study)
    changed(study / "study.json", lambda state: state.update(status="running"))
    assert run_main("recover", "s").returncode == 0
    state = json.loads((study / "study.json").read_text())
    assert state["status"] == "interrupted"
    assert "seal" not in state


def test_who_trusts_a_study_is_asked_once(run_main, study):
    stranger(study)
    unfinished(study)
    shown = run_main("resume", "s", "--trust", code=0)
    assert "cluster" not in shown.stderr
    assert str(study) in shown.stderr
    shutil.rmtree(study / OTHER)
    run_main("resume", "s", code=0)


def tracked(study, url):
    """The study of a stranger who wants it sent to a server."""
    tracking = {"name": "mlflow", "experiment": "e", "uri": url}
    changed(study / "study.json", lambda state: state.update(tracking=tracking))


@pytest.mark.slow
@pytest.mark.parametrize("words", [("sync",), ("sync", "s")])
def test_sync_sends_nothing_to_a_server_that_a_stranger_names(run_main, study, listener, words):
    tracked(study, listener.url)
    in_one_line(run_main(*words))
    assert listener.connections == 0
    shown = run_main("sync", "s", "--trust")
    assert listener.url in shown.stderr
    assert listener.connections, "it would have been sent"


@pytest.mark.slow
def test_sync_takes_no_server_from_a_manifest_beside_a_signed_state(run_main, study, listener, monkeypatch, tmp_path):
    """The state says that there is no server of its own; the manifest of a run is not covered by its signature."""
    from servebench.store.layout import StudyFolder
    from servebench.store.state import read_study, write_study

    folder = StudyFolder(study)
    from dataclasses import replace

    write_study(folder, replace(read_study(folder), tracking={"name": "mlflow", "experiment": "e", "uri": None}))
    changed(study / RUN / "manifest.json", lambda one: one["config"]["tracking"].update(uri=listener.url))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/nowhere/mlflow.db")
    run_main("sync", "s")
    assert listener.connections == 0


@pytest.mark.slow
def test_a_receipt_of_a_stranger_names_no_run_to_overwrite(run_main, study, tmp_path):
    """The ids in tracking.json are those of MLflow runs, which a sync replaces."""
    import mlflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    mine = mlflow.MlflowClient(uri)
    experiment = mine.create_experiment("servebench")
    run = mine.create_run(experiment)
    for path in (study / "tracking.json", study / RUN / "tracking.json"):
        path.write_text(json.dumps({"uri_digest": "x", "mlflow_run_id": run.info.run_id}))
    run_main("sync", "s", "--uri", uri, code=0)
    assert mine.get_run(run.info.run_id).data.metrics == {}
    again = run_main("sync", "s", "--uri", uri)
    assert "0 sent, 2 unchanged" in again.stdout


@pytest.mark.slow
def test_a_study_of_an_older_version_is_shown_and_sent_after_one_question(run_main, study, tmp_path):
    old = Path(__file__).parents[1] / "store" / "old" / "2" / "simulated"
    old = old if old.is_dir() else next(path.parent for path in sorted((old.parents[1]).glob("*/*/study.json")))
    shutil.rmtree(study)
    shutil.copytree(old, study)
    for words in READING:
        done = run_main(*words)
        assert "trust" not in done.stderr
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    changed(study / "study.json", lambda state: state.update(tracking={"name": "mlflow", "uri": uri}))
    in_one_line(run_main("sync"))
    run_main("sync", "--trust", code=0)
    run_main("sync", code=0)
    in_one_line(run_main("resume", "s"))


def test_tags_of_a_summary_do_not_name_a_run_of_mlflow(study):
    """By these MLflow would find the run of another study."""
    from servebench.store.layout import StudyFolder
    from servebench.store.state import read_study
    from servebench.store.tracking import tracked_study

    (study / "summary").mkdir(exist_ok=True)
    folder = StudyFolder(study)
    own = tracked_study(folder, read_study(folder), at_work=False).tags
    for tags in ({"servebench.key": "k", "mlflow.user": "u", "servebench.engine": "vllm"}, [1], 7, None):
        (study / "summary" / "summary.json").write_text(json.dumps({"tags": tags, "metrics": tags}))
        found = tracked_study(folder, read_study(folder), at_work=False).tags
        assert found.items() - own.items() <= {("servebench.engine", "vllm")}
