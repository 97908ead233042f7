"""Sends studies to MLflow, from what is on disk alone: a dead server costs seconds and keeps nothing back."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servebench.errors import StoreError
from servebench.store.files import write_text
from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.manifest import digest
from servebench.store.redact import redact_text
from servebench.store.state import UNFINISHED, read_run, read_study
from servebench.store.tables import read_points

URI_VARIABLE = "MLFLOW_TRACKING_URI"


@dataclass(frozen=True, kw_only=True)
class SyncReport:
    """What was sent: run folders by name. `error` is one line when not all could be."""

    uri: str
    sent: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run in the form in which MLflow keeps one. `metrics` are (name, value, step, milliseconds since the epoch)."""

    name: str
    status: str
    params: dict[str, str]
    tags: dict[str, str]
    metrics: list[tuple[str, float, int, int]]
    artifacts: list[Path] = field(default_factory=list)
    started_ms: int
    ended_ms: int | None


def tracking_uri(asked: str | None, outputs: Path) -> str:
    """The tracking server: as asked, else `MLFLOW_TRACKING_URI`, else a sqlite file in the outputs folder."""
    return asked or os.environ.get(URI_VARIABLE) or f"sqlite:///{outputs.absolute()}/mlflow.db"


def unreachable(uri: str, timeout_s: float) -> str | None:
    """Why a tracking server cannot be used, found out within `timeout_s`; None when it answers or is a file."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return None
    import httpx

    try:
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((host, port), timeout=timeout_s).close()
        status = httpx.get(f"{uri.rstrip('/')}/health", timeout=timeout_s, follow_redirects=True).status_code
    except (OSError, httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return f"the tracking server {redact_text(uri)} does not answer: {str(error).lower() or type(error).__name__}"
    if status >= httpx.codes.INTERNAL_SERVER_ERROR:
        return f"the tracking server {redact_text(uri)} answers {status}"
    return None


STATUSES = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
NUMBERLESS = ("run_id", "point")
ARTIFACT_BYTES_MAX = 200 << 20


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        return {name: text for key, item in value.items() for name, text in _flat(item, f"{prefix}{key}.").items()}
    return {prefix.rstrip("."): "" if value is None else str(value)}


def _step(row: dict[str, Any]) -> int:
    """The load level as MLflow's step, so that its charts draw metrics against load."""
    level = row.get("concurrency")
    if level is None or level != level:
        level = row.get("rate") or 0
    return round(float(level))


def _metrics(rows: list[dict[str, Any]]) -> list[tuple[str, float, int, int]]:
    metrics = []
    for row in rows:
        stamp_ms = int((row.get("window_end_ns") or 0) // 1_000_000)
        for name, value in row.items():
            if name in NUMBERLESS or isinstance(value, (str, bool)) or name.endswith("_ns"):
                continue
            if isinstance(value, (int, float)) and value == value and abs(value) != float("inf"):
                metrics.append((name, float(value), _step(row), stamp_ms))
    return metrics


def _summary(rows: list[dict[str, Any]], manifest: dict[str, Any]) -> dict[str, float]:
    """Figures of the whole run: its best throughput that may be believed, and its cold start by phase."""
    found: dict[str, float] = {}
    believed = [row for row in rows if row.get("verdict") != "void" and row.get("output_throughput_tok_s") is not None]
    if believed:
        best = max(believed, key=lambda row: float(row["output_throughput_tok_s"]))
        found["best_output_throughput_tok_s"] = float(best["output_throughput_tok_s"])
        found["best_output_throughput_level"] = float(_step(best))
    for phase in manifest.get("cold_start", {}).get("phases", []):
        found[f"cold_start/{phase['name']}_s"] = float(phase["seconds"])
    if manifest.get("cold_start", {}).get("seconds") is not None:
        found["cold_start_s"] = float(manifest["cold_start"]["seconds"])
    return found


def tracked_run(folder: RunFolder, *, at_work: bool) -> TrackedRun:
    """A run's folder as MLflow will see it. A run that is `running` though nobody is at work was killed.

    Raises StoreError.
    """
    state = read_run(folder)
    manifest = json.loads(folder.manifest.read_text(encoding="utf-8")) if folder.manifest.exists() else {}
    frame = read_points(folder)
    rows: list[dict[str, Any]] = [
        {
            str(name): (None if value is None or value != value else value)
            for name, value in row.items()
            if name != "doubts"
        }
        for row in frame.to_dict(orient="records")
    ]
    config = manifest.get("config", {})
    status = STATUSES.get(state.status, "RUNNING" if at_work else "KILLED")
    started_ms = int(state.started_s * 1000)
    ended_ms = None if status == "RUNNING" else int((state.ended_s or state.started_s) * 1000)
    metrics = _metrics(rows)
    metrics += [(name, value, 0, ended_ms or started_ms) for name, value in _summary(rows, manifest).items()]
    verdicts = [row["verdict"] for row in rows if "verdict" in row]
    worst = next((verdict for verdict in ("void", "doubtful", "valid") if verdict in verdicts), "none")
    doubts = sorted({code for codes in frame.get("doubts", []) for code in codes})
    tags = {
        "servebench.run_id": state.run_id,
        "servebench.status": state.status if state.status != UNFINISHED or at_work else "killed",
        "servebench.verdict": worst,
        "servebench.doubts": ";".join(doubts),
        "servebench.version": str(manifest.get("servebench_version", "")),
        "servebench.engine_version": str(manifest.get("engine_version") or ""),
        "servebench.emulated": str(config.get("launch", {}).get("name") == "emulated").lower(),
        "servebench.error": redact_text(state.error or ""),
        **{
            f"servebench.{group}": str(config.get(group, {}).get("name", ""))
            for group in ("engine", "launch", "model", "gpu", "workload", "load")
        },
    }
    files = [folder.points_csv, folder.points, folder.manifest, folder.requests, folder.report, folder.engine_log]
    return TrackedRun(
        name=state.title,
        status=status,
        params=_flat(config) if config else {},
        tags=tags,
        metrics=metrics,
        artifacts=[path for path in files if path.exists() and path.stat().st_size <= ARTIFACT_BYTES_MAX],
        started_ms=started_ms,
        ended_ms=ended_ms,
    )


def _remembered(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _fingerprint(run: TrackedRun) -> str:
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in run.artifacts]
    return digest([run.status, run.params, run.tags, run.metrics, files])


def sync_study(study: StudyFolder, *, uri: str, experiment: str, timeout_s: float) -> SyncReport:
    """Send a study and its runs: a parent run and a child run each. What was sent before and is unchanged is left.

    Never raises for a tracking server's fault: the report has the reason, and a later call sends the rest.
    """
    shown = redact_text(uri)
    try:
        state = read_study(study)
        at_work = state.at_work()
        folders = [study.run(name) for name in state.runs if study.run(name).state.exists()]
        runs = [(folder, tracked_run(folder, at_work=at_work)) for folder in folders]
    except StoreError as error:
        return SyncReport(uri=shown, error=str(error))
    known = _remembered(study.tracking)
    same_place = known.get("uri_digest") == digest([uri, experiment])
    parent_mark = digest([state.status, at_work, state.ended_s])
    todo = [
        (folder, run)
        for folder, run in runs
        if not same_place or _remembered(folder.tracking).get("digest") != _fingerprint(run)
    ]
    if not todo and same_place and known.get("digest") == parent_mark:
        return SyncReport(uri=shown, unchanged=tuple(folder.name for folder, _ in runs))
    error = unreachable(uri, timeout_s)
    if error is not None:
        return SyncReport(uri=shown, error=error)
    from servebench.store.mlflow_client import Mlflow, tracker_errors

    sent: list[str] = []
    try:
        mlflow = Mlflow(uri, experiment, study.path.parent, timeout_s)
        parent_id = mlflow.parent(
            known.get("mlflow_run_id") if same_place else None, state.study_id, state.words, state.started_s
        )
        mark = {"uri_digest": digest([uri, experiment]), "uri": shown, "mlflow_run_id": parent_id}
        write_text(study.tracking, json.dumps(mark))
        for folder, run in todo:
            before = _remembered(folder.tracking).get("mlflow_run_id") if same_place else None
            run_id = mlflow.child(before, parent_id, run)
            write_text(folder.tracking, json.dumps({"mlflow_run_id": run_id, "digest": _fingerprint(run)}))
            sent.append(folder.name)
        status = STATUSES.get(state.status, "RUNNING" if at_work else "KILLED")
        mlflow.finish_parent(parent_id, status, state.ended_s)
        write_text(study.tracking, json.dumps({**mark, "digest": parent_mark}))
    except tracker_errors() as problem:
        words = " ".join(redact_text(str(problem)).split())[:300]
        return SyncReport(uri=shown, sent=tuple(sent), error=f"the tracking server {shown} failed: {words}")
    except StoreError as problem:
        return SyncReport(uri=shown, sent=tuple(sent), error=str(problem))
    return SyncReport(uri=shown, sent=tuple(sent), unchanged=tuple(f.name for f, _ in runs if f.name not in sent))
