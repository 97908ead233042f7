"""A tracking URI that cannot be meant is refused in one line."""

import pytest

from servebench.store.reach import sqlite_path, unusable


def checked(uri):
    why = unusable(uri)
    assert why is None or "\n" not in why
    return why


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("foo://x", "has the scheme 'foo', which MLflow does not know"),
        ("http://", "names no host"),
        ("http://host:notaport", "is not valid: "),
        ("sqlite:////nonexistent/x.db", "cannot be made: there is no folder /nonexistent"),
        ("sqlite://", "names no file"),
        ("file:///somewhere/mlruns", "use sqlite:///PATH/mlflow.db"),
        ("./mlruns", "use sqlite:///PATH/mlflow.db"),
    ],
)
def test_uris_that_cannot_be_meant(uri, why):
    """The advice names what to use instead."""
    assert why in checked(uri)


def test_a_file_store_that_the_user_insists_on(monkeypatch):
    """MLflow has a switch for it, and so it is the user's affair."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert checked("./mlruns") is None


def test_sqlite_files(tmp_path):
    """A new file in a folder that is there, or a database; no folder and no other file."""
    assert checked(f"sqlite:///{tmp_path}/new.db") is None
    assert "names no file" in checked(f"sqlite:///{tmp_path}")
    other = tmp_path / "notes.txt"
    other.write_text("these are notes and no database")
    assert "is a file of another kind" in checked(f"sqlite:///{other}")
    (tmp_path / "empty.db").touch()
    assert checked(f"sqlite:///{tmp_path}/empty.db") is None


def test_a_read_only_place(read_only):
    """MLflow would try for a minute."""
    assert "is not writable" in checked(f"sqlite:///{read_only}/x.db")


@pytest.mark.parametrize("uri", ["databricks", "databricks://profile", "uc:https://x", "databricks-uc"])
def test_cloud_uris_are_left_to_mlflow(uri):
    """They name a profile and no host."""
    assert checked(uri) is None


def test_secrets_of_the_uri_are_not_shown():
    """A password in a URI is not repeated in the complaint."""
    why = checked("foo://user:hush-hush@127.0.0.1")
    assert "hush" not in why
    assert "127.0.0.1" in why


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "postgresql://host/db", "mysql+pymysql://host/db"])
def test_no_server_is_asked(uri):
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
    assert (None if path is None else path) == (str(sqlite_path(uri)) if sqlite_path(uri) else None)
