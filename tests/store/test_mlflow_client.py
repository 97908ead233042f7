"""A tracking URI of a file that cannot be a database is refused in one line."""

import pytest

from servebench.store.mlflow_client import sqlite_path, unusable


def checked(uri):
    why = unusable(uri)
    assert why is None or "\n" not in why
    return why


def test_sqlite_files(tmp_path):
    """A new file in a folder that is there, or a database; no folder and no other file."""
    (tmp_path / "notes.txt").write_text("these are notes and no database")
    (tmp_path / "empty.db").touch()
    for name, why in (("new.db", None), ("empty.db", None), ("", "names no file"), ("notes.txt", "of another kind")):
        found = checked(f"sqlite:///{tmp_path}/{name}")
        assert found is None if why is None else why in found
    assert "there is no folder /nonexistent" in checked("sqlite:////nonexistent/x.db")
    assert "names no file" in checked("sqlite://")


def test_a_read_only_place(read_only):
    """SQLite would try for a minute."""
    assert "is not writable" in checked(f"sqlite:///{read_only}/x.db")


@pytest.mark.parametrize("uri", ["databricks", "uc:https://x", "http://127.0.0.1:9", "postgresql://host/db", "foo://x"])
def test_other_uris_are_left_to_mlflow(uri):
    assert checked(uri) is None


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:////a/b.db", "/a/b.db"),
        ("sqlite+pysqlite:////a/b.db?x=1", "/a/b.db"),
        ("http://a/b", None),
        ("x", None),
    ],
)
def test_the_file_of_a_uri(uri, path):
    """Four slashes for an absolute path, as SQLAlchemy has it."""
    assert path == (str(sqlite_path(uri)) if sqlite_path(uri) else None)
