"""Send stored studies to MLflow."""

import contextlib
import sys
from collections.abc import Sequence

from servebench.run.recovery import print_problem
from servebench.store.layout import StudyFolder
from servebench.store.manifest import read_manifest
from servebench.store.state import StudyState, read_study
from servebench.store.tracking import sync_study, tracking_uri
from servebench.study.summary import write_summary
from servebench.util.errors import ServebenchError, StoreError
from servebench.util.redaction import MARK

SYNC_TIMEOUT_S = 10.0


def sync_studies(studies: Sequence[StudyFolder], *, uri: str | None = None) -> int:
    """Send studies to MLflow: to `uri`, or to the server that each was configured with.

    Return the exit code: 0 if all were sent, else 1. One study that cannot be read does not stop the others, and a server
    that is down is tried once.
    """
    down: set[str] = set()
    code = 0
    for study in studies:
        error = _sync_study(study, uri, down)
        if error is not None:
            print_problem(study, error)
            code = 1
    if not studies:
        sys.stdout.write("no studies to send\n")
    return code


def _sync_study(study: StudyFolder, chosen_uri: str | None, down: set[str]) -> str | None:
    """Send one study and return the error, if any. Adds a server that does not answer to `down`."""
    try:
        state = read_study(study)
        if state.tracking.get("name") == "none" and chosen_uri is None:
            return None
        uri = tracking_uri(chosen_uri or _stored_uri(study, state), study.path.parent)
    except StoreError as error:
        return str(error)
    if uri in down:
        return "not sent, because its tracking server is down"
    experiment = str(state.tracking.get("experiment", "servebench"))
    if state.status == "finished" and not study.summary.is_dir():
        # send the results even if their summary fails
        with contextlib.suppress(ServebenchError, OSError):
            write_summary(study.path)
    report = sync_study(study, uri=uri, experiment=experiment, timeout_s=SYNC_TIMEOUT_S)
    if report.tracker_down:
        down.add(uri)
    sys.stdout.write(f"{study.name}: {len(report.sent)} sent, {len(report.unchanged)} unchanged\n")
    return report.error


def _stored_uri(study: StudyFolder, state: StudyState) -> str | None:
    """Return the server that the study was configured with; null to use the environment. Raises StoreError."""
    uri = state.tracking.get("uri")
    manifests = (study.run(name).manifest for name in state.runs)
    first = next((path for path in manifests if path.exists()), None)
    if uri is None and first is not None:
        uri = (read_manifest(first)["config"].get("tracking") or {}).get("uri")
    if uri is not None and MARK in uri:
        raise StoreError(f"its tracking server {uri} was stored without its password; pass it with --uri URI")
    return None if uri is None else str(uri)
