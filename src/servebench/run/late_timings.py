"""Times of requests that the engine gives beside its answers: by spans, or when it is asked after the load."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from servebench.analysis.warnings import catalog
from servebench.contracts.engine import ServerTimings
from servebench.contracts.events import Doing, Notice
from servebench.contracts.results import Doubt, Record
from servebench.contracts.settings import EngineSettings
from servebench.measure.derive import timing_columns
from servebench.run.phase import traceparent
from servebench.run.session import RunSession
from servebench.util.errors import EngineError

LATE_S = 3.0
"""How long the engine is asked again while nothing new comes: it writes the last times after it has sent the answers."""
PAUSE_S = 0.2
MISSING_SHARE_MAX = 0.05


def with_late_timings(session: RunSession, phase: str, records: Sequence[Record]) -> list[Record]:
    """Return the records of a phase with the times that spans or the engine's own lists add to those in the answers, which count
    where both exist. Waits a bounded time for late ones. `phase` is its name (`PhaseFacts.name`)."""
    ok = [record for record in records if record.outcome == "ok"]
    wanted = {record.response_id for record in ok if record.response_id is not None}
    if session.lease.spans is not None:
        session.request.events(Doing("spans"))
        by_trace = {traceparent(phase, record.request_id).split("-")[1]: record.request_id for record in ok}
        said = {by_trace[trace_id]: one for trace_id, one in session.lease.spans.collect(by_trace).items()}
    elif wanted and session.settings.engine.request_timings == "after_load":
        session.request.events(Doing("timings", session.lease.engine.name))
        kept = _kept_timings(session, wanted)
        said = {record.request_id: kept[record.response_id] for record in ok if record.response_id in kept}
    else:
        return list(records)
    session.request.events(Doing("point"))
    source = "spans" if session.lease.spans is not None else "after_load"
    return [with_timings(one, said.get(one.request_id), source) if one.outcome == "ok" else one for one in records]


def _kept_timings(session: RunSession, wanted: set[str]) -> Mapping[str | None, ServerTimings]:
    """Return the times of these answers, by their id, as far as the engine has them. Never raises: the point counts more."""
    found: dict[str | None, ServerTimings] = {}
    deadline = time.monotonic() + LATE_S
    while True:
        try:
            new = session.lease.engine.timings_after_load(session.lease.context, session.lease.running)
        except Exception as error:  # noqa: BLE001 - the engine may be a plugin's
            name = "" if isinstance(error, EngineError) else f"{type(error).__name__}: "
            session.request.events(Notice("timings_failed", note=f"{name}{error}"))
            return found
        before = len(found)
        found |= {name: new[name] for name in wanted & new.keys()}
        deadline = time.monotonic() + LATE_S if len(found) > before else deadline
        if len(found) == len(wanted) or time.monotonic() > deadline:
            return found
        time.sleep(PAUSE_S)


def with_timings(record: Record, said: ServerTimings | None, source: str) -> Record:
    """Return the record with these times of the engine; those that it has already stay."""
    if said is None or record.sent_ns is None or record.first_event_ns is None or record.answered_ns is None:
        return record
    own = {one.name: getattr(record, f"server_{one.name}") for one in fields(ServerTimings)}
    merged = {name: getattr(said, name) if value is None else value for name, value in own.items()}
    if merged == own:
        return record
    sources = "+".join(one for one in (record.timings_from, source) if one)
    times = (record.sent_ns, record.first_event_ns, record.answered_ns)
    return replace(record, **timing_columns(ServerTimings(**merged), *times, source=sources))


def missing_timings(engine: EngineSettings, records: Sequence[Record]) -> list[Doubt]:
    """Warn when spans, or what the engine has kept, are missing for many requests although the config wants them."""
    source = engine.request_timings
    ok = [record for record in records if record.measured and record.outcome == "ok"]
    missing = sum(source not in (record.timings_from or "").split("+") for record in ok)
    if source not in ("spans", "after_load") or missing <= MISSING_SHARE_MAX * len(ok):
        return []
    what = "spans" if source == "spans" else f"request timings of {engine.name}"
    return [catalog.TIMINGS_MISSING.issue(f"no {what} for {missing} of {len(ok)} requests")]
