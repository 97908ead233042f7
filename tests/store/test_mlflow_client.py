"""What a tracking URI names."""

import pytest

from servebench.store.mlflow_client import sqlite_path


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
