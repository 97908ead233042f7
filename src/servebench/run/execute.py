"""One run: start (or share) an engine, measure its points, store everything. The only module that makes results.

It knows the order of the rooms and nothing of how they do their work.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from servebench.analysis.warnings import catalog
from servebench.analysis.warnings.point import wrong_gpu
from servebench.config import Job
from servebench.contracts.engine import Engine, Launcher, RunningEngine
from servebench.contracts.exchange import ClientFloor, PhaseReport, StopReason, Target
from servebench.contracts.hooks import PointFinished, RunFinished, RunStarted
from servebench.contracts.point_id import PointId
from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.results import Doubt, Point, Record, RunOutcome, RunStatus
from servebench.contracts.settings import RunSettings
from servebench.contracts.telemetry import Reading, Subject
from servebench.contracts.turn import Turn
from servebench.engine.admin import reset_cache
from servebench.engine.pool import EngineLease, EnginePool
from servebench.engine.tokenize import engine_tokenizer
from servebench.load.coordinator.share import usable_cores, worker_count, worker_spools
from servebench.load.plan.levels import Level, with_trace_times
from servebench.load.plan.schedule import point_plan, requests_to_prepare, schedule_requests
from servebench.load.plan.source import LevelSource, level_source
from servebench.load.ray.nodes import ray_nodes
from servebench.measure.derive import count_missing
from servebench.registry.registry import Registry
from servebench.report.terminal.display import Display
from servebench.run.grading import QualityJob, grade_load, grade_questions, stored_summaries, unasked_questions
from servebench.run.ledger import Entry, entry, faults
from servebench.run.phase import (
    SILENCE_MARGIN_S,
    PhaseFacts,
    discard_spools,
    drive_phase,
    records_of,
    references_of,
)
from servebench.run.point import PointEvidence, build_point, planned_count
from servebench.run.requests import answer_bytes_max, planned_requests, target_of
from servebench.run.scorers import SelectedScorers
from servebench.run.watchdog import Watcher
from servebench.store import RecordWriter, RunFolder, add_telemetry, stored_counts, write_points
from servebench.telemetry import Telemetry
from servebench.util.errors import ConfigError, EngineError, FailureKind, Interrupted, LoadError, ServebenchError

BROKEN = ("refused", "reset", "truncated")
"""Outcomes of the last request of a point whose engine may have died."""

DEATH_NEWS_S = 5.0
POLL_S = 0.05

ANSWER_READER = "servebench.measure.derive:spoken"
"""What gives the load the text of an answer that belongs into the next prompt."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What `execute` is asked to do."""

    job: Job
    run_id: str
    title: str
    folder: RunFolder
    registry: Registry
    display: Display
    keeper: EnginePool
    gpus: tuple[str, ...]
    """The GPUs of this machine, as the driver names them."""
    done: Mapping[PointId, Point] = field(default_factory=dict)
    """Points that an earlier attempt at this run measured, by their first attempt: they are taken as they are."""
    attempts: Mapping[PointId, int] = field(default_factory=dict)
    """How often a point was tried before, by its first attempt; another attempt has other prompts and a name of its own."""
    floor: ClientFloor | None = None
    """How exact the client is on this machine, where it was measured."""
    quality: SelectedScorers = field(default_factory=SelectedScorers)
    """The scorers to ask after the load; none where quality was not asked for."""
    turn: Turn = field(default_factory=Turn)
    """Which part of the run is done now."""


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """An engine that runs, and all that its points share."""

    settings: RunSettings
    run_id: str
    folder: RunFolder
    display: Display
    engine: Engine
    launcher: Launcher
    running: RunningEngine
    target: Target
    workload: Workload
    tokenizer: Tokenizer
    writer: RecordWriter
    ledger: list[Entry]
    telemetry: Telemetry
    uses: int
    gpus: tuple[str, ...]
    nodes: Sequence[str]
    """Nodes of a Ray cluster that drive the load; empty when this machine does."""
    floor: ClientFloor | None


@dataclass(frozen=True, kw_only=True)
class Executed:
    """How a run ended, and what its manifest needs to know: the engine (None when it never ran) and what was watched."""

    outcome: RunOutcome
    lease: EngineLease | None
    telemetry: Mapping[str, Any] | None
    ledger: Sequence[Mapping[str, Any]] = ()


@dataclass
class _Progress:
    """How far a run is."""

    points: list[Point] = field(default_factory=list)
    lease: EngineLease | None = None
    telemetry: Telemetry | None = None
    ledger: list[Entry] = field(default_factory=list)


def execute(asked: RunRequest) -> Executed:
    """Do one run and say how it ended. A user's error, a dead engine and Ctrl-C are outcomes, never exceptions."""
    progress = _Progress()
    points = progress.points
    status: RunStatus = "finished"
    error: str | None = None
    failure: FailureKind | None = None
    writer = RecordWriter(asked.folder)
    settings = asked.job.settings
    source: LevelSource | None = None
    try:
        source = level_source(settings.load, settings.slo, settings.workload.seed)
        if asked.turn.first:
            _tell(
                asked,
                "servebench_run_started",
                RunStarted(run_id=asked.run_id, settings=asked.job.settings, folder=asked.folder.path),
            )
        _drive(asked, source, writer, progress)
        if points and not any(point.row.requests_ok for point in points):
            raise LoadError(_all_failed(points, settings.workload.api))
        if asked.turn.last:
            _judge(asked, progress)
            error = _cut_short(points)
        if error is not None:
            status, failure = "failed", FailureKind.WORKER
    except (KeyboardInterrupt, Interrupted):
        status, error, failure = "interrupted", "interrupted; what was measured is kept", FailureKind.INTERRUPTED
    except ServebenchError as problem:
        status, error, failure = "failed", str(problem), problem.kind
    finally:
        if progress.telemetry is not None:
            progress.telemetry.close()
        writer.close()
    stored = stored_counts(asked.folder)
    wrong = faults(progress.ledger, stored)
    if wrong:
        status, failure = "failed", FailureKind.LEDGER
        error = "; ".join([*([error] if error else []), f"the ledger does not add up: {'; '.join(wrong)}"])
    answer = source.answer(interrupted=status != "finished") if source is not None else None
    outcome = RunOutcome(
        run_id=asked.run_id,
        status=status,
        error=error,
        failure=failure,
        points=tuple(points),
        search=answer.as_dict() if answer is not None else None,
        quality=stored_summaries(asked.folder),
    )
    if asked.turn.last or status != "finished":
        _tell(
            asked,
            "servebench_run_finished",
            RunFinished(outcome=outcome, settings=asked.job.settings, folder=asked.folder.path),
        )
    watched = progress.telemetry.facts() if progress.telemetry is not None else None
    book = [one.as_dict(stored.get((one.point, one.warmup), 0)) for one in progress.ledger]
    return Executed(outcome=outcome, lease=progress.lease, telemetry=watched, ledger=book)


def _tell(asked: RunRequest, hook: str, event: RunStarted | PointFinished | RunFinished) -> None:
    for fault in asked.registry.tell(hook, event):
        asked.display.problem(fault)


def _drive(asked: RunRequest, source: LevelSource, writer: RecordWriter, progress: _Progress) -> None:
    """Measure level after level; the engine is started when there is one to be measured.

    Raises ServebenchError when the run cannot go on, KeyboardInterrupt and Interrupted when it is stopped.
    """
    bench: _Bench | None = None
    while (level := source.next_level()) is not None:
        if (kept := asked.done.get(level.id)) is not None:
            progress.points.append(kept)
            source.add_point(level, kept)
            continue
        if asked.turn.repeat not in (None, level.repeat):
            continue
        if bench is None:
            progress.lease = asked.keeper.acquire(asked.job.settings, log_path=asked.folder.engine_log)
            progress.telemetry = _telemetry(asked, progress.lease)
            bench = _bench(asked, progress.lease, writer, progress, progress.telemetry)
        measured = replace(level, id=level.id.with_attempt(asked.attempts.get(level.id, 0)))
        point, stopped, requests, records = _measure(bench, measured)
        if stopped is None:
            grade_load(
                asked.quality,
                measured,
                requests,
                records,
                settings=bench.settings,
                run_id=asked.run_id,
                folder=asked.folder,
                display=asked.display,
                emulated=bench.launcher.emulated,
            )
        progress.points.append(point)
        source.add_point(level, point)
        write_points(asked.folder, [*progress.points, *_to_come(asked.done, progress.points)])
        asked.display.point(point)
        _tell(
            asked,
            "servebench_point_finished",
            PointFinished(run_id=asked.run_id, point=point, folder=asked.folder.path),
        )
        if stopped is StopReason.INTERRUPT:
            raise Interrupted("interrupted")
        # a dead worker is a failed point, a dead engine a failed run
        if stopped is StopReason.ENGINE_DIED or bench.running.died():
            raise EngineError(bench.running.died() or "the engine died under load", kind=FailureKind.DIED)
        if stopped is StopReason.NO_PROGRESS:
            patience_s = asked.job.settings.load.timeout_s + SILENCE_MARGIN_S
            raise EngineError(
                f"the engine lives and sent nothing for {patience_s:g} s (load.timeout_s and {SILENCE_MARGIN_S:g} s more), "
                "though requests were open; see engine.log, and lower load.timeout_s to find out sooner",
                kind=FailureKind.SILENT,
            )


def _cut_short(points: Sequence[Point]) -> str | None:
    """What is told of a run in which a load worker died: its other points stand, and it is not whole."""
    lost = [(p.row.point, d.message) for p in points for d in p.doubts if d.code == "worker_died"]
    if not lost:
        return None
    names = ", ".join(name for name, _ in lost)
    return f"{names}: {lost[0][1]}; 'servebench resume' measures that again"


def _to_come(done: Mapping[PointId, Point], so_far: Sequence[Point]) -> list[Point]:
    """Points of an earlier attempt whose levels come later, or never: what is written before then must have them too."""
    names = {point.row.point for point in so_far}
    return [point for point in done.values() if point.row.point not in names]


def _judge(asked: RunRequest, progress: _Progress) -> None:
    """Put the questions that were not asked yet to the engine, started anew where only they are left.

    Raises ServebenchError, KeyboardInterrupt.
    """
    settings = asked.job.settings
    if not unasked_questions(settings.quality, asked.quality, asked.folder):
        return
    if progress.lease is None:
        progress.lease = asked.keeper.acquire(settings, log_path=asked.folder.engine_log)
    grade_questions(
        QualityJob(
            settings=settings,
            run_id=asked.run_id,
            folder=asked.folder,
            display=asked.display,
            engine=progress.lease.engine,
            running=progress.lease.running,
            emulated=asked.registry.launcher(settings.launch.name).emulated,
            selected=asked.quality,
        )
    )


def _all_failed(points: Sequence[Point], api: str) -> str:
    reasons = [doubt.message for point in points for doubt in point.doubts if doubt.code == "errors"]
    told = reasons[0] if reasons else "see requests.parquet for the errors"
    if "HTTP 404" in told:
        told += f"; the server may have another route only: workload.api={'completions' if api == 'chat' else 'chat'} asks it"
    return f"no request succeeded: {told}"


def _telemetry(asked: RunRequest, lease: EngineLease) -> Telemetry:
    settings = asked.job.settings
    subject = Subject(engine=lease.engine, running=lease.running, gpu=settings.gpu)
    return Telemetry.open(asked.registry.kinds["telemetry"].values(), subject, settings.telemetry)


def _bench(
    asked: RunRequest, lease: EngineLease, writer: RecordWriter, progress: _Progress, telemetry: Telemetry
) -> _Bench:
    settings = asked.job.settings
    workload_class = asked.registry.find("workload", settings.workload.name)
    asked.display.status("preparing prompts")
    return _Bench(
        settings=settings,
        run_id=asked.run_id,
        folder=asked.folder,
        display=asked.display,
        engine=lease.engine,
        launcher=asked.registry.launcher(settings.launch.name),
        running=lease.running,
        target=target_of(lease.running),
        workload=workload_class(settings.workload),
        tokenizer=engine_tokenizer(lease.engine, lease.running, settings.model),
        writer=writer,
        ledger=progress.ledger,
        telemetry=telemetry,
        uses=lease.uses,
        gpus=asked.gpus,
        floor=asked.floor,
        nodes=ray_nodes() if settings.load.workers == "ray" else [],
    )


def _measure(bench: _Bench, level: Level) -> tuple[Point, StopReason | None, Sequence[Request], Sequence[Record]]:
    """Warm up, drive the point, store its records, and judge it. Also says why it was stopped early, if it was, and gives
    what was asked and answered."""
    name = f"rate {level.rate:g}/s" if level.rate is not None else f"concurrency {level.concurrency}"
    name = ("trace" if level.trace else name) + (f" repeat {level.repeat}" if bench.settings.load.repeats > 1 else "")
    rate_req_s = None
    if level.warmup_requests:
        requests = _requests(bench, level.warmup_requests, f"warmup-{level.point}")
        report, _ = _phase(bench, level, requests, warmup=True, label=f"{name}: warm-up")
        if report.stopped:
            return _point(bench, level, [], [], report, planned=0, readings=(), cache="as_is"), report.stopped, [], []
        rate_req_s = report.sent / report.elapsed_s if report.elapsed_s else None
    requests = _requests(bench, requests_to_prepare(level, rate_req_s), level.point)
    if level.trace and level.times_s is None:
        level, requests = _replay(bench, level, requests)
    cache = _prepare_cache(bench)
    with bench.telemetry.sampler() as sampler:
        report, records = _phase(bench, level, requests, warmup=False, label=name, cache=cache)
        if report.stopped is None and _engine_is_gone(bench.running, records):
            report = replace(report, stopped=StopReason.ENGINE_DIED)
    readings = sampler.readings()
    bench.telemetry.add_failures(sampler)
    add_telemetry(bench.folder, readings, run_id=bench.run_id, point=level.point)
    planned = planned_count(level, report)
    point = _point(bench, level, requests, records, report, planned=planned, readings=readings, cache=cache)
    return point, report.stopped, requests, records


def _engine_is_gone(running: RunningEngine, records: Sequence[Record]) -> bool:
    """Whether the engine died in a phase that came to its end all the same: where nobody listens, requests fail faster
    than the news of its death comes, which waits until its descendants are gone too."""
    last = max(records, key=lambda record: record.ended_ns, default=None)
    if last is None or last.outcome not in BROKEN:
        return False
    deadline = time.monotonic() + DEATH_NEWS_S
    while not running.died():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _replay(bench: _Bench, level: Level, requests: Sequence[Request]) -> tuple[Level, Sequence[Request]]:
    """A trace's level with the times that the workload gives, and as many requests as it needs. Raises ConfigError."""
    load = bench.settings.load
    while True:
        times = [request.arrival_s for request in requests]
        known = [time_s for time_s in times if time_s is not None]
        if len(known) < len(times) or not known:
            raise ConfigError(
                f"load=trace: workload={bench.settings.workload.name} gives no arrival times; use workload=trace, or name a "
                "file with load.trace.path="
            )
        enough = level.duration_s is None or (known[-1] - known[0]) * load.time_scale > level.duration_s
        if enough:
            timed = with_trace_times(level, load, known)
            return timed, requests[: len(timed.times_s or ())]
        requests = _requests(bench, 2 * len(requests), level.point)


def _prepare_cache(bench: _Bench) -> str:
    """Bring the prefix cache to the state that the workload asks for; the word for it in the point's row.

    The workload has salted its prompts already where that is asked; an engine that can empty its cache does so too.
    """
    asked = bench.settings.workload.cache
    if asked != "cold":
        return asked
    if bench.engine.reset_path is None:
        return "salted"
    bench.display.status(f"emptying the prefix cache of {bench.engine.name}")
    return "salted" if reset_cache(bench.engine, bench.running) else "reset"


def _requests(bench: _Bench, count: int, stream: str) -> Sequence[Request]:
    bench.display.status(f"preparing {count} prompts")
    if bench.uses:
        stream = f"{stream}-use{bench.uses}"
    return bench.workload.requests(count, stream=stream, tokenizer=bench.tokenizer)


def _phase(
    bench: _Bench, level: Level, requests: Sequence[Request], *, warmup: bool, label: str, cache: str | None = None
) -> tuple[PhaseReport, list[Record]]:
    settings = bench.settings
    planned = planned_requests(bench.engine, bench.running, settings, requests)
    if not warmup:
        planned = schedule_requests(level, settings.load, planned, settings.workload.seed)
    plan = replace(
        point_plan(level, settings.load, planned, warmup=warmup), answer_bytes_max=answer_bytes_max(requests)
    )
    if any(request.holes for request in planned):
        plan = replace(plan, reader=ANSWER_READER)
    ids = {request.request_id for request in planned}
    facts = PhaseFacts(
        run_id=bench.run_id,
        point=level.point,
        warmup=warmup,
        concurrency=level.concurrency,
        rate=level.rate,
        repeat=level.repeat,
        planned={
            r.request_id: (r.prompt_tokens, r.output_tokens, r.exact_output) for r in requests if r.request_id in ids
        },
        engine_version=bench.running.version,
        cache_state=cache,
        tokenizer_name=bench.tokenizer.name,
        tokenizer_exact=bench.tokenizer.exact,
        references=references_of(requests),
    )
    watch = Watcher(
        bench.display,
        bench.running,
        label,
        len(planned),
        plan.duration_s,
        patience_s=plan.timeout_s + SILENCE_MARGIN_S,
    )
    spool = bench.folder.spool(f"{level.point}{'-warmup' if warmup else ''}")
    in_flight = min(plan.concurrency, max(1, len(planned)))
    nodes = bench.nodes[:in_flight]
    workers = len(nodes) or worker_count(
        settings.load.workers,
        in_flight=in_flight,
        rate_req_s=None if warmup else level.rate,
        cores=usable_cores(),
    )
    spools = worker_spools(spool, workers)
    try:
        report, records = drive_phase(bench.target, plan, facts, spool, watch, workers=workers, nodes=nodes)
    except (KeyboardInterrupt, ServebenchError):
        bench.writer.append(records_of(spools, facts))
        discard_spools(spools)
        raise
    records = count_missing(records, bench.tokenizer.count) if bench.tokenizer.exact else records
    bench.writer.append(records)
    bench.ledger.append(entry(level.point, report, records, warmup=warmup))
    discard_spools(spools)
    return report, records


def _point(
    bench: _Bench,
    level: Level,
    requests: Sequence[Request],
    records: Sequence[Record],
    report: PhaseReport,
    *,
    planned: int,
    readings: Sequence[Reading],
    cache: str,
) -> Point:
    evidence = PointEvidence(
        settings=bench.settings,
        level=level,
        run_id=bench.run_id,
        engine=bench.engine,
        engine_version=bench.running.version,
        emulated=bench.launcher.emulated,
        records=records,
        report=report,
        planned=planned,
        requests=requests,
        readings=readings,
        cache_state=cache,
        tokenizer=bench.tokenizer,
        tokenizer_exact=bench.tokenizer.exact,
        tokenizer_name=bench.tokenizer.name,
        floor=bench.floor,
    )
    return build_point(evidence, extra=[*_supply_doubts(level, report), *_gpu_doubts(bench)])


def _gpu_doubts(bench: _Bench) -> list[Doubt]:
    """Only of an engine that truly runs on this machine: of any other the config is all that is known of its GPU."""
    if not bench.launcher.local or bench.launcher.emulated:
        return []
    return [*filter(None, [wrong_gpu(bench.settings, bench.gpus)])]


def _supply_doubts(level: Level, report: PhaseReport) -> list[Doubt]:
    if level.duration_s is None or level.open_loop or report.sent < report.planned or not report.planned:
        return []
    return [
        catalog.SUPPLY_EXHAUSTED.issue(
            f"all {report.planned} prepared requests were used after {report.elapsed_s:.3g} s of {level.duration_s:g} s: "
            "the engine was more than twice as fast as in the warm-up"
        )
    ]
