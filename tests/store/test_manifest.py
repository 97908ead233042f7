"""The manifest says what was run, on what, and how to run it again."""

import json
import subprocess

import pytest

from servebench.store.manifest import (
    build_manifest,
    capture_git,
    capture_machine,
    capture_packages,
    read_manifest,
    write_manifest,
)
from servebench.util import children
from servebench.util.errors import StoreError
from support.waiting import wait_ended

CONFIG = {"engine": {"name": "x", "env": {"API_TOKEN": "hush-1"}}, "model": {"name": "m", "path": None}}
FACTS = {
    "run_id": "s/00", "command": {"argv": ["x", "--api-key", "hush-2"], "env": {"SOME_KEY": "hush-3"}},
    "engine_version": "1.2", "error": "https://u:hush-4@h failed",
}  # fmt: skip


def manifest(**changes):
    return build_manifest(config={**CONFIG, **changes}, facts=FACTS, machine={"gpus": []})


def test_a_manifest_is_complete_and_has_no_secret(tmp_path):
    """Config, command, versions, machine, git and hashes; and what was hidden is marked."""
    found = manifest()
    names = "schema_version run_id command engine_version config hashes machine packages git"
    assert set(names.split()) <= set(found)
    assert found["command"]["argv"] == ["x", "--api-key", "[redacted]"]
    assert "hush" not in json.dumps(found)
    assert "servebench-suite" in found["packages"]
    assert {"mlflow", "pyarrow", "hydra-core"} <= set(found["packages"])
    write_manifest(tmp_path / "manifest.json", found)
    assert read_manifest(tmp_path / "manifest.json") == found


def test_the_hash_is_that_of_the_stored_config():
    """Equal configs have equal hashes, also when only a secret differs, so that anybody can check it."""
    one = manifest()["hashes"]["config"]
    assert one == manifest(engine={"env": {"API_TOKEN": "other"}, "name": "x"})["hashes"]["config"]
    assert one != manifest(engine={"name": "y"})["hashes"]["config"]


def test_a_model_file_is_told_by_size(tmp_path):
    """Null when it is not here."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"12345")
    assert manifest(model={"path": str(path)})["hashes"]["model_file"]["size_bytes"] == 5
    assert manifest(model={"path": str(path) + "x"})["hashes"]["model_file"] is None
    assert manifest(model={"path": "~nobody-at-all/m"})["hashes"]["model_file"] is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is no JSON"),
        (b"{", "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"[]", "it is not a JSON object"),
        (b"{}", "is not the manifest of a run: it has no config"),
        (b'{"config": 1}', "is not the manifest of a run"),
        (b'{"config": {}, "schema_version": 1}', "has schema version 1, which this servebench does not read"),
        (b'{"config": {}, "schema_version": 99}', "schema version 99, this one reads up to 2"),
    ],
)
def test_what_is_no_manifest(tmp_path, data, why):
    """One line with the path and the reason."""
    path = tmp_path / "manifest.json"
    path.write_bytes(data)
    with pytest.raises(StoreError) as caught:
        read_manifest(path)
    assert str(path) in str(caught.value)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_manifest_that_is_not_there(tmp_path):
    """Nor is a folder one."""
    with pytest.raises(StoreError, match=r"nowhere cannot be read: no such file or directory$"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"cannot be read: is a directory$"):
        read_manifest(tmp_path)


def program(folder, name, script):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n" + script)
    (folder / name).chmod(0o755)


def with_smi(tmp_path, monkeypatch, script):
    program(tmp_path / "bin", "nvidia-smi", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")


def test_gpus_are_told(tmp_path, monkeypatch):
    """Name, driver, CUDA; what the driver does not tell is null."""
    with_smi(
        tmp_path, monkeypatch,
        'case "$1" in --query*) echo "0, NVIDIA H200, GPU-1, 143771, 570.1, 700.00, 1980, [N/A]";; '
        '*) echo "| NVIDIA-SMI 570.1   CUDA Version: 12.8     |";; esac',
    )  # fmt: skip
    machine = capture_machine()
    assert machine["cuda"] == "12.8"
    (gpu,) = machine["gpus"]
    assert (gpu["name"], gpu["memory_total"], gpu["driver_version"], gpu["clocks_max_mem"]) == (
        "NVIDIA H200",
        "143771",
        "570.1",
        None,
    )
    assert machine["memory_bytes"] > 0
    assert machine["cpu_threads"] >= 1


@pytest.mark.parametrize(
    "script", ["exit 9", "echo No devices were found; exit 0", r"printf '\377\376,\n'", "kill -9 $$", "", "echo '\"'"]
)
def test_a_driver_that_fails_is_no_gpu(tmp_path, monkeypatch, script):
    """Nothing is raised, whatever it prints."""
    with_smi(tmp_path, monkeypatch, script)
    machine = capture_machine()
    assert (machine["gpus"], machine["cuda"]) == ([], None)


@pytest.mark.slow
def test_a_driver_that_hangs_costs_seconds(tmp_path, monkeypatch):
    """The manifest of a run does not wait for it."""
    # longer than the limit of the test
    with_smi(tmp_path, monkeypatch, "sleep 9999 & wait")
    assert capture_machine()["gpus"] == []


@pytest.mark.parametrize("script", ["sleep 9999", "trap '' TERM INT; while true; do sleep 9999; done"])
def test_what_a_hanging_driver_started_is_gone_with_it(tmp_path, monkeypatch, script):
    """Killed as a group: a child would hold our pipes, and the GPU."""
    monkeypatch.setattr(children, "PROBE_TIMEOUT_S", 0.5)
    started = tmp_path / "started"
    with_smi(tmp_path, monkeypatch, f"sleep 9999 &\necho $! >> {started}\n{script}")
    while not started.exists():  # a slow machine may not get as far as to start it
        assert capture_machine()["gpus"] == []
    wait_ended(*map(int, started.read_text().split()))


def test_no_program_at_all(monkeypatch):
    """A machine without nvidia-smi and without git."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert capture_machine()["gpus"] == []
    assert manifest()["git"] is None


def test_git_is_told(tmp_path, monkeypatch):
    """The commit and whether there were changes; null outside a checkout."""
    assert capture_git(tmp_path) is None
    for name, value in (
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@b"),
        ("GIT_COMMITTER_NAME", "a"),
        ("GIT_COMMITTER_EMAIL", "a@b"),
    ):
        monkeypatch.setenv(name, value)
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    clean = capture_git(tmp_path)
    assert clean is not None
    assert (len(clean["commit"]), clean["dirty"]) == (40, False)
    (tmp_path / "new").write_text("")
    assert capture_git(tmp_path) == {"commit": clean["commit"], "dirty": True}


def test_packages_name_no_stranger():
    """Only what servebench stands on, not all that is installed."""
    assert "pytest" not in capture_packages()
