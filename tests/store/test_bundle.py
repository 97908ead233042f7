"""What an archive for an issue holds, and what it does not."""

import tarfile

import pytest

from support.studies import SimulatedEngine, SimulatedLoad

KEY = "hunter2-hunter2-hunter2"


@pytest.fixture
def study(make_study, monkeypatch, tmp_path):
    """A study of two runs whose log has a secret of the environment and a path of the home folder."""
    monkeypatch.setenv("MY_API_KEY", KEY)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    load = SimulatedLoad(levels=(2,), requests=20)
    folder = make_study((SimulatedEngine(name="a"), load), (SimulatedEngine(name="b"), load))
    for run in folder.glob("0*"):
        (run / "engine.log").write_text(f"loads {tmp_path}/home/model with {KEY}\n")
    return folder


def content(path):
    with tarfile.open(path) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}


def test_it_has_configs_points_and_logs_and_no_requests(study, run_main, tmp_path):
    run_main("bundle", "study", code=0)
    files = content(tmp_path / "study.tar.gz")
    names = {name.partition("/")[2].rpartition("/")[2] for name in files}
    assert {"study.json", "manifest.json", "points.csv", "engine.log"} <= names
    assert not [name for name in files if name.endswith(".parquet")]
    assert sum(name.endswith("engine.log") for name in files) == 2


def test_secrets_and_the_home_folder_are_redacted(study, run_main, tmp_path):
    run_main("bundle", "study", "--requests", "--out", "b.tar.gz", code=0)
    files = content(tmp_path / "b.tar.gz")
    (log, *_) = [data for name, data in files.items() if name.endswith("engine.log")]
    assert log == b"loads ~/model with [redacted]\n"
    assert not [name for name, data in files.items() if KEY.encode() in data]


def test_requests_are_added_on_request_only(study, run_main, tmp_path):
    run_main("bundle", "study", "--requests", code=0)
    assert [name for name in content(tmp_path / "study.tar.gz") if name.endswith("requests.parquet")]


def test_a_run_alone_leaves_the_others_out(study, run_main, tmp_path):
    run = min(path.name for path in study.glob("0*"))
    run_main("bundle", f"study/{run}", code=0)
    names = set(content(tmp_path / "study.tar.gz"))
    assert {name.split("/")[1] for name in names if name.count("/") > 1} == {run}


def test_a_log_that_may_hold_secrets_is_left_out(study, run_main, tmp_path):
    for run in study.glob("0*"):
        (run / ".engine.log.unclean").touch()
    run_main("bundle", "study", code=0)
    assert not [name for name in content(tmp_path / "study.tar.gz") if name.endswith(".log")]


def test_a_file_is_not_overwritten(study, run_main, tmp_path):
    (tmp_path / "study.tar.gz").write_text("mine")
    run_main("bundle", "study", code=6)
    assert (tmp_path / "study.tar.gz").read_text() == "mine"
