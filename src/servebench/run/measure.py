"""Measurement of one point: warm-up, cache, load, records."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from servebench.analysis.disturbance import SOURCES, find_disturbances
from servebench.analysis.evidence import PointEvidence
from servebench.analysis.warnings import catalog
from servebench.analysis.warnings.point import wrong_gpu
from servebench.contracts.age import is_too_young, round_requests
from servebench.contracts.events import Doing
from servebench.contracts.exchange import EndReason, PhaseReport, PointPlan, StopReason
from servebench.contracts.phase import PhaseFacts, SliceFacts
from servebench.contracts.request import Request
from servebench.contracts.results import Doubt, Point, Record
from servebench.load.coordinator.drive import worker_count
from servebench.load.plan.levels import PlannedPoint, warmup_in_turns, with_trace_times
from servebench.load.plan.schedule import (
    fillers_to_prepare,
    point_plan,
    requests_to_prepare,
    schedule_requests,
    with_edges,
)
from servebench.measure.derive import count_missing
from servebench.protocol.kinds.table import kind_of
from servebench.run.late_timings import missing_timings, with_late_timings
from servebench.run.live import awaited_death
from servebench.run.noise import known_noise
from servebench.run.outcome import SILENCE_MARGIN_S, entry, last_failure
from servebench.run.phase import answer_bytes_max, jobs_of, planned_requests, references_of
from servebench.run.point import build_point
from servebench.run.preflight import no_arrivals
from servebench.run.session import RunSession, Warmed
from servebench.run.steps import Driven, PhaseStep, Steps, WarmLevel
from servebench.run.watchdog import Looks, Watcher
from servebench.store.prompts import SizedPrompts
from servebench.store.telemetry_log import TelemetryLog
from servebench.telemetry.sampler import Sampler
from servebench.util.errors import ConfigError, EngineError, ServebenchError
from servebench.util.processes import usable_cpus
from servebench.util.units import NS_PER_S
from servebench.workload.build.lengths import mean_length

Stopped = tuple[PhaseReport, PhaseFacts]
"""The phase that ended the load of a level before its measurement."""
FIRST_SLOWER = 1.5
"""The mean answer of a warm-up, by that of its point, up to which the lead-in of a slice, an answer, takes in that the first
answers at a level are slower. Of real llama.cpp it is 0.86 to 1.11."""
ANSWER_READER = "servebench.measure.derive:spoken"
"""The function with which the load reads the text of an answer that the next prompt contains."""


def measure_level(session: RunSession, level: PlannedPoint) -> Steps[tuple[Point, PointEvidence]]:
    """Warm up, measure one level, store its records, and return its point, and what it is built from.

    Raises ServebenchError and KeyboardInterrupt; the records of requests that have ended are stored then, too.
    """
    label = f"rate {level.rate:g}/s" if level.rate is not None else f"concurrency {level.concurrency}"
    repeats = session.settings.load.repeats * session.settings.study.most_starts
    label = ("replay" if level.replay else label) + (f" repeat {level.repeat}" if repeats > 1 else "")
    if (ended := (yield from _bring_to_age(session, level, label))) is not None:
        return _unmeasured(session, level, *ended)
    known = _known_warm_up(session, level)
    warmed, stopped = (known, None) if known is not None else (yield from _warm_up(session, level, label))
    if stopped is not None:
        return _unmeasured(session, level, *stopped)
    rate_req_s, answer_s = warmed
    level = with_edges(level, session.settings.load, answer_s)
    slices: SliceFacts | None = yield WarmLevel(session=session, level=level, rate_req_s=rate_req_s, answer_s=answer_s)
    if slices is None and known is not None:
        _, stopped = yield from _warm_up(session, level, label)
        if stopped is not None:
            return _unmeasured(session, level, *stopped)
    if slices is not None:
        seconds = sum(closes_s - opens_s for opens_s, closes_s in slices.slices)
        level = replace(level, requests=None, targets={}, duration_s=seconds)
    count = requests_to_prepare(level, rate_req_s, session.settings.load.min_requests)
    if slices is not None and slices.slice_requests:
        # which requests there are may depend on their number, and they have to be those of the other engines
        count = slices.slice_requests * len(slices.slices)
    prompts = _prepare_prompts(session, count, level.point, whole=level.replay)
    if level.replay and level.times_s is None:
        level, prompts = _schedule_trace(session, level, prompts)
    cache_state, cache_warnings = _prepare_cache(session)
    # in slices fillers would be sent while another engine is measured
    fillers = _prepare_fillers(session, level, prompts) if slices is None else ()
    facts = _facts(session, level, prompts, fillers, warmup=False, cache_state=cache_state)
    if slices is not None:
        facts = replace(facts, **vars(slices))
    if (noise := known_noise(session, level)) is not None:
        facts = replace(facts, noise_from=noise.point, wander=noise.likelihood)
    with TelemetryLog(session.request.folder, level.point) as log:
        with session.telemetry.sampler(log.add) as sampler:
            looks = looks_at(session, level, sampler, facts)
            sent = (*prompts.requests, *fillers)
            report, records = yield from _run_phase(
                session, level, sent, facts, label=label, answer_s=answer_s, looks=looks
            )
        readings = [*sampler.readings(), *session.load.readings()]
        session.writer.append_telemetry(readings, run_id=session.request.run_id, point=level.point)
    if slices is not None and says_enough(warmed, records):
        session.request.seen.warmed[_place(session, level)] = warmed
    evidence = replace(
        _evidence(session, level, report, facts), requests=prompts.requests, records=records, readings=readings
    )
    return build_point(evidence, extra=[*cache_warnings, *_warnings(session, level, report, records)]), evidence


def _place(session: RunSession, level: PlannedPoint) -> tuple[str, str]:
    return session.request.run_id, level.id.level


def _known_warm_up(session: RunSession, level: PlannedPoint) -> Warmed | None:
    """Return what the warm-up of an earlier start said, where another would tell the same: the engine has answered at another
    level, each slice has its lead-in, and the first answers at this level took no longer than others (they do where kernels are
    compiled for each batch size). It took a tenth of the time of four levels of real llama.cpp."""
    if not session.lease.running.requests_served or session.settings.load.warmup_requests != "auto":
        return None
    return session.request.seen.warmed.get(_place(session, level))


def says_enough(warmed: Warmed, records: Sequence[Record]) -> bool:
    """Return whether the first answers at a level took about as long as others, so that later starts need no warm-up."""
    usual_s = _answer_s(records)
    return warmed.answer_s is not None and usual_s is not None and warmed.answer_s <= FIRST_SLOWER * usual_s


def _answer_s(records: Sequence[Record]) -> float | None:
    """Return how long an answer took, as a mean; None without any."""
    answered_s = [(one.ended_ns - (one.sent_ns or 0)) / NS_PER_S for one in records if one.outcome == "ok"]
    return sum(answered_s) / len(answered_s) if answered_s else None


def _warm_up(session: RunSession, level: PlannedPoint, label: str) -> Steps[tuple[Warmed, Stopped | None]]:
    """Warm up for a level. Return what that says, and what stopped it, if anything did."""
    if not level.warmup_requests:
        return Warmed(), None
    count = level.warmup_requests
    if session.request.turn.at_once is not None and session.lease.running.requests_served:
        count = warmup_in_turns(level, session.settings.load)
    prompts = _prepare_prompts(session, count, f"warmup-{level.point}")
    facts = _facts(session, level, prompts, warmup=True, cache_state="as_is")
    report, answered = yield from _run_phase(session, level, prompts.requests, facts, label=f"{label}: warm-up")
    if report.stopped:
        return Warmed(), (report, facts)
    return Warmed(report.sent / report.elapsed_s if report.elapsed_s else None, _answer_s(answered)), None


def _bring_to_age(session: RunSession, level: PlannedPoint, label: str) -> Steps[Stopped | None]:
    """Have the server serve requests of the workload until it is as old as `engine.age` says; nothing of them is stored. Return
    what ended the load before that, if anything did."""
    rounds = itertools.count(1)
    while is_too_young(session.settings.engine.age, session.age_s, session.lease.running.requests_served):
        stream = f"age{next(rounds)}-{level.point}"
        prompts = replace(session.prompts, folder=None).prompts(round_requests(level.warmup_concurrency), stream)
        facts = _facts(session, level, prompts, warmup=True, cache_state="as_is")
        report, records = yield from _run_phase(
            session, level, prompts.requests, facts, label=f"{label}: age", kept=False
        )
        if report.stopped:
            return report, facts
        if not any(record.outcome == "ok" for record in records):
            break
    return None


def _unmeasured(
    session: RunSession, level: PlannedPoint, report: PhaseReport, facts: PhaseFacts
) -> tuple[Point, PointEvidence]:
    """The point of a level that ended before its measurement began."""
    evidence = _evidence(session, level, report, facts)
    return build_point(evidence, extra=_warnings(session, level, report)), evidence


def _evidence(session: RunSession, level: PlannedPoint, report: PhaseReport, facts: PhaseFacts) -> PointEvidence:
    return PointEvidence(
        settings=session.settings,
        level=level,
        engine=session.lease.engine,
        emulated=session.lease.launcher.emulated,
        facts=facts,
        report=report,
        # a server that hangs would be waited for
        tokenizer=session.tokenizer if report.stopped is None else None,
        floor=session.request.floor,
    )


def _warnings(
    session: RunSession, level: PlannedPoint, report: PhaseReport, records: Sequence[Record] = ()
) -> list[Doubt]:
    """Return warnings of a point that need more than its evidence to detect."""
    timed = level.duration_s is not None and not level.targets and not level.open_loop
    # requests that all failed were used up at once, and say nothing of the engine's speed
    answered = any(record.outcome == "ok" for record in records)
    warnings = missing_timings(session.settings.engine, records)
    if timed and answered and 0 < report.planned <= report.sent:
        message = (
            f"all {report.planned} prepared requests were used after {report.elapsed_s:.3g} s of {level.duration_s or 0:g} s: "
            "the engine was more than twice as fast as in the warm-up"
        )
        warnings.insert(0, catalog.SUPPLY_EXHAUSTED.issue(message))
    # the GPU of a server on another machine, and of an emulated one, is known only from the config
    if session.lease.launcher.local and not session.lease.launcher.emulated:
        gpu = wrong_gpu(session.settings, [str(gpu["name"]) for gpu in session.request.machine["gpus"]])
        warnings += [gpu] if gpu is not None else []
    return warnings


def _counted(session: RunSession, records: Sequence[Record], *, wait: bool = True) -> list[Record]:
    """Return records with counts for tokens that the server did not count; as they are where the engine that counts is gone.

    Raises EngineError if it answers requests and does not count.
    """
    if session.tokenizer.exact:
        try:
            return list(count_missing(records, session.tokenizer.count))
        except EngineError:
            if wait and last_failure(records) is None and awaited_death(session.lease.running) is None:
                raise
    return list(records)


def _schedule_trace(
    session: RunSession, level: PlannedPoint, prompts: SizedPrompts
) -> tuple[PlannedPoint, SizedPrompts]:
    """Return a trace's level with the workload's arrival times, and as many prompts as it needs. Raises ConfigError."""
    load = session.settings.load
    while True:
        times = [request.arrival_s for request in prompts.requests]
        known = [time_s for time_s in times if time_s is not None]
        if len(known) < len(times) or not known:
            raise ConfigError(no_arrivals(session.settings))
        if level.duration_s is None or (known[-1] - known[0]) * load.time_scale > level.duration_s:
            timed = with_trace_times(level, load, known)
            return timed, replace(prompts, requests=prompts.requests[: len(timed.times_s or ())])
        prompts = _prepare_prompts(session, 2 * len(times), level.point, whole=True)


def _prepare_cache(session: RunSession) -> tuple[str, list[Doubt]]:
    """Bring the prefix cache to the state that the workload requires. Return that state and warnings about it.

    For `cold` the workload has salted its prompts; an engine that can empty its cache does so, too.
    """
    state = session.settings.workload.cache
    if state != "cold":
        return state, []
    if session.lease.engine.reset_path is None:
        return "salted", []
    session.request.events(Doing("emptying_cache", session.lease.engine.name))
    reason = session.load.reset_cache()
    if reason is None:
        return "reset", []
    message = (
        f"{session.lease.engine.name} did not empty its prefix cache ({reason}); only the salt keeps prompts out of it"
    )
    return "salted", [catalog.CACHE_NOT_RESET.issue(message)]


def _prepare_fillers(session: RunSession, level: PlannedPoint, prompts: SizedPrompts) -> Sequence[Request]:
    """Return requests that keep the level of a closed loop while its last measured requests end."""
    lengths = [request.output_tokens for request in prompts.requests]
    spread = max(lengths, default=1) * len(lengths) / max(sum(lengths), 1)
    sessions = any(request.session_id is not None for request in prompts.requests)
    count = fillers_to_prepare(level, session.settings.load, spread, sessions=sessions)
    return _prepare_prompts(session, count, f"{level.point}-fill").requests if count else ()


def _prepare_prompts(session: RunSession, count: int, stream: str, *, whole: bool = False) -> SizedPrompts:
    session.request.events(Doing("making_prompts", count=count))
    if session.lease.uses:
        stream = f"{stream}-use{session.lease.uses}"
    return session.prompts.prompts(count, stream, whole=whole)


def _facts(
    session: RunSession,
    level: PlannedPoint,
    prompts: SizedPrompts,
    fillers: Sequence[Request] = (),
    *,
    warmup: bool,
    cache_state: str,
) -> PhaseFacts:
    sent = (*prompts.requests, *fillers)
    workload = session.settings.workload
    api = workload.api
    return PhaseFacts(
        run_id=session.request.run_id,
        point=level.point,
        warmup=warmup,
        concurrency=level.concurrency,
        rate=level.rate,
        repeat=level.repeat,
        planned={one.request_id: (one.prompt_tokens, one.output_tokens, one.exact_output) for one in sent},
        api=api,
        apis={one.request_id: name for one in sent if (name := kind_of(one).name) != api},
        engine_version=session.lease.running.version,
        cache_state=cache_state,
        tokenizer_name=prompts.tokenizer,
        tokenizer_exact=prompts.exact,
        start_id=session.start_id,
        server_started_ns=session.server_started_ns,
        server_requests_before=None if session.server_started_ns is None else session.lease.running.requests_served,
        fillers=[request.request_id for request in fillers],
        references=references_of(prompts.requests),
        jobs=jobs_of(prompts.requests),
        span_headers=session.settings.sends_span_headers,
        keep_ids=session.settings.engine.request_timings == "after_load",
        timings_of=session.lease.engine.name if session.settings.engine.request_timings else None,
        mean_tokens=mean_length(workload.output_tokens) if session.prompts.workload.draws_lengths else None,
    )


def _run_phase(
    session: RunSession,
    level: PlannedPoint,
    requests: Sequence[Request],
    facts: PhaseFacts,
    *,
    label: str,
    answer_s: float | None = None,
    looks: Looks | None = None,
    kept: bool = True,
) -> Steps[Driven]:
    """Drive the requests of a warm-up or a measurement, and store their records if `kept`, also when the load raises."""
    warmup = facts.warmup
    plan = _plan(session, level, requests, facts, answer_s)
    ids = {request.request_id for request in plan.requests}
    facts = replace(facts, planned={name: one for name, one in facts.planned.items() if name in ids})
    patience_s = plan.timeout_s + SILENCE_MARGIN_S
    duration_s = None if warmup else plan.duration_s if facts.slices else level.duration_s
    driver = session.load
    watch = Watcher(
        session.request.events,
        session.lease.running,
        label,
        plan.measured,
        duration_s,
        patience_s=patience_s,
        ask=driver.ask,
        slices=facts.slices,
        run=session.request.task.name,
    )
    workers = worker_count(
        session.settings.load.workers,
        in_flight=min(plan.concurrency, max(1, len(plan.requests))),
        rate_req_s=None if warmup else level.rate,
        cores=len(usable_cpus()),
    )
    if session.lease.spans is not None:
        session.lease.spans.discard()
    try:
        report, records = yield PhaseStep(
            session=session, plan=plan, facts=facts, watch=watch, looks=looks, workers=workers
        )
        if not warmup and report.stopped is None:
            records = with_late_timings(session, facts.name, records)
    except (KeyboardInterrupt, ServebenchError):
        session.writer.append(driver.ended(facts) if kept else [])
        driver.discard()
        raise
    if looks is not None:
        used_up = report.sent >= report.planned and not level.open_loop
        otherwise = None if report.stopped is not None else EndReason.REQUESTS if used_up else EndReason.TIME
        report = replace(report, ended_by=looks.ended_by or otherwise)
    session.lease.running.requests_served += report.sent + report.fillers
    records = _counted(session, records)
    if kept:
        session.writer.append(records)
        session.ledger.append(entry(level.point, report, records, warmup=warmup))
    driver.discard()
    if report.stopped is StopReason.NOT_ANSWERING:
        report = replace(report, error=watch.said)
    return driver.judge(report, records), records


def _plan(
    session: RunSession, level: PlannedPoint, requests: Sequence[Request], facts: PhaseFacts, answer_s: float | None
) -> PointPlan:
    load, seed = session.settings.load, session.settings.workload.seed
    planned = planned_requests(session.lease.engine, session.lease.running, session.settings, requests, facts.name)
    if not facts.warmup:
        planned = schedule_requests(level, load, planned, seed)
    fillers = len(facts.fillers)
    plan = point_plan(level, load, planned, warmup=facts.warmup, answer_s=answer_s, seed=seed, fillers=fillers)
    if facts.slices:
        slices = tuple((opens_s, closes_s) for opens_s, closes_s in facts.slices)
        # a request that waits for another one has its place behind that one
        alone = all(one.session_id is None and not one.after and not one.holes for one in planned)
        kept = facts.slice_requests if alone else 0
        plan = replace(
            plan, slices=slices, slice_drain_s=facts.slice_drain_s, slice_requests=kept, duration_s=slices[-1][1]
        )
    # those whose answers other prompts need are of one kind
    kind = next((kind_of(request) for request in requests if request.answers), None)
    reader = plan.reader if kind is None else f"{ANSWER_READER} {kind.name}"
    idle_cap_s = getattr(session.settings.workload, "idle_cap_s", None)
    return replace(plan, answer_bytes_max=answer_bytes_max(requests), reader=reader, idle_cap_s=idle_cap_s)


def looks_at(session: RunSession, level: PlannedPoint, sampler: Sampler, facts: PhaseFacts) -> Looks | None:
    """Return the looks that may end a point early; None for one of a fixed length."""
    if not level.targets or level.duration_s is None:
        return None
    return Looks(
        level=level,
        facts=facts,
        least=session.settings.load.min_requests,
        warmup_s=session.settings.load.warmup_s,
        with_tokens=lambda records: _counted(session, records, wait=False),
        disturbances=lambda: find_disturbances([one for one in sampler.readings() if one.source in SOURCES]),
    )
