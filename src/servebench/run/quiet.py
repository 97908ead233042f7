"""Measure a level while nobody else takes the machine, as far as that can be had."""

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial

from servebench.analysis.evidence import PointEvidence
from servebench.analysis.warnings.disturbed import taker_of
from servebench.contracts.events import Doing, Notice
from servebench.contracts.exchange import StopReason
from servebench.contracts.results import Point
from servebench.load.plan.levels import PlannedPoint
from servebench.report.wording.comparison import taken_text
from servebench.run.measure import measure_level
from servebench.run.session import RunSession
from servebench.run.steps import Steps
from servebench.telemetry.machine import CpuUse, others_now
from servebench.util.figures import duration

Measured = tuple[Point, PointEvidence]
RECENT_S = 5.0
PROGRAMS_NOW = partial(others_now, stolen=False)


def measure_undisturbed(session: RunSession, level: PlannedPoint) -> Steps[Measured]:
    """Wait for a quiet machine and measure a level, and once more if others took the machine and are done by now, or the server
    was busy and answers by now. Return the last point, and what it is built from; of a void one before it the requests are kept.

    Where the policy has void points replaced by another start, or nobody waits, nothing is measured twice. Raises what
    `measure_level` raises.
    """
    wait_until_quiet(session, again=False)
    found = yield from measure_level(session, level)
    if found[0].row.disturbed_s == 0.0:
        # nobody took the machine, to the end of the level
        session.request.seen.quiet_s[_key(session)] = time.monotonic()
    request, report, taker = session.request, found[1].report, taker_of([found[0].judged_row])
    if report.stopped is StopReason.BUSY:
        why = report.error or ""
    elif (
        taker is None
        or request.turn.replaces_void
        or report.stopped is not None
        or not may_wait(session)
        or not wait_until_quiet(session)
    ):
        return found
    else:
        why = taken_text(taker)
    request.events(Notice("point_again", request.task.job.title, why))
    return (yield from measure_level(session, replace(level, id=level.id.with_attempt(level.id.attempt + 1))))


def may_wait(session: RunSession) -> bool:
    """Return whether there is an engine to wait for: a real one that servebench has started, in no tune, and telemetry."""
    settings, lease = session.settings, session.lease
    return bool(
        lease.running.pid is not None
        and settings.telemetry.enabled
        and settings.study.quiet_wait_s
        and not lease.launcher.emulated
        and not session.request.turn.own_engine
    )


def _key(session: RunSession) -> Hashable:
    """Return what engines that are alive at once share in a start."""
    return session.request.turn.at_once or session.request.run_id, session.request.turn.start


def wait_until_quiet(
    session: RunSession,
    look: Callable[[CpuUse], str | None] = PROGRAMS_NOW,
    now: Callable[[], float] = time.monotonic,
    *,
    again: bool = True,
) -> bool:
    """Wait while other programs take much of the machine of a real engine that servebench has started, for at most
    `study.quiet_wait_s` in all at the levels of a start: who stays that long will stay. Return whether they are done, as far as
    that is known.

    Engines that are alive at once wait together, and unless `again` nobody looks for those whose machine was quiet RECENT_S ago.
    A tune, which has many short levels, does not wait.
    """
    request, running, most_s = session.request, session.lease.running, session.settings.study.quiet_wait_s
    if running.pid is None or not may_wait(session):
        return True
    key = _key(session)
    use, began_s, before_s = CpuUse(engine=running.pid), now(), request.seen.waited_s.get(key, 0.0)
    if not again and request.turn.at_once and began_s - request.seen.quiet_s.get(key, -math.inf) < RECENT_S:
        return True
    said = False
    while (others := look(use)) is not None and (left_s := most_s - before_s - now() + began_s) > 0:
        if not said:
            request.events(Notice("quiet_awaited", at=duration(left_s), note=others))
            said = True
        request.events(Doing("waiting_quiet", note=others))
    request.seen.waited_s[key] = before_s + now() - began_s
    if others is None:
        request.seen.quiet_s[key] = now()
    return others is None
