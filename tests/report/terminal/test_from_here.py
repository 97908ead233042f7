"""Commands that are printed work as they are printed."""

import sysconfig
from pathlib import Path

import pytest

from servebench.report.terminal.console import commands_from_here


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The script of this installation, in a folder that is not on PATH."""
    script = tmp_path / "home" / ".venv" / "bin" / "servebench"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(script.parent))
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    monkeypatch.chdir(script.parents[2])
    return script


@pytest.mark.parametrize(
    "text",
    [
        "servebench ls",
        "no such study; 'servebench ls' lists",
        "to continue:\nservebench resume x",
        "x: servebench engine=a",
    ],
)
def test_a_command_has_the_path_of_this_installation(own, text):
    assert commands_from_here(text) == text.replace("servebench", ".venv/bin/servebench")


@pytest.mark.parametrize(
    "text", ["servebench: error", "a: servebench was killed", "outputs of servebench ls", "mlflow ui x"]
)
def test_other_text_stays(own, text):
    assert commands_from_here(text) == text


def test_the_name_suffices_where_path_has_this_script(own, monkeypatch, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "servebench").symlink_to(own)
    assert commands_from_here("servebench ls") == "servebench ls"


def test_another_program_of_that_name_is_not_meant(own, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "servebench").write_text("#!/bin/sh\n")
    (tmp_path / "other" / "servebench").chmod(0o755)
    assert commands_from_here("servebench ls") == ".venv/bin/servebench ls"


def test_the_shortest_path_is_taken(own, monkeypatch):
    monkeypatch.chdir(own.parent)
    assert commands_from_here("servebench ls") == "./servebench ls"
    monkeypatch.chdir(Path("/"))
    assert commands_from_here("servebench ls") in (f"{own} ls", f"{str(own)[1:]} ls")


def test_from_elsewhere_the_home_folder_is_short(own, monkeypatch, tmp_path):
    """A tilde is not quoted, which would keep the shell from expanding it."""
    elsewhere = tmp_path / "data" / "of" / "mine"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(own.parents[2]))
    assert commands_from_here("servebench ls") == "~/.venv/bin/servebench ls"
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    assert "~" not in commands_from_here("servebench ls")


def test_paths_beside_a_command_are_from_here(own, monkeypatch):
    here = own.parents[2]
    monkeypatch.setenv("PATH", str(own.parent))
    text = f"servebench report s --outputs {here}/mine '{here}/my own' {here} {here}s/x /a{here}/b --uri=sqlite:///{here}/m.db"
    assert commands_from_here(text) == text.replace(f" {here}/", " ").replace(f"'{here}/", "'")
    assert commands_from_here(f"{here}/x cannot be written") == f"{here}/x cannot be written"
