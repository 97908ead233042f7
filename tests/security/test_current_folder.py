"""Nothing in the folder in which a command is given runs: neither its Python files, nor programs that its settings name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from servebench.engine.adapters.flags import command_output
from servebench.store.manifest import capture_git
from servebench.util import children, wheel_file
from support.commands import run_servebench

MODULES = (
    *("streamlit", "pip", "lm_eval", "servebench", "sitecustomize", "usercustomize", "orjson", "hydra", "pickle"),
    "ray",
)


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A folder with programs and modules that leave a trace when they run; the test stands in it."""
    folder, ran = tmp_path / "hostile", tmp_path / "ran"
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name}.py ')\n")
    for name in ("git", "nvidia-smi", "bwrap", "docker", "squeue", "vllm", "python", "uname"):
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {ran}\n")
        (folder / name).chmod(0o755)
    monkeypatch.chdir(folder)
    return folder, ran


def _git(folder, *words):
    name = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", str(folder), *name, *words], check=True, capture_output=True)


def _checkout(folder):
    folder.mkdir(exist_ok=True)
    _git(folder, "init", "-q")
    (folder / "a.txt").write_text("a\n")
    _git(folder, "add", "a.txt")
    _git(folder, "commit", "-q", "-m", "a")
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        {"core.fsmonitor": "{trap}"},
        {"core.fsmonitor": "{trap}", "core.fsmonitorHookVersion": "1"},
        {"filter.x.clean": "{trap}", "filter.x.required": "true"},
        {"filter.x.process": "{trap}"},
        {"diff.external": "{trap}", "diff.x.textconv": "{trap}", "diff.x.command": "{trap}"},
        {"core.hooksPath": "{folder}/hooks", "core.sshCommand": "{trap}", "core.pager": "{trap}", "pager.status": "true"},
        {"alias.status": "!{trap}", "alias.rev-parse": "!{trap}", "status.submoduleSummary": "true"},
        {
            "core.repositoryFormatVersion": "1", "extensions.partialClone": "origin", "remote.origin.promisor": "true",
            "remote.origin.url": "ext::{trap}", "protocol.ext.allow": "always",
        },
    ],
)  # fmt: skip
@pytest.mark.parametrize("include", [False, True])
def test_git_runs_no_program_that_a_checkout_names(tmp_path, settings, include):
    folder, ran, trap = _checkout(tmp_path / "checkout"), tmp_path / "ran", tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\necho ran >> {ran}\ncat\n")
    trap.chmod(0o755)
    hooks = folder / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        (hooks / name).write_text(trap.read_text())
        (hooks / name).chmod(0o755)
    (folder / ".gitattributes").write_text("* filter=x diff=x\n")
    (folder / ".git" / "info" / "attributes").write_text("* filter=x diff=x\n")
    file = folder / ".git" / ("more" if include else "config")
    for name, value in settings.items():
        subprocess.run(["git", "config", "--file", file, name, value.format(trap=trap, folder=folder)], check=True)
    if include:
        subprocess.run(["git", "-C", folder, "config", "include.path", "more"], check=True)
    if "remote.origin.promisor" in settings:
        blob = subprocess.run(["git", "hash-object", "a.txt"], cwd=folder, check=True, capture_output=True, text=True)
        (folder / ".git" / "objects" / blob.stdout[:2] / blob.stdout[2:].strip()).unlink()
    # of the same size and another time: git has to look into it
    (folder / "a.txt").write_text("b\n")
    os.utime(folder / "a.txt", (1, 1))
    found = capture_git(folder)
    assert found is not None
    assert len(found["commit"]) == 40
    assert found["dirty"] is True
    assert not ran.exists()


def test_the_monitor_of_a_submodule_does_not_run(tmp_path):
    inner, folder, ran, trap = (
        _checkout(tmp_path / "inner"),
        _checkout(tmp_path / "outer"),
        tmp_path / "ran",
        tmp_path / "trap",
    )
    trap.write_text(f"#!/bin/sh\necho ran >> {ran}\n")
    trap.chmod(0o755)
    _git(folder, "submodule", "add", "-q", str(inner), "part")
    _git(folder, "commit", "-q", "-m", "b")
    subprocess.run(["git", "-C", folder / "part", "config", "core.fsmonitor", trap], check=True)
    (folder / "part" / "a.txt").write_text("b\n")
    assert capture_git(folder)["dirty"] is False
    assert not ran.exists()


def test_changes_are_seen_as_git_sees_them(tmp_path):
    folder = _checkout(tmp_path / "checkout")
    assert capture_git(folder)["dirty"] is False
    (folder / "below").mkdir()
    (folder / ".git" / "info" / "exclude").write_text("ignored\n")
    (folder / "ignored").touch()
    assert capture_git(folder / "below") == capture_git(folder)
    assert capture_git(folder)["dirty"] is False
    _git(folder, "worktree", "add", "-q", str(tmp_path / "tree"))
    assert capture_git(tmp_path / "tree") == capture_git(folder)
    (tmp_path / "tree" / "new").touch()
    assert (capture_git(tmp_path / "tree")["dirty"], capture_git(folder)["dirty"]) == (True, False)
    assert capture_git(tmp_path) is None


def test_variables_of_git_do_not_change_what_it_reads(tmp_path, monkeypatch):
    folder, ran, trap = _checkout(tmp_path / "checkout"), tmp_path / "ran", tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\necho ran >> {ran}\n")
    trap.chmod(0o755)
    before = capture_git(folder)
    for name, value in {
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": str(trap),
        "GIT_EXTERNAL_DIFF": str(trap), "GIT_DIR": str(tmp_path), "GIT_EXEC_PATH": str(tmp_path),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert capture_git(folder) == before
    assert not ran.exists()


@pytest.mark.parametrize("first", [".", "", "./", "../hostile"])
def test_no_program_of_the_current_folder_runs(hostile, monkeypatch, first):
    folder, ran = hostile
    installed = {name: shutil.which(name) for name in ("vllm", "squeue")}
    monkeypatch.setenv("PATH", f"{first}:{os.environ['PATH']}")
    capture_git(folder)
    command_output(["vllm", "--version"])
    command_output(["nvidia-smi"])
    assert {name: children.find_program(name) for name in installed} == installed
    assert not ran.exists()


def test_no_module_of_the_current_folder_is_imported_by_a_child(hostile, monkeypatch, tmp_path):
    folder, ran = hostile
    monkeypatch.setenv("PYTHONPATH", "")
    source = wheel_file.PackagedFile(package="x", version="0", member="y", sha256="0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(wheel_file.NotFetched):
        wheel_file.fetch(source, tmp_path / "cache" / "file")
    assert command_output([sys.executable, "-c", "import pickle; print(pickle.__name__)"]) == "pickle"
    command = [sys.executable, "-c", "import sys; print(sys.path)"]
    shown = subprocess.run(
        command, env=children.python_environment(), capture_output=True, text=True, check=True
    ).stdout
    assert str(folder) not in shown
    assert not ran.exists()


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_LIBRARY_PATH", "PATH"])
@pytest.mark.parametrize(
    "value", [":/usr/bin", "/usr/bin:", ".:/usr/bin", "/usr/bin::.", "./here:/usr/bin", "here:/usr/bin"]
)
def test_lists_of_folders_lose_entries_of_the_current_folder(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert children.child_environment()[name] == "/usr/bin"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["--help"], ["plugins"], ["engine=vllm", "launch=emulated", "--dry-run"], ["ls"]],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("flags", [(), ("-P",)])
def test_the_command_itself_imports_nothing_from_the_current_folder(hostile, words, flags):
    folder, ran = hostile
    (folder / "servebench.py").unlink()  # `python -m servebench` itself looks here first, before servebench runs
    path = os.pathsep.join(entry for entry in sys.path if entry and Path(entry) != folder)
    env = {**os.environ, "PYTHONPATH": path, "PATH": f".:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, *flags, "-m", "servebench", *words], env=env, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert not ran.exists(), ran.read_text()


@pytest.mark.slow
def test_a_whole_run_executes_nothing_of_the_current_folder(hostile):
    folder, ran = hostile
    (folder / "servebench.py").unlink()
    _checkout(folder)
    subprocess.run(["git", "-C", folder, "config", "core.fsmonitor", f"{folder}/git"], check=True)
    words = [
        *("engine=vllm", "launch=emulated", "load.concurrency=[1]", "load.requests=4", "gpu=rtx5090"),
        *("tracking=none", "model=qwen2.5-7b-instruct"),
    ]
    done = run_servebench(folder, *words, env={"PATH": f".:{os.environ['PATH']}"})
    assert done.returncode in (0, 3), done.stderr
    assert not ran.exists(), ran.read_text()
