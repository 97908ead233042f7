"""The life of one run: start or reuse an engine, measure its points, grade its answers, report how it ended."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from servebench.analysis.warnings.catalog import is_usable
from servebench.contracts.age import FRESH
from servebench.contracts.events import PointFinished, RunStarted
from servebench.contracts.results import Point, RunOutcome
from servebench.engine.pool import EngineLease
from servebench.load.plan.source import LevelSource, level_source
from servebench.run.grading import grade_load, grade_questions, stored_summaries, unasked_questions
from servebench.run.live import awaited_death
from servebench.run.noise import learn_noise
from servebench.run.outcome import (
    Ending,
    Entry,
    ending_of_error,
    ending_of_points,
    ledger_faults,
    no_success_error,
    stop_error,
    with_ledger_faults,
)
from servebench.run.quiet import measure_undisturbed
from servebench.run.session import RunRequest, RunSession, open_session, open_telemetry
from servebench.run.steps import Steps
from servebench.store.tables import RecordWriter, add_sessions, stored_counts, write_points
from servebench.telemetry.sampler import Telemetry
from servebench.util.errors import EngineError, FailureKind, ServebenchError


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended, and what its manifest needs: the engine (null if it never ran), telemetry and ledger."""

    outcome: RunOutcome
    lease: EngineLease | None
    telemetry: Mapping[str, object] | None
    ledger: Sequence[Mapping[str, object]] = ()


@dataclass
class _Progress:
    """What a run has so far; whatever ends it, this is reported."""

    writer: RecordWriter
    points: list[Point] = field(default_factory=list)
    lease: EngineLease | None = None
    telemetry: Telemetry | None = None
    ledger: list[Entry] = field(default_factory=list)

    def close(self) -> None:
        if self.telemetry is not None:
            self.telemetry.close()
        self.writer.close()


def run_steps(request: RunRequest) -> Steps[RunResult]:
    """Execute a run, or a turn of it, and return how it ended. User errors, a dead engine, Ctrl-C and defects are outcomes.

    The engine stays with the pool, so that the next run can reuse it. Raises StoreError when the disk fails at the end.
    """
    settings, turn = request.settings, request.turn
    progress = _Progress(RecordWriter(request.folder))
    levels: LevelSource | None = None
    ending = Ending()
    try:
        levels = level_source(settings.load, settings.slo, settings.workload.seed, settings.study.listed_starts)
        if turn.first:
            request.events(RunStarted(run_id=request.run_id, settings=settings, folder=request.folder.path))
        yield from _measure_levels(request, levels, progress)
        if (error := no_success_error(progress.points, settings)) is not None:
            raise error
        if turn.last or turn.quality is not None:
            _grade(request, progress)
        if turn.last:
            ending = ending_of_points(progress.points)
    except (KeyboardInterrupt, ServebenchError) as error:
        attached = not request.registry.launcher(settings.launch.name).local
        ending = ending_of_error(_cause(error, progress, attached=attached))
    except Exception as error:  # noqa: BLE001 - a plugin's, or a defect here: it must not cost the other runs of a study
        sys.excepthook(*sys.exc_info())
        ending = Ending("failed", f"internal error: {type(error).__name__}: {error}", FailureKind.INTERNAL)
    finally:
        progress.close()
    stored = stored_counts(request.folder)
    ending = with_ledger_faults(ending, ledger_faults(progress.ledger, stored))
    search = levels.answer(interrupted=ending.status != "finished") if levels is not None else None
    outcome = RunOutcome(
        run_id=request.run_id,
        **vars(ending),
        points=tuple(progress.points),
        search=search.as_dict() if search is not None else None,
        quality=stored_summaries(request.folder),
    )
    return RunResult(
        outcome=outcome,
        lease=progress.lease,
        telemetry=progress.telemetry.facts() if progress.telemetry is not None else None,
        ledger=[one.as_dict(stored.get((one.point, one.warmup), 0)) for one in progress.ledger],
    )


def _cause(
    error: KeyboardInterrupt | ServebenchError, progress: _Progress, *, attached: bool
) -> KeyboardInterrupt | ServebenchError:
    """Return the death of the engine where that is behind an error of talking to it, else the error. An error of a server that
    is `attached` passes when its operator has mended it."""
    if isinstance(error, EngineError) and error.kind is not FailureKind.DIED:
        if attached:
            return EngineError(f"{error}; 'servebench resume' goes on when it answers", kind=FailureKind.ENDPOINT)
        death = awaited_death(progress.lease.running) if progress.lease is not None else None
        return error if death is None else EngineError(death, kind=FailureKind.DIED)
    return error


def _measure_levels(request: RunRequest, levels: LevelSource, progress: _Progress) -> Steps[None]:
    """Measure level after level. The engine is started for the first level that has no stored point.

    Raises ServebenchError when the run cannot go on, KeyboardInterrupt and Interrupted when it is stopped.
    """
    session: RunSession | None = None
    while (level := levels.next_level()) is not None:
        if (stored := request.task.earlier.points.get(level.id)) is not None:
            progress.points.append(stored)
            levels.add_point(level, stored, usable=is_usable(stored.codes))
            continue
        if not request.turn.includes(level.id):
            continue
        if session is None or request.settings.engine.age == FRESH:
            if progress.telemetry is not None:
                progress.telemetry.close()
            lease = progress.lease = request.pool.acquire(request.settings, log_path=request.folder.engine_log)
            telemetry = progress.telemetry = open_telemetry(request, lease)
            session = open_session(request, lease, writer=progress.writer, ledger=progress.ledger, telemetry=telemetry)
        attempt = replace(level, id=level.id.with_attempt(request.task.earlier.attempts.get(level.id, 0)))
        point, evidence = yield from measure_undisturbed(session, attempt)
        if evidence.report.stopped is None:
            grade_load(request, session.lease, evidence.level, evidence.requests, evidence.records)
        progress.points.append(point)
        levels.add_point(level, point, usable=is_usable(point.codes))
        names = {point.row.point for point in progress.points}
        # the table holds the stored points that the run has not reached yet, too
        later = [point for point in request.task.earlier.points.values() if point.row.point not in names]
        write_points(request.folder, [*progress.points, *later])
        add_sessions(request.folder, point)
        if evidence.report.stopped is None:
            learn_noise(session, evidence.level, point, evidence)
        request.events(PointFinished(run_id=request.run_id, point=point, folder=request.folder.path))
        error = stop_error(
            *(evidence.report.stopped, session.lease.running.died()),
            timeout_s=session.settings.load.timeout_s,
            said=evidence.report.error,
            attached=not session.lease.launcher.local,
        )
        if error is not None:
            raise error


def _grade(request: RunRequest, progress: _Progress) -> None:
    """Ask the engine the quality questions that have no stored answer; start the engine if only they are left.

    Raises ServebenchError, KeyboardInterrupt.
    """
    if not unasked_questions(request):
        return
    if progress.lease is None:
        progress.lease = request.pool.acquire(request.settings, log_path=request.folder.engine_log)
    grade_questions(request, progress.lease)
