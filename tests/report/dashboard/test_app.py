"""Every view of the dashboard, run by Streamlit's own test harness, without a browser."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from servebench.cli.main import dispatch
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData
from servebench.report.dashboard import local
from servebench.report.dashboard.local import dashboard_command
from servebench.store.graded import add_quality
from servebench.store.layout import RunFolder
from servebench.util.errors import PreflightError
from support.records import quality_records
from support.studies import SimulatedEngine, SimulatedLoad, write_simulated_run

pytest.importorskip("streamlit")
from servebench.report.dashboard.app import VIEWS, compared, study_page
from servebench.report.dashboard.serve import run_row
from servebench.report.html.page import SECTIONS

APP = Path(local.__file__).with_name("app.py")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Two engines, a failed run and one that is gone."""
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
    return AppTest.from_file(str(APP), default_timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_drawn_without_an_exception(outputs, view, monkeypatch):
    monkeypatch.setattr("sys.argv", ["app.py", str(outputs)])
    page = app(outputs)
    page.session_state["view"] = view
    page.run()
    assert not page.exception
    assert page.title[0].value == "servebench"


@pytest.mark.slow
@pytest.mark.parametrize("section", [title for _, title, _ in SECTIONS if title])
def test_every_section_of_a_study_is_drawn(outputs, section, monkeypatch):
    monkeypatch.setattr("sys.argv", ["app.py", str(outputs)])
    page = app(outputs)
    page.query_params.update({"view": "Study", "one-study": "one", "section": section})
    page.run()
    assert not page.exception
    if section == "Quality":
        (screen,) = (one.proto.body for one in page.get("html") if "<table" in one.proto.body)
        assert "concurrency 8" in screen
    if section == "Timeline":
        assert page.get("vega_lite_chart")


def test_filters_narrow_what_is_shown(outputs, monkeypatch):
    monkeypatch.setattr("sys.argv", ["app.py", str(outputs)])
    page = app(outputs).run()
    assert page.metric[0].value == "2"
    page.sidebar.multiselect(key="engine").select("vllm").run()
    assert page.metric[0].value == "1"


def test_real_engines_are_not_called_emulated(outputs, monkeypatch):
    monkeypatch.setattr("sys.argv", ["app.py", str(outputs)])
    assert not app(outputs).run().warning


def test_a_link_shows_the_study_that_was_shared(outputs, monkeypatch):
    monkeypatch.setattr("sys.argv", ["app.py", str(outputs)])
    page = app(outputs)
    page.query_params.update({"view": "Study", "one-study": "one", "percentile": "p99"})
    page.run()
    assert not page.exception
    assert page.selectbox(key="one-study").value == "one"
    (screen,) = (one.proto.body for one in page.get("html") if "@scope" in one.proto.body)
    assert "Which of vllm and sglang is best" in screen
    assert '<table class="matrix">' in screen
    assert f"servebench resume one --outputs {outputs} --failed" in screen
    assert "![x](http://evil/x.png)" in screen
    page.query_params["section"] = "Speed by load"
    page.session_state["section"] = "Speed by load"
    page.run()
    charts = [json.loads(one.proto.spec) for one in page.get("vega_lite_chart")]
    assert {one["value"] for chart in charts for one in chart["params"] if one["name"] == "stat"} == {"p99"}


def test_a_study_without_a_point_has_its_page_too(tmp_path, monkeypatch):
    """Why its runs failed, their last log lines, and the command that tries them again, with markup escaped."""
    run = tmp_path / "outputs" / "bad" / "00_vllm"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"title": "t", "status": "failed", "error": "no GPU <img src=x>"}))
    (run / "engine.log").write_text("last words")
    monkeypatch.setattr("sys.argv", ["app.py", str(run.parent.parent)])
    page = app(run.parent.parent).run()
    assert not page.exception
    (screen,) = (one.proto.body for one in page.get("html"))
    for said in ("no GPU &lt;img src=x&gt;", "last words", "servebench resume bad --outputs", "--failed"):
        assert said in screen


def listed(rows, name="00_a"):
    """A stored run of these points."""
    return RunData(study_id="s", name=name, path=Path(), rows=lambda: rows, tables=lambda *_: pd.DataFrame())


def test_the_best_load_of_a_run_is_by_the_means_over_its_starts_and_valid_where_it_can_be():
    rows = {
        "a": [(4, 10.0, "valid"), (32, 99.0, "doubtful")],
        "b": [(4, 5.0, "doubtful"), (32, 7.0, "doubtful"), (64, 50.0, "void")],
        "c": [(4, 30.0, "valid"), (4, 10.0, "valid"), (32, 24.0, "valid"), (32, 26.0, "doubtful"), (32, 22.0, "valid")],
        "d": [(4, 3.0, "void")],
    }
    found = {
        name: run_row(
            listed([PointRow(concurrency=at, output_throughput_tok_s=rate, verdict=word) for at, rate, word in own]),
            name,
        )
        for name, own in rows.items()
    }
    expected = {"a": 10.0, "b": 7.0, "c": (24 * 26 * 22) ** (1 / 3), "d": 3.0}
    assert {name: one["output_throughput_tok_s"] for name, one in found.items()} == pytest.approx(expected)
    assert {name: one["level"] for name, one in found.items()} == {"a": "4", "b": "32", "c": "32", "d": "4"}
    verdicts = {"a": "valid", "b": "doubtful", "c": "doubtful", "d": "void"}
    assert {name: one["verdict"] for name, one in found.items()} == verdicts
    assert run_row(listed([]), "none")["level"] is None


def test_a_p99_of_few_requests_is_left_out_and_texts_are_clean():
    rows = [
        PointRow(concurrency=4, output_throughput_tok_s=1.0, verdict="valid", ttft_ms_p99=5.0, ttft_ms_n=count)
        for count in (735, 736)
    ]
    few, enough = (run_row(listed([replace(row, engine="x\x1b[31m")]), "a\x1b[0m") for row in rows)
    assert (few["ttft_ms_p99"], enough["ttft_ms_p99"]) == (None, 5.0)
    assert not any("\x1b" in value for value in few.values() if isinstance(value, str))


def test_a_study_that_ended_when_it_had_decided_has_its_own_verdicts(make_study):
    """All screens have its last look, and its margin."""
    config = {"study.until": "decided", "study.margin": "2%"}
    steady = {"spread": 0.05, "drift_sd": 0.003, "run_sd": 0.003}
    load = SimulatedLoad(levels=(4,), requests=40, starts=4, config=config)
    runs = [SimulatedEngine(name=name, slow=slow, **steady) for name, slow in (("a", 1.0), ("b", 1.1))]
    path = make_study((runs[0], load), (runs[1], replace(load, seed=1)))
    (found,) = compared(str(path.parent), ("study/00_a_unique", "study/01_b_unique"), 0, False)
    assert found.result == "slower"
    rows = {row.metric.title: row for row in found.rows}
    assert rows["output throughput"].result == "slower"
    assert rows["TPOT p50"].looked == rows["output throughput"].looked > 0
    data = study_page(str(path.parent), "study", 0)
    (found,) = data.conclusions.comparisons
    assert (found.result, found.margin, data.with_earlier) == ("slower", 0.02, True)


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
    monkeypatch.setattr("servebench.report.dashboard.local.find_spec", lambda name: None)
    with pytest.raises(PreflightError, match=r"pip install 'servebench-suite\[dashboard\]'"):
        dispatch(["dashboard"])
