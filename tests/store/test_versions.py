"""Files of older versions are read, files of newer ones refused in one line."""

import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from servebench.store import studies as read
from servebench.store.files import check_table, of_this_version
from servebench.store.layout import StudyFolder
from servebench.store.manifest import read_manifest
from servebench.store.overview import listed_rows
from servebench.store.plan import read_plan
from servebench.store.state import read_run, read_study
from servebench.store.tables import read_frame, read_readings, read_records
from servebench.util.errors import StoreError

OLD = Path(__file__).parent / "old"
STUDIES = sorted(path.parent for path in OLD.glob("*/*/study.json"))
NEWER = "was written by a newer servebench (schema version 99, this one reads up to"


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (99, "x.json was written by a newer servebench (schema version 99"),
        (1, "x.json has schema version 1, which this servebench does not read"),
        ("2", "x.json has schema version 2, which"),
        (None, "x.json has schema version None"),
        (True, "x.json has schema version True"),
    ],
)
def test_what_this_version_does_not_know_is_refused(version, says):
    with pytest.raises(StoreError, match=re.escape(says)) as caught:
        of_this_version({"schema_version": version}, Path("x.json"))
    assert "\n" not in str(caught.value)


def test_a_table_says_its_version_too():
    check_table({b"schema_version": b"2"}, Path("t"))
    with pytest.raises(StoreError, match=re.escape(NEWER)):
        check_table({b"schema_version": b"99"}, Path("t"))


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.parent.name)
def test_every_kept_file_is_read(study):
    folder = StudyFolder(study)
    state = read_study(folder)
    assert [run.name for run in read_plan(folder)] == list(state.runs)
    assert all(run.config["load"]["concurrency"] == [1, 2] for run in read_plan(folder))
    whole, cut = (folder.run(name) for name in state.runs)
    assert (read_run(whole).status, read_run(cut).status) == ("finished", "running")
    assert read_manifest(whole.manifest)["config"]["workload"]["name"] == "unique"
    assert list(read_frame(whole.points)["point"]) == ["c1-r0", "c2-r0"]
    # a warm-up request and six of each level
    assert len(read_records(whole)) == 14
    assert len(read_records(cut)) == 8
    assert read_readings(whole)
    loaded = read.load_study(study)
    assert (loaded.faults, [run.faults for run in loaded.runs]) == ((), [(), ()])
    (listed,) = read.load_outputs(study.parent, listed_rows)
    assert [len(run.point_rows) for run in listed.runs] == [2, 1]


def newer(study, name):
    """Make a file of a study one of a version to come."""
    path = study / name
    if path.suffix == ".json":
        path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    else:
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({"schema_version": "99"}), path)


@pytest.mark.parametrize(
    ("file", "reads"),
    [
        ("study.json", lambda folder, run: read_study(folder)),
        ("plan.json", lambda folder, run: read_plan(folder)),
        ("00_vllm_unique/manifest.json", lambda folder, run: read_manifest(run.manifest)),
        ("00_vllm_unique/run.json", lambda folder, run: read_run(run)),
        ("00_vllm_unique/points.parquet", lambda folder, run: read_frame(run.points)),
        ("00_vllm_unique/requests.parquet", lambda folder, run: read_records(run)),
        ("00_vllm_unique/telemetry.parquet", lambda folder, run: read_readings(run)),
        ("00_vllm_unique/answers.parquet", lambda folder, run: read_frame(run.answers)),
    ],
)
def test_a_newer_file_is_refused_in_one_line_and_hides_no_other(tmp_path, file, reads):
    study = tmp_path / "now"
    shutil.copytree(OLD / "2" / "now", study)
    newer(study, file)
    folder = StudyFolder(study)
    with pytest.raises(StoreError, match=re.escape(f"{study / file} {NEWER}")) as caught:
        reads(folder, folder.run("00_vllm_unique"))
    assert "\n" not in str(caught.value)
    assert read.load_study(study).runs[1].faults == ()


@pytest.mark.parametrize("version", ["99", "two", "-1", "0", "2.0", "9" * 5000], ids=lambda word: word[:4])
def test_points_csv_of_another_version_is_not_relied_on(tmp_path, version):
    study = tmp_path / "now"
    shutil.copytree(OLD / "2" / "now", study)
    path = study / "00_vllm_unique" / "points.csv"
    head, *rows = path.read_text().splitlines()
    assert head.endswith(",schema_version")
    path.write_text("\n".join([head, *(f"{row.rpartition(',')[0]},{version}" for row in rows)]) + "\n")
    (listed,) = read.load_outputs(tmp_path, listed_rows)
    assert [run.name for run in listed.runs if run.point_rows] == ["00_vllm_unique", "01_sglang_unique"]


@pytest.mark.parametrize("version", ["two", "²", "-1", "0", "", "9" * 5000], ids=lambda word: word[:4])
def test_a_table_of_a_version_that_is_no_number_is_told(version):
    with pytest.raises(StoreError, match="which this servebench does not read"):
        check_table({b"schema_version": version.encode()}, Path("points.parquet"))
