"""A file is written whole or not at all, and the reason why not is one line."""

import pytest

from servebench.store.files import replacing, write_text
from servebench.util.errors import StoreError


def test_a_file_is_replaced_whole(tmp_path):
    """What was there stays until the new one is complete; nothing is left beside it."""
    path = tmp_path / "x.json"
    write_text(path, "one")
    with replacing(path) as beside:
        beside.write_text("two")
        assert path.read_text() == "one"
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_in_the_middle_keeps_the_old_one(tmp_path):
    """An exception of the caller passes; the half-written file is gone."""
    path = tmp_path / "x.json"
    write_text(path, "one")
    with pytest.raises(RuntimeError, match="half"), replacing(path) as beside:  # noqa: PT012
        beside.write_text("tw")
        raise RuntimeError("half")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("folder", "why"), [("x", "a file is in the place of a folder"), ("gone", "no such file or directory")]
)
def test_a_folder_that_is_none(tmp_path, folder, why):
    """The reason is told, not a traceback from cleaning up."""
    (tmp_path / "x").write_text("")
    with pytest.raises(StoreError, match=rf"cannot write .*{folder}/y: {why}$"):
        write_text(tmp_path / folder / "y", "text")


def test_a_read_only_file_system(read_only):
    """Also for root, whom no permission stops."""
    with pytest.raises(StoreError, match=r"cannot write .*: the file system is read-only$"):
        write_text(read_only / "y", "text")


def test_a_full_disk(tiny_disk):
    """The old file stays, and the half-written one does not fill the disk."""
    path = tiny_disk / "x"
    write_text(path, "old")
    with pytest.raises(StoreError, match=r"cannot write .*x: the disk is full$"):
        write_text(path, "n" * 400_000)
    assert path.read_text() == "old"
    assert list(tiny_disk.iterdir()) == [path]
