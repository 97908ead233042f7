"""Where everything is, and what is told when it cannot be there."""

import re
from pathlib import Path

import pytest

from servebench.store.layout import (
    RunFolder,
    StudyFolder,
    check_writable,
    create_study,
    is_name,
    outputs_folder,
    slug,
)
from servebench.util.errors import ConfigError, PreflightError, StoreError
from servebench.util.short_id import short_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llamacpp_Qwen2.5-7B", "llamacpp-qwen2.5-7b"),
        ("../../etc/passwd", "etc-passwd"),
        ("...", "study"),
        ("", "study"),
        ("日本", "study"),
        ("a b/c\nd", "a-b-c-d"),
        ("x" * 200, "x" * 40),
        ("x" * 39 + "--y", "x" * 39),
    ],
)
def test_slugs(text, expected):
    """Safe as a part of a folder's name on every system, and never empty."""
    assert slug(text) == expected


def test_a_study_is_named_by_a_short_id_and_content(tmp_path):
    """Two in one second get two ids, and ids sort by time."""
    folders = [create_study(tmp_path / "new" / "outputs", None, what) for what in ("vLLM_x/y", "a", "b")]
    ids = [short_id(folder.name) for folder in folders]
    assert ids == sorted(set(ids))
    assert re.fullmatch(r"\d{4}-[0-9a-z]{3}_vllm-x-y", folders[0].name)
    assert all(folder.path.is_dir() for folder in folders)


def test_a_study_with_a_name_of_its_own(tmp_path):
    """New, or there and empty; never one that holds something."""
    assert create_study(tmp_path, "a=b ü", "x").path == tmp_path / "a=b ü"
    assert create_study(tmp_path, "a=b ü", "x").name == "a=b ü"
    (tmp_path / "a=b ü" / "study.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"study.name=a=b ü: .* is there already and not empty; choose another name"):
        create_study(tmp_path, "a=b ü", "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file; choose another name"):
        create_study(tmp_path, "file", "x")


def test_a_study_is_not_made_behind_a_link(tmp_path):
    """Its runs would be measured and then refused by everything that reads studies."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "s").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="symbolic link"):
        create_study(tmp_path, "s", "x")


def test_what_a_killed_start_left_is_in_nobodys_way(tmp_path):
    """Before study.json is there nothing was begun; what else somebody keeps there is left alone."""
    folder = create_study(tmp_path, "s", "x")
    folder.plan.write_text("{}")
    (folder.path / ".study.json.7.tmp").write_text("")
    assert create_study(tmp_path, "s", "x").path == folder.path
    (folder.path / "mine.txt").write_text("")
    with pytest.raises(ConfigError, match="is there already and not empty"):
        create_study(tmp_path, "s", "x")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/abs", ".hidden", "a\nb", "x\0y", "é" * 150])
def test_names_that_no_folder_of_outputs_can_have(tmp_path, name):
    """A study stays inside the outputs folder, and its name on one line."""
    with pytest.raises(ConfigError, match=r"^study\.name=") as caught:
        create_study(tmp_path, name, "x")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_outputs_folder(tmp_path, monkeypatch):
    """Relative to where the command is given; `~` is the home folder; the home of nobody is a mistake."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert outputs_folder("outputs") == tmp_path / "outputs"
    assert str(outputs_folder("~/x")) == "/home/me/x"
    with pytest.raises(ConfigError, match=r"study\.dir=~nobody-at-all/x"):
        outputs_folder("~nobody-at-all/x")


def test_an_outputs_folder_that_can_be_used(tmp_path):
    """It is made, and nothing is left in it."""
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_an_outputs_folder_whose_place_is_taken(tmp_path):
    """A file there, or on the way there."""
    (tmp_path / "x").write_text("")
    for path in (tmp_path / "x", tmp_path / "x" / "y"):
        with pytest.raises(PreflightError, match=r"study\.dir.* is not a folder: a file is in its place"):
            check_writable(path)


def test_an_outputs_folder_on_a_read_only_disk(read_only):
    """Named with its remedy, for the folder itself and for one to be made in it."""
    for path in (read_only, read_only / "new"):
        with pytest.raises(PreflightError, match=r"cannot be written: the file system is read-only; .*study\.dir="):
            check_writable(path)
    with pytest.raises(StoreError, match="read-only"):
        create_study(read_only, "name", "x")
    with pytest.raises(StoreError, match="read-only"):
        create_study(read_only, None, "x")
    with pytest.raises(StoreError, match="read-only"):
        StudyFolder(read_only).create_run("00_x")


def test_a_disk_that_is_nearly_full(tiny_disk):
    """Found out before anything starts."""
    with pytest.raises(PreflightError, match=r"has 0 MiB left, and a study needs at least 64 MiB"):
        check_writable(tiny_disk)


def test_files_of_a_run(tmp_path):
    """The public names."""
    folder = RunFolder(tmp_path)
    files = (folder.manifest, folder.requests, folder.points, folder.points_csv, folder.engine_log, folder.report)
    names = ["manifest.json", "requests.parquet", "points.parquet", "points.csv", "engine.log", "report.html"]
    assert [path.name for path in files] == names
    assert folder.spools() == []
    folder.spool("c1-r0").parent.mkdir()
    folder.spool("c1-r0").touch()
    folder.spool("c1-r0").with_suffix(".json").touch()
    assert folder.spools() == [folder.spool("c1-r0")]


@pytest.mark.parametrize("name", ["00_vllm_unique", "a b", "Grüße", "x.damaged-1", "-x", "x" * 200])
def test_what_can_be_a_name(name):
    assert is_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".x", "a/b", "/a", "a/", "a\0", "a\n", "\x1b[2J", "\u202ea", "x" * 201]
)
def test_what_can_be_none(name):
    assert not is_name(name)
    with pytest.raises(StoreError):
        StudyFolder(Path("s")).run(name)
