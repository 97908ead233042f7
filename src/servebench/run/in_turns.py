"""Runs whose engines are alive at once: their load goes from one to the other, slice by slice.

The engines start one after another. Each level is warmed up on one after another, and then measured on all of them in turns;
while one is loaded the others have nothing to do. Where an idle engine keeps the CPU busy the runs are executed one after
another, and where another one does not fit into the memory it starts when those before it have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psutil

from servebench.contracts.events import OneAtATime
from servebench.contracts.phase import SliceFacts
from servebench.contracts.results import RunOutcome
from servebench.load.coordinator.drive import drive_together
from servebench.load.plan.slices import COST_MAX, AddedStarts, plan_slices
from servebench.run.lifecycle import task_steps
from servebench.run.live import LiveLoad
from servebench.run.session import RunRequest, RunSession
from servebench.run.simulated import SimulatedLoad
from servebench.run.steps import Driven, PhaseStep, Progress, Steps, WarmLevel

IDLE_S, IDLE_CORES_MAX = 1.0, 0.1
"""How long an engine without load is looked at, and how many cores it may use meanwhile."""
SETTLE_S_MAX, LOOK_S = 3.0, 0.25
"""How long after its load an engine may go on to use the CPU, and how often it is looked at: the workers of vLLM wait for the
next step in a loop for a second (`SpinCondition` of its `shm_broadcast.py`, 0.32) before they sleep."""
MEMORY_MARGIN = 1.25
"""How many times the memory of one engine has to be free for the next one."""


Runs = Sequence[Progress[RunOutcome]]
StepsOf = Callable[[RunRequest], Steps[RunOutcome]]


def run_in_turns(requests: Sequence[RunRequest], steps_of: StepsOf = task_steps) -> list[RunOutcome]:
    """Execute a turn of one run, or of several at once, and return their outcomes, of those that have begun. An interrupted one
    ends all. Raises StoreError, and KeyboardInterrupt where none has begun."""
    runs: list[Progress[RunOutcome]] = []
    try:
        _start(requests, runs, steps_of)
        _take_turns(runs)
    except KeyboardInterrupt:
        if not runs:
            raise
        for one in _alive(runs):
            one.fail(KeyboardInterrupt())
            _finish([one])
    return [one.result for one in runs if one.result is not None]


def _start(requests: Sequence[RunRequest], runs: list[Progress[RunOutcome]], steps_of: StepsOf) -> None:
    """Start the runs, and go on with each up to its first level; what cannot stay alive with the others is executed before."""
    events = requests[0].events
    for request in requests:
        alive = _alive(runs)
        if alive and (why := _why_busy(alive[-1])) is not None:
            events(OneAtATime(why))
            _finish(alive)
        elif alive and (why := _why_full(alive[-1])) is not None:
            events(OneAtATime(why))
            _take_turns(runs)
        runs.append(Progress(steps_of(request)))
        _to_warm(runs[-1])
        _stop_if_interrupted(runs)
    if len(_alive(runs)) > 1 and (why := _why_busy(runs[-1])) is not None:
        events(OneAtATime(why))
        _finish(runs[-1:])


def _take_turns(runs: Runs) -> None:
    """Measure what is alive to its end."""
    while alive := _alive(runs):
        _stop_if_interrupted(runs)
        measure_next(alive)


def _stop_if_interrupted(runs: Runs) -> None:
    if any(one.result is not None and one.result.status == "interrupted" for one in runs):
        raise KeyboardInterrupt


def _alive(runs: Runs) -> list[Progress[RunOutcome]]:
    return [one for one in runs if one.step is not None]


def _finish(runs: Runs) -> None:
    for one in runs:
        while one.step is not None:
            one.go_alone()


def _to_warm(run: Progress[Any]) -> None:
    """Go on to the next level whose engine is warm, or to the end."""
    while isinstance(run.step, PhaseStep):
        run.go_alone()


def measure_next(runs: Sequence[Progress[Any]]) -> None:
    """Measure the next level of these runs, all of which are warm: at once where it is the same one, else of the first only."""
    steps = [one.step for one in runs if isinstance(one.step, WarmLevel)]
    shared = len(runs) > 1 and len({one.level.id.first for one in steps}) == 1
    settle_s = max((one.settle_s for one in runs), default=0.0)
    slices: Sequence[SliceFacts | None] | None = _slices(steps, settle_s) if shared else None
    if not shared:
        # one that measures a disturbed level again is behind the others
        runs = sorted(runs, key=lambda one: -one.step.level.id.attempt if isinstance(one.step, WarmLevel) else 0)
    for one, own in zip(runs, slices or [None] * (len(runs) if shared else 1), strict=False):
        one.answer(own)
        if own is None:
            _to_warm(one)
    phases = [(one, one.step) for one in runs if isinstance(one.step, PhaseStep)]
    try:
        driven = _drive([phase for _, phase in phases]) if phases else []
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - each run decides what it means
        for one, _ in phases:
            one.fail(error)
    else:
        for (one, _), found in zip(phases, driven, strict=True):
            one.answer(found)
    for one, _ in phases:
        _to_warm(one)


def _slices(steps: Sequence[WarmLevel], settle_s: float) -> list[SliceFacts] | None:
    """Return the slices of each run at a level; None where it cannot be measured in slices, or not at a sensible cost."""
    level, session = steps[0].level, steps[0].session
    point_s = max((one for step in steps if (one := _point_s(step)) is not None), default=None)
    answers_s = [step.answer_s for step in steps if step.answer_s is not None]
    rates = [step.rate_req_s for step in steps if step.rate_req_s]
    rate_req_s, until = max(rates) if len(rates) == len(steps) else None, bool(level.targets)
    if rate_req_s is not None and level.concurrency is not None and answers_s:
        # the longest answers of a warm-up end alone, a slice has all streams at work (Little's law)
        rate_req_s = max(rate_req_s, level.concurrency / min(answers_s))
    if level.concurrency is None or point_s is None or len(answers_s) < len(steps):
        plan, why = None, "the warm-up does not say how long answers take"
    else:
        seed = f"{session.settings.workload.seed}/{level.point}"
        start_s = sum(_start_s(step.session) for step in steps)
        added = AddedStarts.of(session.settings, start_s, level.concurrency)
        plan = plan_slices(
            len(steps), point_s, max(answers_s), seed, rate_req_s, settle_s=settle_s, until=until, added=added
        )
        why = f"with answers of {max(answers_s):.1f} s, slices would take over {COST_MAX:g} times the {point_s:.0f} s of points"
    if plan is None:
        session.request.events(OneAtATime(why, users=level.concurrency))
        return None
    of_slices: dict[str, Any] = {
        "slice_lead_s": plan.lead_s,
        "slice_drain_s": plan.drain_s,
        "slice_requests": plan.requests,
        "slice_group": f"{session.request.run_id}/{session.start_id}/{level.id.level}",
    }
    return [SliceFacts(slices=own, **of_slices) for own in plan.slices]


def _start_s(session: RunSession) -> float:
    """How long the engine of a session took to start for it; 0 for one that was there before."""
    return session.lease.running.start_s if session.lease.uses == 0 else 0.0


def _point_s(step: WarmLevel) -> float | None:
    level = step.level
    if level.duration_s is not None:
        return level.duration_s
    return level.requests / step.rate_req_s if level.requests is not None and step.rate_req_s else None


def _drive(phases: Sequence[PhaseStep]) -> list[Driven]:
    """Drive phases at once. Raises what the load raises."""
    simulated = [one.session.load for one in phases if isinstance(one.session.load, SimulatedLoad)]
    for load in simulated:
        load.wait_until(max(one.now_s for one in simulated))
    if len(phases) == 1 or simulated:
        return [one.drive() for one in phases]
    live = [(one.session.load, one) for one in phases if isinstance(one.session.load, LiveLoad)]
    reports = drive_together([load.drive_of(one.plan, one.facts, one.watch, workers=one.workers) for load, one in live])
    return [(report, load.ended(one.facts)) for report, (load, one) in zip(reports, live, strict=True)]


def _why_busy(run: Progress[RunOutcome]) -> str | None:
    """Return why the engine of a run that is warm cannot stay while others are measured; None if it can, and the run then
    knows how long it takes to settle."""
    session = _session_here(run)
    if session is None:
        return None
    known = session.request.seen.settle_s
    if session.request.run_id in known:
        run.settle_s = known[session.request.run_id]
        return None
    run.settle_s, cores = settled(lambda: _cpu_s(session))
    if cores <= IDLE_CORES_MAX:
        known[session.request.run_id] = run.settle_s
        return None
    return f"{session.lease.engine.name} uses {cores:.1f} cores without any load, which would slow down another engine"


def _why_full(run: Progress[RunOutcome]) -> str | None:
    """Return why another engine like that of a run which is warm cannot start beside it; None if it can."""
    session = _session_here(run)
    needed = 0.0 if session is None else MEMORY_MARGIN * sum(one.memory_info().rss for one in _processes(session))
    free = psutil.virtual_memory().available
    if needed <= free:
        return None
    return f"another engine may take {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free"


def _session_here(run: Progress[RunOutcome]) -> RunSession | None:
    """Return the session of a run that is warm, if its engine is a process of this machine."""
    session = run.step.session if isinstance(run.step, WarmLevel) else None
    launcher = None if session is None else session.lease.launcher
    return session if launcher is not None and launcher.local and not launcher.simulated else None


def settled(cpu_s: Callable[[], float]) -> tuple[float, float]:
    """Return after how many seconds an engine without load is idle, and how many cores it uses then over IDLE_S; it is given
    SETTLE_S_MAX. `cpu_s` returns the CPU time that its processes have used."""
    looks = [(time.monotonic(), cpu_s())]
    began_s = looks[0][0]
    while True:
        time.sleep(LOOK_S)
        looks.append((time.monotonic(), cpu_s()))
        if looks[-1][0] - looks[0][0] < IDLE_S:
            continue
        (from_s, used_s), (to_s, used_then_s) = looks.pop(0), looks[-1]
        cores, settle_s = max(0.0, used_then_s - used_s) / (to_s - from_s), from_s - began_s
        if cores <= IDLE_CORES_MAX or settle_s >= SETTLE_S_MAX:
            return settle_s, cores


def _cpu_s(session: RunSession) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in _processes(session))


def _processes(session: RunSession) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for pid in session.lease.running.pids:
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            found += [root, *root.children(recursive=True)]
    return found
