"""How a run ends: pure decisions from errors, points and the ledger, which compares the load's own counts with what is stored.

The ledger: planned = sent + not sent, sent = ok + failed, stored = recorded. A mismatch fails the run. Requests that only kept a
level while the measured ones ended (`fillers`) are counted apart.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from servebench.analysis.warnings import catalog
from servebench.contracts.exchange import PhaseReport, StopReason
from servebench.contracts.results import Outcome, Point, Record, RunStatus
from servebench.contracts.settings import RunSettings
from servebench.util.errors import EngineError, FailureKind, Interrupted, LoadError, ServebenchError

SILENCE_MARGIN_S = 30.0
"""Time beyond `load.timeout_s` for which an engine may send nothing: by then all its requests have ended."""


BROKEN = ("refused", "reset", "truncated")
"""Outcomes of the last request of a point whose engine may have died."""
NOT_THE_SERVER = ("cancelled", "abandoned", "session_ended")
"""Outcomes that say nothing of the server."""


@dataclass(frozen=True)
class Ending:
    """Status of a run that has ended, with one line that says why it is not finished, and the kind of failure."""

    status: RunStatus = "finished"
    error: str | None = None
    failure: FailureKind | None = None


def ending_of_error(error: ServebenchError | KeyboardInterrupt) -> Ending:
    """Return the ending of a run that an error stopped."""
    if isinstance(error, KeyboardInterrupt | Interrupted):
        return Ending(
            "interrupted", "stopped by Ctrl-C or a signal; what was measured is kept", FailureKind.INTERRUPTED
        )
    return Ending("failed", str(error), error.kind)


def ending_of_points(points: Sequence[Point]) -> Ending:
    """Return the ending of a run that measured all its points: it failed if a load worker died in one of them."""
    lost = [
        (point.row.point, doubt.message)
        for point in points
        for doubt in point.doubts
        if doubt.code == catalog.WORKER_DIED.code
    ]
    if not lost:
        return Ending()
    names = ", ".join(name for name, _ in lost)
    error = f"{names}: {lost[0][1]}; 'servebench resume' measures that again"
    return Ending("failed", error, FailureKind.WORKER)


def with_ledger_faults(ending: Ending, faults: Sequence[str]) -> Ending:
    """Return the ending with the faults of the ledger, which fail every run."""
    if not faults:
        return ending
    before = [] if ending.error is None else [ending.error]
    error = "; ".join([*before, f"the ledger does not add up: {'; '.join(faults)}"])
    return Ending("failed", error, FailureKind.LEDGER)


def no_success_error(points: Sequence[Point], settings: RunSettings) -> LoadError | None:
    """Return the error of a run in which no request succeeded; none if the client left them all, as configured."""
    if not points or any(point.row.requests_ok for point in points):
        return None
    if settings.load.cancel_fraction and not any(point.row.requests_failed for point in points):
        return None
    named = (catalog.ERRORS.code, catalog.RATE_LIMITED.code)
    messages = [doubt.message for point in points for doubt in point.doubts if doubt.code in named]
    reason = messages[0] if messages else "see requests.parquet for the errors"
    if "HTTP 400" in reason and "temperature" in reason and settings.workload.temperature is not None:
        reason += "; if the model takes no temperature, set workload.temperature=null"
    if "HTTP 404" in reason and settings.workload.adapters:
        reason += (
            "; if the engine does not serve workload.adapters, start it with them (engine.extra_args) or leave them out"
        )
    elif "HTTP 404" in reason:
        others = " or ".join(name for name in ("chat", "completions") if name != settings.workload.api)
        reason += f"; if the server has another route only, set workload.api={others}"
    return LoadError(f"no request succeeded: {reason}")


def last_failure(records: Sequence[Record]) -> Outcome | None:
    """Return the outcome of the last request that failed, if none succeeded that was sent after it: the server may have stopped
    answering."""
    failed = [one for one in records if one.outcome not in ("ok", *NOT_THE_SERVER)]
    answered = [one.sent_ns for one in records if one.outcome == "ok" and one.sent_ns is not None]
    last = max(failed, key=lambda one: one.ended_ns, default=None)
    return last.outcome if last is not None and last.ended_ns > max(answered, default=0) else None


def stop_error(
    stopped: StopReason | None, death: str | None, *, timeout_s: float, said: str | None = None, attached: bool = False
) -> ServebenchError | None:
    """Return the error that ends a run after a point; null to go on with the next point.

    `death` is why the engine died, `said` what a server does instead of answering; servebench did not start one that is
    `attached`. A dead worker fails its point only, a dead engine the run.
    """
    if stopped is StopReason.NOT_ANSWERING and death is None:
        return EngineError(f"the server stopped answering: {said}", kind=FailureKind.OTHER)
    if stopped is StopReason.INTERRUPT:
        return Interrupted("interrupted")
    if stopped is StopReason.ENGINE_DIED or death is not None:
        return EngineError(death or "the engine died under load", kind=FailureKind.DIED)
    if stopped is StopReason.NO_PROGRESS:
        patience_s = timeout_s + SILENCE_MARGIN_S
        see = "" if attached else "see engine.log, and "
        return EngineError(
            f"the engine was up but sent no data for {patience_s:g} s (load.timeout_s plus {SILENCE_MARGIN_S:g} s) while "
            f"requests were open; {see}lower load.timeout_s to notice earlier",
            kind=FailureKind.SILENT,
        )
    return None


Key = tuple[str, bool]
"""A phase: the point's name, and whether it is its warm-up."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The counts of one phase. `sent` is the load's own count, `recorded` the number of sent requests with a record."""

    point: str
    warmup: bool
    planned: int
    sent: int
    recorded: int
    ok: int
    failed: Mapping[str, int]
    fillers: int = 0

    def as_dict(self, stored: int) -> dict[str, object]:
        """Return the entry for the manifest; `stored` is the number of rows on disk."""
        counts: dict[str, object] = asdict(self)
        del counts["recorded"]
        return {**counts, "not_sent": self.planned - self.sent, "stored": stored}


def entry(point: str, report: PhaseReport, records: Sequence[Record], *, warmup: bool) -> Entry:
    """Return the entry of a phase. A request whose connection was refused counts as sent.

    For a worker that died or was killed only its last count is known, and its records may be ahead of that.
    """
    own = [record for record in records if not record.filler]
    outcomes: Counter[str] = Counter(record.outcome for record in own)
    ok = outcomes.pop("ok", 0)
    recorded = sum(record.sent_ns is not None for record in own)
    return Entry(
        point=point,
        warmup=warmup,
        planned=report.planned,
        sent=report.sent if report.error is None else max(report.sent, recorded),
        recorded=recorded,
        ok=ok,
        failed=dict(outcomes),
        fillers=len(records) - len(own),
    )


def ledger_faults(entries: Sequence[Entry], stored: Mapping[Key, int]) -> list[str]:
    """Return one line for each count that does not match. `stored` holds the number of rows on disk by phase."""
    lines = []
    for one in entries:
        where = f"{one.point}{' (warm-up)' if one.warmup else ''}"
        records = one.ok + sum(one.failed.values())
        if one.recorded != one.sent:
            lines.append(f"{where}: {one.sent} requests were sent, but {one.recorded} of them have a record")
        if records > one.planned:
            lines.append(f"{where}: {one.planned} requests were planned, but {records} have a record")
        on_disk = stored.get((one.point, one.warmup), 0)
        if on_disk != records + one.fillers:
            lines.append(f"{where}: {records + one.fillers} records were made, but {on_disk} are stored")
    return lines
