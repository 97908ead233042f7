"""Send stored studies to MLflow."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from servebench.run.recovery import clean_logs, print_problem
from servebench.store.hold import holding
from servebench.store.layout import StudyFolder
from servebench.store.seal import sha256_of
from servebench.store.state import StudyState, read_signed_study
from servebench.store.tracking import sent_before, sync_study, tracking_uri
from servebench.study.recover import running_process
from servebench.study.tracking import ESTIMATORS, WHOLE, write_summary
from servebench.study.trust import confirm, visible
from servebench.util.errors import ServebenchError, StoreError
from servebench.util.secret_patterns import MARK

SYNC_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class _Sending:
    """A study and where it goes. `doubt`: why that needs to be confirmed; null for the user's own studies."""

    study: StudyFolder
    state: StudyState
    uri: str
    experiment: str
    doubt: str | None


def sync_studies(studies: Sequence[StudyFolder], *, uri: str | None = None, trusted: bool = False) -> int:
    """Send studies to MLflow: to `uri`, or to the server that each was configured with.

    Return the exit code: 0 if all were sent, else 1. One study that cannot be read does not stop the others, and a server
    that is down is tried once. Studies that are not this user's own are sent last, if they are `trusted` or confirmed. Raises
    ConfigError if they are not.
    """
    down: set[str] = set()
    code = 0
    doubtful = []
    for study in studies:
        try:
            sending = _sending(study, uri)
        except StoreError as error:
            print_problem(study, str(error))
            code = 1
            continue
        if sending is not None and sending.doubt is not None:
            doubtful.append(sending)
        elif sending is not None:
            code |= _send(sending, down)
    if doubtful:
        names = ", ".join(one.study.name for one in doubtful)
        effects = [visible(f"sends {one.study.path} to {one.uri} (experiment {one.experiment})") for one in doubtful]
        confirm(names, str(doubtful[0].doubt), effects, trusted=trusted)
    for sending in doubtful:
        code |= _send(sending, down)
    if not studies:
        sys.stdout.write("no studies to send\n")
    return code


def _sending(study: StudyFolder, chosen_uri: str | None) -> _Sending | None:
    """Return where a study goes; null if it is not tracked. Raises StoreError."""
    state, origin = read_signed_study(study, sha256_of(study.plan))
    if state.tracking.get("name") == "none" and chosen_uri is None:
        return None
    stored = state.tracking.get("uri")
    if chosen_uri is None and MARK in str(stored):
        raise StoreError(f"its tracking server {stored} was stored without its password; pass it with --uri URI")
    uri = tracking_uri(chosen_uri or stored, study.path.parent)
    experiment = str(state.tracking.get("experiment", "servebench"))
    doubt = None if sent_before(study, state, uri, experiment) else origin.doubt
    return _Sending(study=study, state=state, uri=uri, experiment=experiment, doubt=doubt)


def _send(sending: _Sending, down: set[str]) -> int:
    """Send one study and return the exit code. Adds a server that does not answer to `down`."""
    study, uri = sending.study, sending.uri
    if uri in down:
        print_problem(study, "not sent, because its tracking server is down")
        return 1
    clean = True
    if running_process(study, sending.state) is None:
        with holding(study) as ours:
            # a log that is not clean is not sent
            clean = not ours or clean_logs(study)[1]
    if sending.state.status == "finished" and not (study.summary / WHOLE).exists():
        # send the results even if their summary fails
        with contextlib.suppress(ServebenchError, OSError):
            write_summary(study.path)
    report = sync_study(study, uri=uri, experiment=sending.experiment, timeout_s=SYNC_TIMEOUT_S, estimators=ESTIMATORS)
    if report.tracker_down:
        down.add(uri)
    sys.stdout.write(f"{study.name}: {len(report.sent)} sent, {len(report.unchanged)} unchanged\n")
    if report.error is not None:
        print_problem(study, report.error)
    return int(report.error is not None or not clean)
