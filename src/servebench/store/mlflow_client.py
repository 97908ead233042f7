"""MLflow by its client with explicit run ids; the fluent interface keeps state in threads and ends the wrong runs."""

import contextlib
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servebench.util.safe_text import clean_line, clean_tracking

NAME_CHARACTERS_MAX = 250
PARAM_CHARACTERS_MAX = 500
"""What older servers take."""
TAG_CHARACTERS_MAX = 4000
NOTE_CHARACTERS_MAX = 8000
"""Newer servers take it for any tag; the note is worth the most."""
LOCK_TIMEOUT_S = 60.0
KEY_TAG = "servebench.key"
NOTE_TAG = "mlflow.note.content"
"""Where MLflow keeps the description of a run; Markdown."""

Metrics = list[tuple[str, float, int, int]]
"""(name, value, step, milliseconds since the epoch)"""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run in the form in which MLflow keeps one; a study has one of its own, the parent of those of its runs. The artifacts are
    in the folder `below`, if one is named."""

    name: str
    status: str
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str]
    metrics: Metrics
    artifacts: list[Path] = field(default_factory=list)
    below: str | None = None
    started_ms: int
    ended_ms: int | None


def sqlite_path(uri: str) -> Path | None:
    """Return the file of a `sqlite:///` URI; None for any other."""
    scheme, sign, rest = uri.partition(":///")
    if not sign or scheme.partition("+")[0].lower() != "sqlite":
        return None
    return Path(rest.partition("?")[0]).absolute()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the warnings that MLflow and its dependencies give to their own developers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def conversation(timeout_s: float) -> Iterator[None]:
    """Talk to MLflow quietly, and so that each call ends in time: by its defaults a dead server blocks one for minutes,
    and the first use of a database floods the terminal. What the user has set stays as it is."""
    ours = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(max(1, round(timeout_s))),
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        "DO_NOT_TRACK": "true",
    }
    ours = {name: value for name, value in ours.items() if name not in os.environ}
    os.environ.update(ours)
    for name in ("mlflow", "alembic", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with quiet():
            yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def tracker_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that a failing tracking server raises."""
    with quiet():
        import requests
        import sqlalchemy.exc
        from mlflow.exceptions import MlflowException

    return (MlflowException, requests.RequestException, sqlalchemy.exc.SQLAlchemyError, OSError)


def metric_name(name: str) -> str:
    """Return a name that MLflow accepts: letters, digits, `_ - . / :` and blanks, and no path that can be written otherwise."""
    name = re.sub(r"[^A-Za-z0-9_\-./: ]", "_", name)
    parts = [re.sub(r"^\.{1,2}$", "_", part) or "_" for part in name.split("/")]
    # a cut must not end in a part that is no name
    return "/".join(parts)[:NAME_CHARACTERS_MAX].rstrip("/.") or "_"


def _make_database(database: Path) -> None:
    """Make an empty database of MLflow under another name first: MLflow cannot use one whose making was cut off."""
    from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine

    making = database.with_name(f".{database.name}.new")
    for left in (making, making.with_name(f"{making.name}-journal"), making.with_name(f"{making.name}-wal")):
        left.unlink(missing_ok=True)
    engine = create_sqlalchemy_engine(f"sqlite:///{making}")  # type: ignore[no-untyped-call]
    try:
        _initialize_tables(engine)  # type: ignore[no-untyped-call]
    finally:
        engine.dispose()
    making.replace(database)


def _tags(run: TrackedRun) -> dict[str, str]:
    limits = {NOTE_TAG: NOTE_CHARACTERS_MAX}
    return {name: clean_tracking(text)[: limits.get(name, TAG_CHARACTERS_MAX)] for name, text in run.tags.items()}


class _Client:
    """MLflow's client. `begins` hears of each call how many bytes of a file it sends."""

    def __init__(self, uri: str, begins: Callable[[int], object]) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        self._begins = begins

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*words: Any, **more: Any) -> Any:
            self._begins(Path(words[1]).stat().st_size if name == "log_artifact" else 0)
            return getattr(self._client, name)(*words, **more)

        return call


class Mlflow:
    """One tracking server and experiment."""

    def __init__(
        self, uri: str, experiment: str, outputs: Path, begins: Callable[[int], object] = lambda _: None
    ) -> None:
        """Connect, and make the experiment if it is not there. To be used inside a `conversation`.

        `begins` hears when a call to the server begins, and how many bytes of a file it sends. Raises one of `tracker_errors`.
        """
        if not uri.startswith(("http:", "https:")):
            import mlflow.store.db.utils as database_utils

            # MLflow tries a database that it cannot open ten times, for 50 seconds
            database_utils.MAX_RETRY_COUNT = 1
        database = sqlite_path(uri)
        if database is not None:
            # two processes that create one database at once break each other's migrations
            from filelock import FileLock

            with FileLock(database.with_name(f".{database.name}.lock"), timeout=LOCK_TIMEOUT_S):
                if not database.exists():
                    _make_database(database)
                self._client = _Client(uri, begins)
                self._experiment_id = self._experiment(experiment, (outputs.absolute() / "mlartifacts").as_uri())
        else:
            self._client = _Client(uri, begins)
            self._experiment_id = self._experiment(experiment, None)

    def _experiment(self, name: str, artifacts: str | None) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=artifacts))
            except MlflowException:
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def found(self, known: str | None, run: TrackedRun) -> str:
        """Return the id of a run: the known one, else that of the one with the run's key, else that of a new one."""
        return self._existing(known, run.tags[KEY_TAG]) or self._create(run)

    def send(self, run_id: str, run: TrackedRun) -> None:
        """Send a run whole, also one that was sent before; a running one stays open."""
        from mlflow.entities import Metric, Param, RunTag

        # a parameter cannot be set twice, and two names may have become one
        before = self._client.get_run(run_id).data.params if run.params else {}
        once = {metric_name(name): clean_tracking(value)[:PARAM_CHARACTERS_MAX] for name, value in run.params.items()}
        self._client.log_batch(
            run_id,
            metrics=[Metric(metric_name(name), value, stamp, step) for name, value, step, stamp in run.metrics],
            params=[Param(name, value) for name, value in once.items() if name not in before],
            tags=[RunTag(name, value) for name, value in _tags(run).items()],
        )
        for path in run.artifacts:
            self._client.log_artifact(run_id, str(path), run.below)
        if run.status == "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
        else:
            self._client.set_terminated(run_id, status=run.status, end_time=run.ended_ms)

    def _existing(self, known: str | None, key: str) -> str | None:
        from mlflow.exceptions import MlflowException

        if known is not None:
            with contextlib.suppress(MlflowException):
                run = self._client.get_run(known)
                if run.info.lifecycle_stage == "active":
                    return known
        query = f"tags.`{KEY_TAG}` = '{key}'"
        found = self._client.search_runs([self._experiment_id], filter_string=query, max_results=1)
        return str(found[0].info.run_id) if found else None

    def _create(self, run: TrackedRun) -> str:
        name = clean_line(run.name)[:NAME_CHARACTERS_MAX]
        made = self._client.create_run(self._experiment_id, start_time=run.started_ms, tags=_tags(run), run_name=name)
        return str(made.info.run_id)
