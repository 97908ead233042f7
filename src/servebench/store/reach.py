"""Whether a tracking URI can be meant, found out before MLflow is imported, which retries a wrong one for a minute."""

import os
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from servebench.util.errors import reason_of
from servebench.util.redaction import redact_text

DATABASES = ("postgresql", "postgres", "mysql", "mssql")
CLOUD_SCHEMES = ("databricks", "databricks-uc", "uc")
FILE_STORE_VARIABLE = "MLFLOW_ALLOW_FILE_STORE"
PLUGIN_GROUP = "mlflow.tracking_store"
SQLITE_MAGIC = b"SQLite format 3\0"


def sqlite_path(uri: str) -> Path | None:
    """Return the file of a `sqlite:///` URI; None for any other."""
    scheme, sign, rest = uri.partition(":///")
    if not sign or scheme.partition("+")[0].lower() != "sqlite":
        return None
    return Path(rest.partition("?")[0]).absolute()


def unusable(uri: str) -> str | None:
    """Return why a tracking URI cannot be used, in one line; None when it seems it can. No server is asked: the first call to it
    is bounded."""
    shown = redact_text(uri)
    try:
        parts = urlsplit(uri)
        host = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        return f"the tracking uri {shown} is not valid: {str(error).lower()}"
    scheme = parts.scheme.partition("+")[0].lower()
    why = None
    if scheme == "sqlite":
        why = _unusable_file(uri)
    elif scheme in ("http", "https"):
        why = None if host else "names no host"
    elif scheme not in (*DATABASES, *CLOUD_SCHEMES) and uri not in CLOUD_SCHEMES:
        why = _unknown(parts.scheme)
    return None if why is None else f"the tracking server {shown} {why}"


def _unknown(scheme: str) -> str | None:
    """A folder, a plugin's scheme, or a mistake."""
    if scheme in ("", "file"):
        if os.environ.get(FILE_STORE_VARIABLE, "").lower() in ("1", "true"):
            return None
        return "is a folder, and MLflow keeps runs in folders no more; use sqlite:///PATH/mlflow.db"
    if any(point.name == scheme for point in entry_points(group=PLUGIN_GROUP)):
        return None
    return f"has the scheme '{scheme}', which MLflow does not know; use http(s)://HOST:PORT or sqlite:///PATH/mlflow.db"


def _unusable_file(uri: str) -> str | None:
    path = sqlite_path(uri)
    if path is None or path.is_dir():
        return "names no file; use sqlite:///PATH/mlflow.db"
    if not path.parent.is_dir():
        return f"cannot be made: there is no folder {path.parent}"
    try:
        with path.open("rb") as file:
            start = file.read(len(SQLITE_MAGIC))
    except FileNotFoundError:
        return None if os.access(path.parent, os.W_OK) else f"cannot be made: {path.parent} is not writable"
    except OSError as error:
        return f"cannot be read: {reason_of(error)}"
    if start and start != SQLITE_MAGIC:
        return "is a file of another kind; name another one"
    return None if os.access(path, os.W_OK) else "cannot be written"
