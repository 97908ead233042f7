"""Every view of the dashboard, run by Streamlit's own test harness, without a browser."""

from pathlib import Path

import pytest

from servebench.cli.main import dispatch
from servebench.report.dashboard import launch
from servebench.report.dashboard.launch import dashboard_command
from servebench.store.graded import add_quality
from servebench.store.layout import RunFolder
from servebench.util.errors import ConfigError, PreflightError
from support.records import quality_records
from support.studies import SimulatedEngine, SimulatedLoad, write_simulated_run

pytest.importorskip("streamlit")
APP = Path(launch.__file__).with_name("app.py")
VIEWS = ("Overview", "Load", "Trade-off", "Quality", "Raw table", "Compare", "Timeline", "Fairness")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Two engines, a failed run and one that is gone."""
    import json

    pytest.importorskip("streamlit")
    folder = tmp_path_factory.mktemp("outputs") / "one"
    for index, name in enumerate(("vllm", "sglang")):
        run = RunFolder(folder / f"0{index}_{name}")
        write_simulated_run(run, SimulatedEngine(name=name, slow=1 + index), SimulatedLoad(levels=(1, 4), requests=40))
        for level in (1, 8):
            add_quality(run, quality_records("mmlu", [True, False, None], concurrency=level))
    failed = folder / "02_trtllm"
    failed.mkdir()
    (failed / "run.json").write_text(json.dumps({"title": "t", "status": "failed", "error": "![x](http://evil/x.png)"}))
    return folder.parent


def app(outputs):
    import sys

    from streamlit.testing.v1 import AppTest

    sys.argv = ["app.py", str(outputs)]
    return AppTest.from_file(str(APP), default_timeout=60)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_drawn_without_an_exception(outputs, view, monkeypatch):
    monkeypatch.setattr("sys.argv", ["app.py", str(outputs)])
    page = app(outputs)
    page.session_state["view"] = view
    page.run()
    assert not page.exception
    assert page.title[0].value == "servebench"
    if view == "Quality":
        assert list(page.dataframe[0].value["at"]) == ["concurrency 1", "concurrency 8"] * 2


def test_filters_narrow_what_is_shown(outputs, monkeypatch):
    monkeypatch.setattr("sys.argv", ["app.py", str(outputs)])
    page = app(outputs).run()
    assert page.metric[0].value == "2"
    page.sidebar.multiselect(key="filter-engine").select("vllm").run()
    assert page.metric[0].value == "1"


def test_an_empty_folder_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["app.py", str(tmp_path)])
    page = app(tmp_path).run()
    assert not page.exception
    assert "no points yet" in page.info[0].value


def test_it_listens_on_this_machine_only_and_tells_nobody():
    command = dashboard_command(Path("outputs"), 8600)
    assert "--server.address=127.0.0.1" in command
    assert "--browser.gatherUsageStats=false" in command


def test_without_streamlit_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr("servebench.report.dashboard.launch.find_spec", lambda name: None)
    with pytest.raises(PreflightError, match=r"pip install 'servebench-suite\[dashboard\]'"):
        dispatch(["dashboard"])


@pytest.mark.parametrize("words", [["--port", "x"], ["--port", "70000"], ["extra"]])
def test_a_mistake_is_one_line(words):
    with pytest.raises(ConfigError):
        dispatch(["dashboard", *words])
