"""A tracking server that cannot be used is told in one line and in bounded time."""

import socket

import pytest

from servebench.store.reach import sqlite_path, unreachable
from support.hostile import drip, silent


def checked(uri, timeout_s=300.0):
    why = unreachable(uri, timeout_s)
    assert why is None or "\n" not in why
    return why


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("scheme", ["http", "https", "postgresql", "mysql+pymysql"])
def test_a_dead_port(scheme):
    """Nobody listens: refused at once, whatever would have been spoken."""
    assert "refused" in checked(f"{scheme}://127.0.0.1:{free_port()}")


def test_a_server_that_never_answers(serve):
    """It accepts the connection and says nothing."""
    server = serve(lambda connection, request: silent(connection))
    assert "within 1 s" in checked(server.url, timeout_s=1.0)


def test_a_server_that_drips(serve):
    """One byte now and then resets every read timeout; the whole is bounded all the same."""
    server = serve(lambda connection, request: drip(connection, b"HTTP/1.1 200 OK\r\nX: "))
    assert "within 1 s" in checked(server.url, timeout_s=1.0)


@pytest.mark.parametrize(
    ("status", "why"), [(200, None), (404, None), (401, None), (500, "answers 500"), (503, "answers 503")]
)
def test_a_server_by_its_status(serve, status, why):
    """A server without /health, or one that wants a password, answers; one that fails is of no use."""
    uri = serve(lambda connection, request: (status, b"")).url
    assert checked(uri) == (None if why is None else f"the tracking server {uri} {why}")


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("foo://x", "has the scheme 'foo', which MLflow does not know"),
        ("http://", "names no host"),
        ("http://host:notaport", "is none: "),
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
    why = checked(f"http://user:hush-hush@127.0.0.1:{free_port()}")
    assert "hush" not in why
    assert "127.0.0.1" in why


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
