"""A study told as a whole: the files of its summary, and MLflow's parent run made of them."""

import json
from xml.etree import ElementTree

import pytest

from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Point
from servebench.store.layout import StudyFolder
from servebench.store.tables import write_points
from servebench.store.tracking import sync_study
from servebench.study.tracking import ESTIMATORS, FOLDER, label, sync_studies, write_summary
from support.studies import SimulatedEngine, SimulatedLoad


@pytest.fixture
def study(make_study):
    shape = SimulatedLoad(levels=(2, 8), requests=60)
    return make_study((SimulatedEngine(), shape), (SimulatedEngine(name="beta", slow=1.3), shape), name="two")


@pytest.mark.slow
def test_the_summary_has_page_table_charts_and_what_mlflow_says(study):
    folder = write_summary(study)
    names = {path.name for path in folder.iterdir()}
    assert {"report.html", "comparison.md", "points.csv", "summary.json", "output_throughput.svg", "tpot.svg"} <= names
    assert (folder / "ttft.png").read_bytes().startswith(b"\x89PNG")
    assert "beta" in (folder / "report.html").read_text()
    assert "output throughput, tok/s" in (folder / "comparison.md").read_text()
    picture = ElementTree.fromstring((folder / "ttft.svg").read_text())
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert int(picture.attrib["width"]) > 200
    told = json.loads((folder / "summary.json").read_text())
    assert told["tags"]["servebench.engine"] == "alpha,beta"
    assert told["note"].startswith("### unique")
    assert "ahead of beta" in told["note"]
    # another study will be the last one when somebody reads this
    assert "servebench report two --outputs" in told["note"]
    assert {one["name"] for one in told["metrics"]} >= {"output_throughput_tok_s/alpha", "ttft_ms_p50/beta"}


@pytest.mark.slow
def test_mlflows_parent_run_shows_the_comparison(study, tmp_path):
    """Note, tags, curves for each engine over the load, and the files; a summary that changed is sent again."""
    from mlflow import MlflowClient

    write_summary(study)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    report = sync_study(StudyFolder(study), uri=uri, experiment="e", timeout_s=30, estimators=ESTIMATORS)
    assert report.error is None
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("e").experiment_id
    (parent,) = client.search_runs([experiment], filter_string="tags.`servebench.kind` = 'study'")
    assert parent.data.tags["mlflow.note.content"].startswith("### ")
    assert parent.data.tags["servebench.step"] == "concurrency"
    curve = sorted(
        client.get_metric_history(parent.info.run_id, "output_throughput_tok_s/beta"), key=lambda one: one.step
    )
    assert [one.step for one in curve] == [2, 8]
    assert curve[0].value < curve[1].value
    files = {item.path for item in client.list_artifacts(parent.info.run_id, FOLDER)}
    assert {f"{FOLDER}/report.html", f"{FOLDER}/output_throughput.svg", f"{FOLDER}/ttft.png"} <= files
    assert f"{FOLDER}/summary.json" not in files
    told = json.loads((study / FOLDER / "summary.json").read_text())
    (study / FOLDER / "summary.json").write_text(json.dumps({**told, "note": "another"}))
    sync_study(StudyFolder(study), uri=uri, experiment="e", timeout_s=30, estimators=ESTIMATORS)
    assert client.get_run(parent.info.run_id).data.tags["mlflow.note.content"] == "another"


@pytest.mark.slow
def test_rates_between_whole_numbers_have_steps_of_their_own(study, tmp_path):
    """MLflow's steps are whole: 0.5 and 1.2 requests a second would both be 0 and 1, or one."""
    from mlflow import MlflowClient

    folder = StudyFolder(study).run("00_alpha_unique")
    rows = [{"run_id": "r", "point": f"q{rate}", "rate": rate, "output_throughput_tok_s": 9.0} for rate in (0.5, 1.2)]
    write_points(folder, [Point(row=PointRow.from_dict(row)) for row in rows])
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    sync_study(StudyFolder(study), uri=uri, experiment="e", timeout_s=30, estimators=ESTIMATORS)
    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    (run,) = [one for one in runs if one.data.tags.get("servebench.step") == "requests a second x 100"]
    assert [one.step for one in client.get_metric_history(run.info.run_id, "output_throughput_tok_s")] == [50, 120]


@pytest.mark.parametrize(("name", "expected"), [("vllm", "vllm"), ("vllm rag (00)", "vllm-rag-00"), ("a/b", "a-b")])
def test_a_name_as_part_of_a_metrics_name(name, expected):
    assert label(name) == expected


def test_a_study_without_points_is_told_too(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "study.json").write_text('{"study_id": "empty", "runs": [], "words": ["engine=x"]}')
    folder = write_summary(tmp_path / "empty")
    assert not (folder / "comparison.md").exists()
    assert "servebench engine=x" in json.loads((folder / "summary.json").read_text())["note"]


@pytest.mark.slow
def test_a_summary_that_a_kill_cut_off_is_written_again(study, tmp_path):
    """`summary.json` is its last file; without it the others may be old or missing."""
    folder = write_summary(study)
    whole = {path.name for path in folder.iterdir()}
    for name in ("summary.json", "ttft.png", "points.csv"):
        (folder / name).unlink()
    assert sync_studies([StudyFolder(study)], uri=f"sqlite:///{tmp_path}/mlflow.db", trusted=True) == 0
    assert {path.name for path in folder.iterdir()} == whole
