"""What an order carries to another machine."""

import io
import tarfile
from dataclasses import replace

import pytest

from servebench.cluster import orders
from servebench.cluster.heartbeat import FILE
from servebench.cluster.orders import gpus_needed, keep_prompt_files, named_variables, pack_run, study_files, unpack_run
from servebench.config import Job
from servebench.contracts.settings import EngineSettings, GpuSettings
from servebench.registry.registry import registry
from servebench.store.layout import StudyFolder
from servebench.util.errors import StoreError
from support.settings import run_settings


@pytest.mark.parametrize(
    ("launch", "gpu", "count", "needed"),
    [
        ("process", "h100", 2, 2),
        ("docker", "h100", 1, 1),
        ("process", "none", 0, 0),
        ("attach", "h100", 4, 0),
        ("emulated", "h100", 4, 0),
    ],
)
def test_only_an_engine_on_its_machine_needs_gpus(launch, gpu, count, needed):
    settings = run_settings(gpu=GpuSettings(name=gpu, count=count))
    assert gpus_needed(settings, registry().launcher(launch)) == needed


def test_secret_variables_travel_with_the_order():
    engine = EngineSettings(name="vllm", env={"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz", "LEVEL": "3"})
    job = Job((), run_settings(engine=engine), {})
    assert named_variables(job, {}) == {"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz"}


def test_the_key_of_an_endpoint_travels_with_the_order():
    kind = registry().launcher("attach").settings_type
    attach = kind(name="attach", base_url="http://h/v1", api_key_env="KEY", headers_env={"x": "X"})
    job = Job((), replace(run_settings(), launch=attach), {})
    assert named_variables(job, {"KEY": "k", "X": "x", "OTHER": "o"}) == {"KEY": "k", "X": "x"}
    assert named_variables(job, {}) == {}


def test_a_runs_files_reach_the_machine_and_return(tmp_path):
    folder = StudyFolder(tmp_path / "s")
    folder.path.mkdir()
    run = folder.create_run("00_a").path
    (folder.path / "plan.json").write_text("plan")
    (folder.path / "study.json").write_text("state")
    (run / "raw").mkdir(exist_ok=True)
    (run / "raw" / "c1-r0.spool").write_bytes(b"\0\1")
    (run / FILE).write_text("{}")
    folder.create_run("01_b")
    assert {"plan.json", "study.json", "00_a/raw/c1-r0.spool"} <= set(study_files(folder, "00_a"))
    prompts = folder.prompts / "unique-1" / "c1-r0.json.gz"
    keep_prompt_files(folder, {"prompts/unique-1/c1-r0.json.gz": b"first", "../outside": b"x"})
    keep_prompt_files(folder, {"prompts/unique-1/c1-r0.json.gz": b"second"})
    assert prompts.read_bytes() == b"first", "all runs send what was sized first"
    assert study_files(folder, "01_b")["prompts/unique-1/c1-r0.json.gz"] == b"first"
    assert not (tmp_path / "outside").exists()
    copy = tmp_path / "copy"
    unpack_run(pack_run(run), copy)
    assert (copy / "raw" / "c1-r0.spool").read_bytes() == b"\0\1"
    assert not (copy / FILE).exists()
    with pytest.raises(StoreError):
        unpack_run(b"no archive", copy)


def archive_of(*members):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, kind, size in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, size, "/etc/passwd"
            archive.addfile(member, io.BytesIO(b"new" * size))
    return data.getvalue()


ARCHIVES = {
    "out of the folder": archive_of(("points.csv", tarfile.REGTYPE, 3), ("../../outside", tarfile.REGTYPE, 3)),
    "a full path": archive_of(
        ("points.csv", tarfile.REGTYPE, 3), ("/tmp/../outside/x", tarfile.DIRTYPE, 0), ("../x", tarfile.REGTYPE, 1)
    ),
    "a link": archive_of(("points.csv", tarfile.REGTYPE, 3), ("engine.log", tarfile.SYMTYPE, 0)),
    "a hard link": archive_of(("points.csv", tarfile.REGTYPE, 3), ("engine.log", tarfile.LNKTYPE, 0)),
    "a pipe": archive_of(("points.csv", tarfile.REGTYPE, 3), ("engine.log", tarfile.FIFOTYPE, 0)),
    "cut off": archive_of(("points.csv", tarfile.REGTYPE, 3), ("x", tarfile.REGTYPE, 100_000))[:-40],
    "garbage behind a good start": archive_of(("points.csv", tarfile.REGTYPE, 3), ("x", tarfile.REGTYPE, 100_000))[:60]
    + b"x" * 500,
    "no archive": b"no archive",
    "nothing": b"",
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_hostile_archive_changes_nothing(tmp_path, name):
    """All files of a run are replaced or none, and nothing outside its folder."""
    run = tmp_path / "s" / "00_a"
    run.mkdir(parents=True)
    (run / "points.csv").write_text("old")
    with pytest.raises(StoreError):
        unpack_run(ARCHIVES[name], run)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()] == [
        (run / "points.csv").relative_to(tmp_path)
    ]
    assert (run / "points.csv").read_text() == "old"


def test_an_archive_that_is_too_much(tmp_path, monkeypatch):
    run = tmp_path / "00_a"
    run.mkdir()
    monkeypatch.setattr(orders, "RECEIVED_BYTES_MAX", 1000)
    with pytest.raises(StoreError, match="limits"):
        unpack_run(archive_of(("bomb", tarfile.REGTYPE, 1001)), run)
    monkeypatch.setattr(orders, "RECEIVED_FILES_MAX", 3)
    with pytest.raises(StoreError, match="limits"):
        unpack_run(archive_of(*((f"f{n}", tarfile.REGTYPE, 1) for n in range(4))), run)
    assert list(tmp_path.rglob("*")) == [run]
