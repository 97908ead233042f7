"""Checks of what went wrong during a point: failed requests, an engine or worker that died, an early stop."""

from collections import Counter

from servebench.analysis.evidence import PointEvidence
from servebench.analysis.warnings import catalog
from servebench.contracts.emulation import imitated
from servebench.contracts.exchange import StopReason
from servebench.contracts.results import Doubt, refused
from servebench.util.figures import short_number, short_percent

FAILED_SHARE_VOID = 0.5
REFUSED_SHARE_VOID = 0.05
"""With more refusals a point says what the server allows, and nothing that could be compared."""


def errors(point: PointEvidence) -> Doubt | None:
    """Warn when requests failed for another reason than that the server refused them."""
    # a request that we cancelled ourselves when the point was stopped has not failed
    ours = point.report.stopped not in (None, StopReason.ENGINE_DIED)
    fine = ("ok", "abandoned", *(["cancelled"] if ours else []))
    failed = [record for record in point.measured if record.outcome not in fine and not refused(record)]
    if not failed:
        return None
    share = len(failed) / len(point.measured)
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(r.outcome for r in failed).most_common())
    # a request that was not sent because an earlier one failed only repeats that one's cause
    causes = [r for r in failed if r.outcome != "session_ended"] or failed
    messages = Counter(r.error for r in causes if r.error).most_common(1)
    most_common = f"; most common error: {messages[0][0]}" if messages else ""
    unfit = all(record.http_status in (400, 413, 422) for record in causes)
    return catalog.ERRORS.issue(
        f"{len(failed)} of {len(point.measured)} requests failed ({short_percent(share)}): {kinds}{most_common}",
        remedy="send requests that the server accepts (--preview shows them), such as shorter ones" if unfit else None,
        void=share >= FAILED_SHARE_VOID,
    )


def rate_limited(point: PointEvidence) -> Doubt | None:
    """Warn when the server refused requests because it was busy."""
    found = [record for record in point.measured if refused(record)]
    busy = point.report.stopped is StopReason.BUSY
    if not found:
        message = f"the server was busy, and the point was stopped: {point.report.error}"
        return catalog.RATE_LIMITED.issue(message, void=True) if busy else None
    share = len(found) / len(point.measured)
    waits = sorted(record.retry_after_s for record in found if record.retry_after_s is not None)
    wait = f", Retry-After {waits[len(waits) // 2]:g} s" if waits else ""
    reason = next((f": {record.error.partition(': ')[2] or record.error}" for record in found if record.error), "")
    inside = "an error inside HTTP 200"
    how = " or ".join(sorted({inside if r.outcome == "stream_error" else f"HTTP {r.http_status}" for r in found}))
    counted = f"{len(found)} of {len(point.measured)}, {how}{wait}"
    return catalog.RATE_LIMITED.issue(
        f"the server refused {short_percent(share)} of the requests ({counted}){reason}",
        void=busy or share > REFUSED_SHARE_VOID,
    )


def stopped(point: PointEvidence) -> Doubt | None:
    """Warn when the point was stopped before its end: its engine, server or a worker died or hung, or the user stopped it."""
    report = point.report
    sent = f"{report.sent} of {report.planned} requests"
    cancelled = sum(r.outcome == "cancelled" for r in point.measured)
    limit = f"load.timeout_s={point.settings.load.timeout_s:g} s"
    found = {
        StopReason.ENGINE_DIED: catalog.ENGINE_DIED.issue(f"the engine exited after {sent} were sent"),
        StopReason.WORKER_DIED: catalog.WORKER_DIED.issue(
            f"{report.error or 'a load worker died'} after {sent} were sent"
        ),
        StopReason.NO_PROGRESS: catalog.NO_PROGRESS.issue(
            f"the engine was up but sent no data for {limit} after {sent} were sent, so the point was stopped"
        ),
        StopReason.NOT_ANSWERING: catalog.NOT_ANSWERING.issue(
            f"the server stopped answering: {report.error}; {sent} were sent"
        ),
        StopReason.INTERRUPT: catalog.INTERRUPTED.issue(
            f"the user stopped the point after {sent} were sent; {cancelled} of them were unfinished"
        ),
    }
    return found.get(report.stopped) if report.stopped is not None else None


def cancelled_not_freed(point: PointEvidence) -> Doubt | None:
    """Warn when the engine kept working on cancelled requests."""
    if point.row.cancelled_freed is not False:
        return None
    return catalog.CANCELLED_NOT_FREED.issue(
        "the engine kept working on requests whose client had disconnected: on average it held "
        f"{short_number(point.row.server_excess_requests_mean)} requests more than were in flight"
    )


def emulated(point: PointEvidence) -> Doubt | None:
    """Mark a point of an emulated engine."""
    how = imitated([point.row.launch]) or "emulated"
    message = f"the engine was {how}: these numbers do not describe the real engine"
    return catalog.EMULATED.issue(message) if point.row.emulated else None
