"""Recovery of a run from its spools: records first, then their points."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from servebench.analysis.evidence import PointEvidence
from servebench.analysis.warnings import catalog
from servebench.config import Job, settings_from_dict
from servebench.contracts.exchange import PhaseReport
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.point_id import PointId
from servebench.contracts.results import Doubt, Point, Record
from servebench.contracts.telemetry import Reading
from servebench.load.client.spool import read_spool
from servebench.load.plan.levels import PlannedPoint, level_of, plan_levels
from servebench.registry.registry import registry
from servebench.report.terminal.console import say
from servebench.run.late_timings import missing_timings
from servebench.run.outcome import BROKEN
from servebench.run.phase import discard_spools, facts_file, load_facts, records_of
from servebench.run.point import build_point
from servebench.store.files import writing
from servebench.store.graded import discard_graded_answers
from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.plan import manifest_plan, read_plan
from servebench.store.state import read_run, write_run
from servebench.store.tables import (
    RecordWriter,
    add_points,
    add_sessions,
    add_telemetry,
    merged_count,
    read_readings,
    read_records,
    read_requests,
    read_rows,
)
from servebench.store.telemetry_log import discard_log, read_log
from servebench.util.errors import FailureKind, ServebenchError, StoreError, reason_of
from servebench.util.file_redaction import clean_file, remember_traced, unclean_files
from servebench.util.units import NS_PER_S

UNKNOWN_COLUMNS = (
    *("client_cpu_share", "loop_lag_ms_p99", "clock_step_ms"),
    *("connections_failed", "receive_queue_bytes_max", "client_error_ms_ttft", "client_error_ms_itl"),
    "prefix_cache_hit_rate_ideal",
)
"""Columns that only the killed client could fill."""


def print_problem(study: StudyFolder, text: str) -> None:
    """Print a problem with a study to standard error."""
    for line in text.splitlines():
        say(f"servebench: {study.name}: {line}")


def recover_run(study: StudyFolder, name: str) -> int:
    """Recover records and points of a run that is not running any more, and mark the run as interrupted.

    Returns how many records and points were recovered. Raises StoreError.
    """
    recovered, folder = _recover_tables(study, name), study.run(name)
    discard_graded_answers(folder)
    if folder.state.exists() and (run := read_run(folder)).status == "running":
        write_run(folder, replace(run, status="interrupted", error="servebench was killed", failure=FailureKind.KILLED))
    return recovered


def _job(study: StudyFolder, name: str) -> Job:
    plan = read_plan(study) if study.plan.exists() else ()
    # a tune adds runs to those of its plan
    planned = next((run for run in plan if run.name == name), None) or manifest_plan(study.run(name))
    return Job(planned.overrides, settings_from_dict(planned.config, registry()), dict(planned.config))


def _recover_tables(study: StudyFolder, name: str) -> int:
    """Recover records and points of a run, and return how many. Raises StoreError."""
    folder = study.run(name)
    if not (folder.spools() or folder.parts.is_dir() or folder.telemetry_logs()):
        return 0
    found, facts = recover_records(folder)
    recover_readings(folder)
    points = 0
    try:
        job = _job(study, name)
    except ServebenchError as error:
        print_problem(study, f"{folder.name}: its points are not recovered, because its config cannot be read: {error}")
    else:
        points = recover_points(folder, job, facts)
    if found or points:
        kept = len(read_rows(folder)) - points
        before = f" ({_counted(kept, 'point')} stored before)" if kept else ""
        sys.stdout.write(
            f"{study.name}/{folder.name}: {_counted(found, 'request')} and {_counted(points, 'point')} recovered{before}\n"
        )
    return found + points


def recover_records(folder: RunFolder) -> tuple[int, dict[str, PhaseFacts]]:
    """Store the records in the spools and batches of a run, and return how many, and the facts of the phases whose spools were
    left, by point. A damaged spool is renamed and reported.

    Raises StoreError; what could not be stored stays where it is.
    """
    before = merged_count(folder)
    stored = {(record.point, record.warmup) for record in read_records(folder)}
    writer = RecordWriter(folder)
    phases: dict[tuple[str, bool], list[Path]] = {}
    known: dict[tuple[str, bool], PhaseFacts] = {}
    for spool in folder.spools():
        try:
            facts = load_facts(spool)
            known[facts.point, facts.warmup] = facts
            for _ in read_spool(spool):
                pass
        except StoreError as error:
            _set_aside(folder, spool, str(error))
            continue
        phases.setdefault((facts.point, facts.warmup), []).append(spool)
    for phase, spools in phases.items():
        # a phase may have been stored, but not yet removed, before the kill
        if phase not in stored:
            # all workers at once, because half a phase would look like a whole one after another kill
            writer.append(_records(spools, known[phase]))
        discard_spools(spools)
    writer.close()
    return merged_count(folder) - before, {point: one for (point, warmup), one in known.items() if not warmup}


def recover_readings(folder: RunFolder) -> None:
    """Store the telemetry of points that were cut off, as far as it was logged. Raises StoreError."""
    logs = folder.telemetry_logs()
    if not logs:
        return
    stored, requests = read_readings(folder), read_requests(folder, ("run_id", "point"))
    run_ids = dict(zip(requests["point"], requests["run_id"], strict=True))
    for path in logs:
        point = path.stem
        # a point may have been stored, but its log not yet removed, before the kill
        if point in run_ids and point not in stored:
            add_telemetry(folder, read_log(path), run_id=run_ids[point], point=point)
        discard_log(path)


def _records(spools: Sequence[Path], facts: PhaseFacts) -> list[Record]:
    """Return the records of a phase without the secrets that the killed process knew. Raises StoreError."""
    records = records_of(spools, facts)
    said = "\n".join(text for one in records for text in (one.text, one.reasoning, one.error or ""))
    found = remember_traced(BytesIO(said.encode("utf-8", "replace")), facts.traces)
    return records_of(spools, facts) if found else records


def clean_logs(study: StudyFolder, *, aloud: bool = False) -> tuple[int, bool]:
    """Finish the logs of engines that are not clean of secrets yet. Return how many, and whether all are; print why not, and
    with `aloud` which."""
    done, whole = 0, True
    for path in unclean_files(study.path):
        try:
            clean_file(path)
        except OSError as error:
            print_problem(study, f"{path} may hold keys and cannot be cleaned: {reason_of(error)}")
            whole = False
        else:
            done += 1
            if aloud:
                sys.stdout.write(f"{study.name}/{path.parent.name}: {path.name} cleaned of keys\n")
    return done, whole


def _set_aside(folder: RunFolder, spool: Path, why: str) -> None:
    """Rename a damaged spool, so that the point can be measured again. Raises StoreError."""
    for path in (spool, facts_file(spool)):
        with writing(path), contextlib.suppress(FileNotFoundError):
            path.replace(path.with_name(f"{path.name}.damaged"))
    text = f"{why}; its requests are lost, and the file is kept as {spool.name}.damaged"
    print_problem(StudyFolder(folder.path.parent), text)


def recover_points(folder: RunFolder, job: Job, facts: Mapping[str, PhaseFacts]) -> int:
    """Build and store the points whose requests are stored but that were never written; return how many.

    `facts` are those of the phases whose spools were left, by point. Raises StoreError.
    """
    known = read_rows(folder)
    written = {row.point for row in known}
    version = next((row.engine_version for row in known if row.engine_version), None)
    records = [record for record in read_records(folder, texts=True) if record.measured]
    telemetry = read_readings(folder)
    points_of = {PointId.parse(name) for name in dict.fromkeys(record.point for record in records)}
    points = []
    for level in _levels_of(job, records):
        # only the last attempt has a row
        attempts = (one for one in points_of if one.first == level.id)
        last = max(attempts, key=lambda one: one.attempt, default=None)
        if last is None or (name := last.format()) in written:
            continue
        own = [record for record in records if record.point == name]
        readings = telemetry.get(name, ())
        again = replace(level, id=last)
        points.append(_point(job, again, own, readings=readings, facts=facts.get(name), engine_version=version))
    add_points(folder, points)
    for point in points:
        add_sessions(folder, point)
    return len(points)


def _levels_of(job: Job, records: Sequence[Record]) -> list[PlannedPoint]:
    load = job.settings.load
    if load.search is None:
        listed = plan_levels(load, job.settings.workload.seed, job.settings.study.listed_starts)
        return [_as_replayed(level, records) for level in listed] if load.replay is not None else list(listed)
    measured = dict.fromkeys(PointId.parse(record.point).first for record in records)
    return [level for point in measured if (level := level_of(load, point)) is not None]


def _as_replayed(level: PlannedPoint, records: Sequence[Record]) -> PlannedPoint:
    """Return a trace's level with the mean rate of its records; the number of its requests is not known."""
    times = [record.scheduled_ns for record in records if record.point == level.point]
    span_s = (max(times) - min(times)) / NS_PER_S if times else 0.0
    return replace(level, rate=(len(times) - 1) / span_s if span_s else None, requests=None)


def _report(level: PlannedPoint, records: Sequence[Record], facts: PhaseFacts) -> PhaseReport:
    """Return what the client would have reported of the phase, as far as the records show it."""
    opens_s = facts.slices[0][0] if facts.slices else 0.0
    started_ns = min(record.scheduled_ns for record in records) - round(opens_s * NS_PER_S)
    ended_ns = max(record.ended_ns for record in records)
    sent = sum(record.sent_ns is not None for record in records)
    planned = len(facts.planned) if facts.planned and level.open_loop else sent
    return PhaseReport(
        started_ns=started_ns,
        ended_ns=ended_ns,
        planned=planned if level.requests is None else level.requests,
        sent=sent,
        elapsed_s=(ended_ns - started_ns) / NS_PER_S,
        stamp_source="user" if any(record.stamp_source == "user" for record in records) else "kernel",
    )


def _point(
    job: Job,
    level: PlannedPoint,
    records: Sequence[Record],
    *,
    readings: Sequence[Reading],
    facts: PhaseFacts | None,
    engine_version: str | None,
) -> Point:
    known = facts or PhaseFacts(
        run_id=records[0].run_id,
        point=level.point,
        warmup=False,
        concurrency=level.concurrency,
        repeat=level.repeat,
        planned={},
        tokenizer_name="",
    )
    evidence = PointEvidence(
        settings=job.settings,
        level=level,
        engine=registry().engine(job.settings.engine.name),
        emulated=registry().launcher(job.settings.launch.name).emulated,
        facts=replace(
            known, concurrency=level.concurrency, rate=level.rate, engine_version=known.engine_version or engine_version
        ),
        records=records,
        report=_report(level, records, known),
        requests=known.requests(),
        readings=readings,
    )
    # spans, and what an engine keeps until after the load, are lost with the process that would have read them
    extra = [*_end_warnings(level, records), *missing_timings(job.settings.engine, records)]
    return build_point(evidence, unknown=UNKNOWN_COLUMNS, extra=extra)


def _end_warnings(level: PlannedPoint, records: Sequence[Record]) -> list[Doubt]:
    done = sum(record.outcome != "cancelled" for record in records)
    last = max(records, key=lambda record: record.ended_ns)
    if last.outcome in BROKEN:
        message = (
            f"servebench was killed, and the last request of the point ended as {last.outcome}: its engine died, too"
        )
        return [catalog.ENGINE_DIED.issue(message, remedy="measure the point again")]
    if level.requests is None or done < level.requests:
        message = f"servebench was killed in the middle of the point, after {done} requests had ended"
        return [catalog.INTERRUPTED.issue(message, void=True)]
    return []


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
