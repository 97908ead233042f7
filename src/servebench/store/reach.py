"""Whether a tracking server can be used, found out in bounded time and before MLflow is imported."""

import os
import socket
import ssl
import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from servebench.util.errors import reason_of
from servebench.util.redaction import redact_text

DATABASE_PORTS = {"postgresql": 5432, "postgres": 5432, "mysql": 3306, "mssql": 1433}
CLOUD_SCHEMES = ("databricks", "databricks-uc", "uc")
FILE_STORE_VARIABLE = "MLFLOW_ALLOW_FILE_STORE"
PLUGIN_GROUP = "mlflow.tracking_store"
SQLITE_MAGIC = b"SQLite format 3\0"
GRACE_S = 1.0


def sqlite_path(uri: str) -> Path | None:
    """Return the file of a `sqlite:///` URI; None for any other."""
    scheme, sign, rest = uri.partition(":///")
    if not sign or scheme.partition("+")[0].lower() != "sqlite":
        return None
    return Path(rest.partition("?")[0]).absolute()


def unreachable(uri: str, timeout_s: float) -> str | None:
    """Return why a tracking server cannot be used, in one line and within about `timeout_s`; None when it seems it can."""
    shown = redact_text(uri)
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        return f"the tracking uri {shown} is none: {str(error).lower()}"
    scheme = parts.scheme.partition("+")[0].lower()
    why = None
    if scheme == "sqlite":
        why = _unusable_file(uri)
    elif scheme in ("http", "https"):
        why = _within(timeout_s, lambda: _http_fault(uri, timeout_s)) if host else "names no host"
    elif scheme in DATABASE_PORTS:
        why = _within(timeout_s, lambda: _tcp_fault(host or "localhost", port or DATABASE_PORTS[scheme], timeout_s))
    elif scheme not in CLOUD_SCHEMES and uri not in CLOUD_SCHEMES:
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


def _within(timeout_s: float, probe: Callable[[], str | None]) -> str | None:
    """Return what the probe says. A name server that hangs, or a server that sends a byte now and then, defeats every timeout
    of a library: a thread is given up for it."""
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(probe()), daemon=True)
    thread.start()
    thread.join(timeout_s + GRACE_S)
    return found[0] if found else f"does not answer within {timeout_s:g} s"


def _tcp_fault(host: str, port: int, timeout_s: float) -> str | None:
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError as error:
        return f"does not answer: {str(error).lower()}"
    return None


def _verify() -> ssl.SSLContext | bool:
    """Return how MLflow's own client treats certificates."""
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("1", "true"):
        return False
    bundle = os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or os.environ.get("REQUESTS_CA_BUNDLE")
    return ssl.create_default_context(cafile=bundle) if bundle else True


def _http_fault(uri: str, timeout_s: float) -> str | None:
    import httpx

    try:
        # the status is enough: the body may never end
        with httpx.stream(
            "GET", f"{uri.rstrip('/')}/health", timeout=timeout_s, follow_redirects=True, verify=_verify()
        ) as response:
            status = response.status_code
    except httpx.TimeoutException:
        return f"does not answer within {timeout_s:g} s"
    except (OSError, httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return f"does not answer: {redact_text(' '.join(str(error).split())).lower() or type(error).__name__}"
    return f"answers {status}" if status >= httpx.codes.INTERNAL_SERVER_ERROR else None
