"""What can be done from disk alone, with no engine: `recover` what a killed study left, `sync` it to MLflow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from servebench.cluster.heartbeat import at_work
from servebench.run.recovery import _mark_run, _recover_named, complain
from servebench.store import (
    StudyFolder,
    StudyState,
    holding,
    read_manifest,
    read_study,
    sync_study,
    tracking_uri,
    write_study,
)
from servebench.store.studies import chosen
from servebench.study.summary import write_summary
from servebench.util.errors import DamagedError, ServebenchError, StoreError
from servebench.util.redaction import MARK

SYNC_TIMEOUT_S = 10.0
URI_WORD = "--uri="


def recover(words: Sequence[str]) -> int:
    """Turn what studies that were killed left into tables, and mark their runs. A study that is at work is left alone.

    Returns the exit code: what cannot be read is told, keeps nothing else back, and makes it 6.
    """
    total, code = 0, 0
    for study in chosen(words):
        try:
            state = read_study(study)
        except StoreError as error:
            complain(study, str(error))
            code = StoreError.exit_code
            continue
        if (busy := who_works(study, state)) is not None:
            if words:
                sys.stdout.write(f"{study.name}: is still running ({busy})\n")
            continue
        with holding(study) as ours:
            if not ours:
                if words:
                    sys.stdout.write(f"{study.name}: another servebench is at work on it\n")
                continue
            found, damaged, refused = _recover_runs(study, read_study(study))
        total, code = total + found, StoreError.exit_code if damaged or refused else code
    if not total and not code:
        sys.stdout.write("nothing to recover\n")
    return code


def who_works(study: StudyFolder, state: StudyState) -> str | None:
    """Who is at work on a study, in words: its own process, or a job of a cluster; null when nobody is."""
    if state.at_work():
        return f"process {state.pid}"
    if (owner := at_work(study.path)) is not None:
        return str(owner)
    jobs = ((name, at_work(study.run(name).path)) for name in state.runs)
    return next((f"{name} on {job}" for name, job in jobs if job is not None), None)


def recover_study(study: StudyFolder) -> list[str]:
    """Recover one study that is not at work. Returns the runs of which a file is damaged, which is told.

    Raises StoreError when something could not be done for another reason.
    """
    _, damaged, refused = _recover_runs(study, read_study(study))
    if refused:
        raise StoreError(
            f"{study.name}: what was cut off cannot be recovered, so that nothing is measured on top of it"
        )
    return damaged


def _recover_runs(study: StudyFolder, state: StudyState) -> tuple[int, list[str], list[str]]:
    """How many things were recovered, the runs of which a file is damaged, and those with which the system refused."""
    total = 0
    damaged: list[str] = []
    refused: list[str] = []
    for index, name in enumerate(state.runs):
        try:
            total += _recover_named(study, state, index)
            _mark_run(study.run(name))
            _sweep(study.run(name).path, "**/")
        except StoreError as error:
            complain(study, str(error))
            (damaged if isinstance(error, DamagedError) else refused).append(name)
    _sweep(study.path)
    if state.status == "running":
        write_study(study, replace(state, status="interrupted"))
    return total, damaged, refused


def _sweep(folder: Path, below: str = "") -> None:
    """Remove the files that were being written, beside those that they were to become, when servebench was killed."""
    for path in folder.glob(f"{below}.*.tmp"):
        with contextlib.suppress(OSError):
            path.unlink()


def sync(words: Sequence[str]) -> int:
    """Send studies to MLflow: all of `outputs/`, or those named. Returns 0 when all went, else 1.

    A study that cannot be read keeps no other back, and a server that is down is asked once.
    """
    uri_words = [word for word in words if word.startswith(URI_WORD)]
    studies = chosen([word for word in words if not word.startswith(URI_WORD)])
    asked = uri_words[-1].removeprefix(URI_WORD) if uri_words else None
    down: set[str] = set()
    code = 0
    for study in studies:
        error = _sync_study(study, asked, down)
        if error is not None:
            complain(study, error)
            code = 1
    if not studies:
        sys.stdout.write("there are no studies to send\n")
    return code


def _sync_study(study: StudyFolder, asked: str | None, down: set[str]) -> str | None:
    """Send one. Returns what went wrong; `down` are the servers that were found dead, and is added to."""
    try:
        state = read_study(study)
        if state.tracking.get("name") == "none" and asked is None:
            return None
        uri = tracking_uri(asked or _stored_uri(study, state), study.path.parent)
    except StoreError as error:
        return str(error)
    if uri in down:
        return "not sent, for its tracking server is down"
    experiment = str(state.tracking.get("experiment", "servebench"))
    if state.status == "finished" and not study.summary.is_dir():
        # what was measured is worth more than its summary
        with contextlib.suppress(ServebenchError, OSError):
            write_summary(study.path)
    report = sync_study(study, uri=uri, experiment=experiment, timeout_s=SYNC_TIMEOUT_S)
    if report.tracker_down:
        down.add(uri)
    sys.stdout.write(f"{study.name}: {len(report.sent)} sent, {len(report.unchanged)} unchanged\n")
    return report.error


def _stored_uri(study: StudyFolder, state: StudyState) -> str | None:
    """The server that the study itself asked for; null where it left that to the environment. Raises StoreError."""
    uri = state.tracking.get("uri")
    manifests = (study.run(name).manifest for name in state.runs)
    first = next((path for path in manifests if path.exists()), None)
    if uri is None and first is not None:
        uri = (read_manifest(first)["config"].get("tracking") or {}).get("uri")
    if uri is not None and MARK in uri:
        raise StoreError(f"its tracking server {uri} was stored without its password; name it with {URI_WORD}...")
    return None if uri is None else str(uri)
