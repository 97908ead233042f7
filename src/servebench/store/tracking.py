"""Sends studies to MLflow, from what is on disk alone: a dead server costs seconds and keeps nothing back."""

import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeGuard

from servebench.contracts.emulation import EMULATING
from servebench.contracts.estimate import LevelEstimate
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import mapping
from servebench.store.files import write_text
from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.manifest import digest, read_manifest
from servebench.store.mlflow_client import KEY_TAG, NOTE_TAG, Metrics, TrackedRun, sqlite_path
from servebench.store.plan import planned_labels
from servebench.store.seal import origin_of, sha256_of, signed
from servebench.store.state import UNFINISHED, RunState, StudyState, read_run, read_study
from servebench.store.tables import read_rows
from servebench.util.bounded_file import read_json
from servebench.util.errors import StoreError, reason_of
from servebench.util.file_redaction import is_clean, redact_copy
from servebench.util.redaction import redact_text
from servebench.util.units import MS_PER_S, NS_PER_MS

URI_VARIABLE = "MLFLOW_TRACKING_URI"


@dataclass(frozen=True, kw_only=True)
class SyncReport:
    """What was sent: run folders by name. `error` is one line when not all could be; `tracker_down` says that the
    tracking server is why, and not what is on disk."""

    sent: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    error: str | None = None
    tracker_down: bool = False


def tracking_uri(asked: str | None, outputs: Path) -> str:
    """Return the tracking server: as asked, else `MLFLOW_TRACKING_URI`, else a sqlite file in the outputs folder."""
    return asked or os.environ.get(URI_VARIABLE) or f"sqlite:///{outputs.absolute()}/mlflow.db"


@dataclass(frozen=True, kw_only=True)
class Estimators:
    """What makes one number of the points of a level, as every screen has it (`analysis.estimate`)."""

    levels_of: Callable[[Iterable[PointRow]], Mapping[Level, Sequence[PointRow]]]
    mean_of: Callable[[Sequence[PointRow], str], float | None]
    best_level: Callable[[Iterable[PointRow]], LevelEstimate | None]


STATUSES = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
NUMBERLESS = ("run_id", "point")
ARTIFACT_BYTES_MAX = 200 << 20
SUMMARY_FACTS = ("engine", "model", "gpu", "workload", "launch")
"""The facts of its runs that a study's own run has as tags."""
SUMMARY_TAGS = frozenset(f"servebench.{name}" for name in (*SUMMARY_FACTS, "emulated"))
SAME_QUALITY_METRICS = ("accuracy", "score", "n", "unanswered", "latency_ms_p50", "latency_ms_p99", "right_per_s")
QUALITY_METRICS = {**{name: name for name in SAME_QUALITY_METRICS}, "accuracy_low": "low", "accuracy_high": "high"}
"""By the name that MLflow has: the key in the manifest."""
KEY_LENGTH = 32
LINE_MAX = 300
LOCK_TIMEOUT_S = 60.0
CALL_TIMEOUTS = 3
"""A call of MLflow's client is a few requests; a server that takes this many timeouts for it is given up."""
START_TIMEOUTS = 36
"""The same for a call to a database, and until the first call: MLflow is imported, and a database made."""
SLOWEST_BYTES_S = 1e6
"""Artifacts that go slower are not worth waiting for."""

UNANSWERED = re.compile(r"Max retries exceeded.*(?:\[Errno -?\d+\] |: )([\w ]{4,})")
DAMAGED = (AttributeError, KeyError, TypeError, ValueError, OverflowError)
"""What reading raises for a file of which a part has another type or size than servebench writes."""
STAMP_MAX = 1e14
STEP_MAX = 2**53

RATE_SCALE = 100
"""MLflow's steps are whole numbers: other rates are stored in hundredths."""


def _flat(value: object, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        return {name: text for key, item in value.items() for name, text in _flat(item, f"{prefix}{key}.").items()}
    return {prefix.rstrip("."): "" if value is None else str(value)}


def _load(row: Mapping[str, object]) -> float:
    levels = (row.get("concurrency"), row.get("rate"))
    return next((float(level) for level in levels if _number(level)), 0.0)


def _scale(rows: Sequence[Mapping[str, object]]) -> int:
    """Return by what loads are multiplied, so that levels which differ have steps that differ."""
    return 1 if all(_load(row).is_integer() for row in rows) else RATE_SCALE


def _step(row: Mapping[str, object], scale: int = 1) -> int:
    """Return the load level as MLflow's step, so that its charts draw metrics against load."""
    step = round(_load(row) * scale)
    if abs(step) > STEP_MAX:
        raise ValueError(f"the load {_load(row):g} is more than MLflow can keep")
    return step


def _step_words(rows: Sequence[Mapping[str, object]]) -> str:
    if any(_number(row.get("rate")) for row in rows):
        return "requests a second" + (f" x {RATE_SCALE}" if _scale(rows) != 1 else "")
    return "concurrency"


def _number(value: object) -> TypeGuard[float]:
    """Whether MLflow can keep it: it draws an infinity as 1.8e308."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _stamp(milliseconds: float) -> int:
    """Return a stored time as MLflow takes it. Raises ValueError for one that no run can have."""
    if not 0 <= milliseconds < STAMP_MAX:
        raise ValueError(f"{milliseconds / MS_PER_S:g} s is not a time of this age")
    return int(milliseconds)


def _end_ms(row: Mapping[str, object], otherwise_ms: int) -> int:
    end_ns = row.get("window_end_ns")
    return _stamp(end_ns // NS_PER_MS) if _number(end_ns) and end_ns else otherwise_ms


def _metrics(rows: Sequence[PointRow], otherwise_ms: int, estimators: Estimators, scale: int) -> Metrics:
    """Return all numbers of each level, with the time of its last point; one without a window is stamped `otherwise_ms`.

    MLflow shows the last value of a metric: points of one level would hide each other.
    """
    found = []
    for own in estimators.levels_of(rows).values():
        last = own[-1].as_dict()
        for name in dict.fromkeys(name for row in own for name in row.as_dict()):
            numeric = any(_number(row.get(name)) for row in own)
            if name in NUMBERLESS or name.endswith("_ns") or not numeric:
                continue
            value = estimators.mean_of(own, name)
            if _number(value):
                found.append((name, value, _step(last, scale), _end_ms(last, otherwise_ms)))
    return found


def _summary(rows: Sequence[PointRow], manifest: dict[str, Any], estimators: Estimators) -> dict[str, float]:
    """Figures of the whole run: its best throughput that may be believed, and its cold start by phase."""
    found: dict[str, float] = {}
    best = estimators.best_level(rows)
    if best is not None:
        found["best_output_throughput_tok_s"], found["best_output_throughput_level"] = best.value, best.level.load
    start = manifest.get("cold_start") or {}
    for phase in start.get("phases", []):
        found[f"cold_start/{phase['name']}_s"] = float(phase["seconds"])
    if start.get("seconds") is not None:
        found["cold_start_s"] = float(start["seconds"])
    search = manifest.get("search") or {}
    if search.get("level") is not None:
        found["search_level"] = float(search["level"])
    return found


def _quality(graded: list[dict[str, Any]], stamp_ms: int, scale: int) -> Metrics:
    return [
        (f"quality.{one['benchmark']}.{name}", float(one[key]), _step(one, scale), stamp_ms)
        for one in graded
        for name, key in QUALITY_METRICS.items()
        if _number(one.get(key))
    ]


def _status(state: RunState | StudyState, *, at_work: bool) -> str:
    return STATUSES.get(state.status, "RUNNING" if at_work else "KILLED")


def tracked_run(folder: RunFolder, *, at_work: bool, estimators: Estimators, name: str | None = None) -> TrackedRun:
    """Return a run's folder as MLflow will show it, by its label in the study, or its title.

    A run that is `running` though nobody is at work was killed. Raises StoreError.
    """
    state = read_run(folder)
    manifest = read_manifest(folder.manifest) if folder.manifest.exists() else {}
    points = read_rows(folder)
    rows = [point.as_dict() for point in points]
    config = manifest.get("config", {})
    status = _status(state, at_work=at_work)
    started_ms = _stamp(state.started_s * MS_PER_S)
    last_ms = max([started_ms, *(_end_ms(row, started_ms) for row in rows)])
    ended_ms = None if status == "RUNNING" else _stamp(state.ended_s * MS_PER_S) if state.ended_s else last_ms
    # by the levels that were planned, too: runs of a study have one scale, whatever was measured
    planned = mapping(config.get("load")).get("rate")
    levels = [*rows, *({"rate": rate} for rate in (planned if isinstance(planned, list) else ()))]
    metrics = _metrics(points, ended_ms or last_ms, estimators, _scale(levels))
    metrics += [(name, value, 0, ended_ms or last_ms) for name, value in _summary(points, manifest, estimators).items()]
    graded = manifest.get("quality") or []
    metrics += _quality(graded, ended_ms or last_ms, _scale(levels))
    verdicts = [point.verdict for point in points]
    worst = next((verdict for verdict in ("void", "doubtful", "valid") if verdict in verdicts), "none")
    doubts = sorted(
        {code for point in points for code in point.doubts}
        | {doubt["code"] for one in graded for doubt in one["doubts"]}
    )
    tags = {
        "servebench.run_id": state.run_id,
        "servebench.status": state.status if state.status != UNFINISHED or at_work else "killed",
        "servebench.verdict": worst,
        "servebench.doubts": ";".join(doubts),
        "servebench.version": str(manifest.get("servebench_version", "")),
        "servebench.engine_version": str(manifest.get("engine_version") or ""),
        "servebench.emulated": str(config.get("launch", {}).get("name") in EMULATING).lower(),
        "servebench.error": redact_text(state.error or ""),
        "servebench.step": _step_words(levels),
        **({"servebench.search": manifest["search"]["outcome"]} if manifest.get("search") else {}),
        **{
            f"servebench.{group}": str(config.get(group, {}).get("name", ""))
            for group in ("engine", "launch", "model", "gpu", "workload", "load")
        },
    }
    files = [folder.points_csv, folder.points, folder.manifest, folder.requests, folder.quality, folder.report]
    files += [folder.engine_log] if is_clean(folder.engine_log) else []
    return TrackedRun(
        name=name or state.title,
        status=status,
        params=_flat(config) if config else {},
        tags=tags,
        metrics=metrics,
        artifacts=[path for path in files if path.exists() and path.stat().st_size <= ARTIFACT_BYTES_MAX],
        started_ms=started_ms,
        ended_ms=ended_ms,
    )


def tracked_study(study: StudyFolder, state: StudyState, *, at_work: bool) -> TrackedRun:
    """Return the study's own run, with what the summary of the study has for it, if one was written."""
    summary = _remembered(study.summary / "summary.json")
    listed = summary.get("metrics")
    rows = [
        row
        for row in (listed if isinstance(listed, list) else ())
        if isinstance(row, dict) and _number(row.get("value")) and "name" in row
    ]
    scale = _scale(rows)
    started_ms = _stamp(state.started_s * MS_PER_S)
    ended_ms = _stamp(state.ended_s * MS_PER_S) if state.ended_s else None
    last_ms = max(started_ms, ended_ms or 0)
    # by other tags MLflow finds runs again
    tags = {
        name: redact_text(str(value)) for name, value in mapping(summary.get("tags")).items() if name in SUMMARY_TAGS
    }
    tags |= {
        KEY_TAG: _key(state),
        "servebench.study_id": state.study_id,
        "servebench.kind": "study",
        "servebench.words": redact_text(" ".join(state.words)),
    }
    if summary.get("note"):
        tags[NOTE_TAG] = redact_text(str(summary["note"]))
    if rows:
        tags["servebench.step"] = _step_words(rows)
    try:
        files = sorted(path for path in study.summary.iterdir() if path.is_file() and path.name != "summary.json")
    except OSError:
        files = []
    return TrackedRun(
        name=state.study_id,
        status=_status(state, at_work=at_work),
        tags=tags,
        metrics=[(str(row["name"]), float(row["value"]), _step(row, scale), _end_ms(row, last_ms)) for row in rows],
        artifacts=[path for path in files if path.stat().st_size <= ARTIFACT_BYTES_MAX],
        below="summary",
        started_ms=started_ms,
        ended_ms=ended_ms,
    )


def _remembered(path: Path) -> dict[str, Any]:
    try:
        known = read_json(path)
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _receipt(path: Path, key: str) -> dict[str, Any]:
    """Return what this user sent of the study or run with this key: the ids in a stranger's file are those of other runs."""
    receipt = _remembered(path)
    return receipt if origin_of("tracking", receipt, key).own else {}


def _keep_receipt(path: Path, key: str, receipt: Mapping[str, Any]) -> None:
    """Raises StoreError."""
    write_text(path, json.dumps(signed("tracking", receipt, key)))


def sent_before(study: StudyFolder, state: StudyState, uri: str, experiment: str) -> bool:
    """Return whether this user sent the study there as it is: who confirmed that once is not asked again."""
    receipt = _receipt(study.tracking, _key(state))
    return receipt.get("uri_digest") == digest([uri, experiment]) and receipt.get("study") == sha256_of(study.state)


def _mark(run: TrackedRun) -> str:
    """Return what changes when there is something new to send."""
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in run.artifacts]
    return digest([run.status, run.params, run.tags, run.metrics, files])


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A study on disk, against what was sent to this place: `todo` are (folder, run, fingerprint) that were not."""

    state: StudyState
    known: dict[str, Any]
    todo: tuple[tuple[RunFolder, TrackedRun, str], ...]
    unchanged: tuple[str, ...]
    whole: TrackedRun
    whole_mark: str
    faults: tuple[str, ...]

    @property
    def nothing(self) -> bool:
        """Whether all was sent."""
        return not self.todo and self.known.get("digest") == self.whole_mark

    @property
    def error(self) -> str | None:
        """What is wrong on disk, in one line."""
        more = f" (and {len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
        return f"{self.faults[0]}{more}" if self.faults else None


def _pending(study: StudyFolder, place: str, estimators: Estimators, *, empty: bool) -> _Pending:
    """Compare. A run that cannot be read is a fault and keeps no other back. Raises StoreError for the study's own."""
    state = read_study(study)
    at_work = state.at_work()
    known = _receipt(study.tracking, _key(state))
    if empty or known.get("uri_digest") != place:
        known = {}
    names = planned_labels(study)
    todo, unchanged, faults = [], [], []
    for folder in (study.run(name) for name in state.runs if study.run(name).state.exists()):
        try:
            run = tracked_run(folder, at_work=at_work, name=names.get(folder.name), estimators=estimators)
            mark = _mark(run)
        except StoreError as error:
            faults.append(str(error))
        except OSError as error:
            faults.append(f"{folder.path} cannot be read: {reason_of(error)}")
        except DAMAGED as error:
            faults.append(f"{folder.path} has a damaged file: {error}")
        else:
            if known and _receipt(folder.tracking, _key(state, folder.name)).get("digest") == mark:
                unchanged.append(folder.name)
            else:
                tags = {**run.tags, KEY_TAG: _key(state, folder.name), "servebench.kind": "run"}
                todo.append((folder, replace(run, tags=tags), mark))
    try:
        whole = tracked_study(study, state, at_work=at_work)
    except DAMAGED as error:
        raise StoreError(f"{study.path} has a damaged file: {error}") from error
    return _Pending(
        state=state,
        whole=whole,
        whole_mark=digest([_mark(whole), whole.ended_ms]),
        known=known,
        todo=tuple(todo),
        unchanged=tuple(unchanged),
        faults=tuple(faults),
    )


def _key(state: StudyState, run: str = "") -> str:
    """Return what finds a study or a run again in MLflow: studies of two folders may have one name."""
    return digest([state.study_id, state.started_s, run])[:KEY_LENGTH]


@contextmanager
def _without_secrets(artifacts: list[Path]) -> Iterator[list[Path]]:
    """The files to send; of the engine's log, which is the engine's own words, a copy without secrets."""
    with TemporaryDirectory(prefix="servebench-") as place:
        files = []
        for path in artifacts:
            if path.suffix == ".log":
                clean = Path(place) / path.name
                with clean.open("w", encoding="utf-8", newline="") as copy:
                    redact_copy(path, copy)
                files.append(clean)
            else:
                files.append(path)
        yield files


def sync_study(
    study: StudyFolder, *, uri: str, experiment: str, timeout_s: float, estimators: Estimators
) -> SyncReport:
    """Send a study and its runs: a parent run and a child run each. What was sent before and is unchanged is left.

    Never raises for a fault of the tracking server or of what is on disk: the report has the reason, and a later call
    sends the rest.
    """
    place = digest([uri, experiment])
    database = sqlite_path(uri)
    empty = database is not None and not database.exists()
    if uri.lower().startswith("sqlite") and (database is None or database.name == ":memory:"):
        why = f"the tracking server {redact_text(uri)} names no file, so nothing would be kept; use sqlite:///PATH/mlflow.db"
        return SyncReport(error=why, tracker_down=True)
    try:
        pending = _pending(study, place, estimators, empty=empty)
        if pending.nothing:
            return SyncReport(unchanged=pending.unchanged, error=pending.error)
        # two commands that send one study at once would send it twice
        from filelock import FileLock

        with FileLock(study.path / ".tracking.lock", timeout=LOCK_TIMEOUT_S):
            return _send_in_time(study, _pending(study, place, estimators, empty=empty), uri, experiment, timeout_s)
    except StoreError as error:
        return SyncReport(error=str(error))
    except OSError as error:
        return SyncReport(error=f"{study.path} cannot be locked: {reason_of(error)}")


def _send_in_time(study: StudyFolder, pending: _Pending, uri: str, experiment: str, timeout_s: float) -> SyncReport:
    """`_send`, given up when a call takes far too long: a server that sends a byte now and then defeats the timeouts of
    MLflow's client, which are those of one read. Raises StoreError."""
    call_s = (CALL_TIMEOUTS if uri.startswith(("http:", "https:")) else START_TIMEOUTS) * timeout_s
    deadline_s = time.monotonic() + START_TIMEOUTS * timeout_s
    done: list[SyncReport | StoreError] = []
    given_up = threading.Event()

    def begins(size: int) -> None:
        nonlocal deadline_s
        deadline_s = time.monotonic() + call_s + size / SLOWEST_BYTES_S

    def send() -> None:
        try:
            done.append(_send(study, pending, uri, experiment, timeout_s=timeout_s, begins=begins, given_up=given_up))
        except StoreError as error:
            done.append(error)

    thread = threading.Thread(target=send, name="mlflow", daemon=True)
    thread.start()
    while thread.is_alive() and (left_s := deadline_s - time.monotonic()) > 0:
        thread.join(left_s)
    # what hangs in a call may come back: it must not go on beside who sends the rest later
    given_up.set()
    shown = redact_text(uri)
    if not done:
        why = "could not be talked to: MLflow's client failed"
        if thread.is_alive():
            why = f"did not end an answer within {call_s:g} s"
        error = f"the tracking server {shown} {why}"
        return SyncReport(unchanged=pending.unchanged, error=error, tracker_down=True)
    if isinstance(done[0], StoreError):
        raise done[0]
    return done[0]


def _send(
    study: StudyFolder,
    pending: _Pending,
    uri: str,
    experiment: str,
    *,
    timeout_s: float,
    begins: Callable[[int], None],
    given_up: threading.Event,
) -> SyncReport:
    """Talk to MLflow, until all is sent or `given_up`. Raises StoreError when what was sent cannot be remembered."""
    from servebench.store.mlflow_client import Mlflow, conversation, tracker_errors

    shown = redact_text(uri)
    state, known = pending.state, pending.known
    sent: list[str] = []
    try:
        with conversation(timeout_s):
            mlflow = Mlflow(uri, experiment, study.path.parent, begins)
            parent_id = mlflow.found(known.get("mlflow_run_id"), pending.whole)
            mark = {"uri_digest": digest([uri, experiment]), "uri": shown, "mlflow_run_id": parent_id}
            mark["study"] = sha256_of(study.state)
            _keep_receipt(study.tracking, _key(state), mark)
            for folder, run, fingerprint in pending.todo:
                if given_up.is_set():
                    return SyncReport(sent=tuple(sent), unchanged=pending.unchanged)
                key = _key(state, folder.name)
                before = _receipt(folder.tracking, key).get("mlflow_run_id") if known else None
                child = replace(run, tags={**run.tags, "mlflow.parentRunId": parent_id})
                run_id = mlflow.found(before, child)
                with _without_secrets(run.artifacts) as files:
                    mlflow.send(run_id, replace(child, artifacts=files))
                _keep_receipt(folder.tracking, key, {"mlflow_run_id": run_id, "digest": fingerprint})
                sent.append(folder.name)
            mlflow.send(parent_id, pending.whole)
            _keep_receipt(study.tracking, _key(state), {**mark, "digest": pending.whole_mark})
    except tracker_errors() as problem:
        line = next((line for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
        # of the client's chain of wrapped errors only the cause is of use
        cause = UNANSWERED.search(line)
        said = f"does not answer: {cause[1].lower()}" if cause else f"failed: {redact_text(line.strip())[:LINE_MAX]}"
        words = f"the tracking server {shown} {said}"
        return SyncReport(sent=tuple(sent), unchanged=pending.unchanged, error=words, tracker_down=True)
    return SyncReport(sent=tuple(sent), unchanged=pending.unchanged, error=pending.error)
