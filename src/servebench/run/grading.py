"""Quality of a run: which scorers can run, ask the engine their questions, grade the answers, and store a row for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import orjson

from servebench.analysis.quality.summary import summaries
from servebench.config.problems import missing_option
from servebench.contracts.events import Doing, Graded, Notice
from servebench.contracts.quality import Endpoint, ItemAnswer, Judged, Scorer
from servebench.contracts.request import Request
from servebench.contracts.results import QualityRecord, QualitySummary, Record
from servebench.contracts.settings import QualitySettings, RunSettings
from servebench.engine.pool import EngineLease
from servebench.load.plan.levels import PlannedPoint
from servebench.protocol.kinds.table import kind_named
from servebench.quality.rows import question_file
from servebench.registry.registry import Registry
from servebench.run.session import RunRequest, SelectedScorers
from servebench.store.graded import AnswerLog, add_quality, discard_answers, graded_questions, read_quality
from servebench.store.layout import RunFolder
from servebench.util.errors import ConfigError, EngineError, FailureKind, QualityError
from servebench.util.wheel_file import PackagedFile

ALL = "all"
NONE = "none"
ANSWER_COLUMNS = (
    *("outcome", "http_status", "error", "finish_reason", "prompt_tokens", "output_tokens"),
    *("sent_ns", "ended_ns", "latency_ms", "thinking", "reasoning"),
)
"""The columns of a graded answer that are those of the answer; then those of its question, its grade and the settings."""
ITEM_COLUMNS = ("task", "item_id", "prompt", "max_tokens")
GRADE_COLUMNS = ("correct", "score", "extracted", "note")
SETTING_COLUMNS = ("api", "shots", "seed")


def configured_scorers(quality: QualitySettings, registry: Registry) -> list[Scorer]:
    """Return the scorers that the settings name. Raises ConfigError for an unknown one."""
    if quality.name == NONE:
        return []
    if quality.name != ALL:
        return [registry.find("quality", quality.name)(quality)]
    names = quality.tasks or tuple(registry.kinds["quality"])
    shared = {one.name: getattr(quality, one.name) for one in fields(QualitySettings)} | {"tasks": ()}
    scorers: list[Scorer] = []
    for name in names:
        if name not in registry.kinds["quality"]:
            raise ConfigError(missing_option("quality", name, registry))
        kind: type[Scorer] = registry.find("quality", name)
        scorers.append(kind(kind.settings_type(**{**shared, "name": name})))
    return scorers


def select_scorers(settings: RunSettings, registry: Registry, cache_dir: Path) -> SelectedScorers:
    """Return the scorers that can run, with their questions downloaded.

    With `quality=all`, scorers that cannot run are left out with a reason; with `quality.tasks` only those that grade
    another workload's answers are, because a sweep may have several workloads. Raises ConfigError when a scorer that the
    user named cannot run, or when none can.
    """
    quality = settings.quality
    scorers: list[tuple[Scorer, Path]] = []
    faults: list[str] = []
    unfit: list[str] = []
    for scorer in configured_scorers(quality, registry):
        mismatch = _workload_faults(scorer, settings.workload.name, registry) + _kind_faults(scorer)
        if mismatch and quality.name == ALL:
            unfit += [f"{scorer.name}: {fault}" for fault in mismatch]
            continue
        own_faults = [*scorer.check(), *mismatch]
        path = Path()
        if not own_faults:
            try:
                path = _question_path(scorer, cache_dir)
                if not scorer.asks_itself and not scorer.grades_load:
                    # a question that cannot be read is an error before anything starts
                    scorer.items(path, scorer.settings.count, scorer.settings.seed)
            except ConfigError as error:
                own_faults = error.faults
        if own_faults:
            faults += [f"{scorer.name}: {fault}" for fault in own_faults]
        else:
            scorers.append((scorer, path))
    optional = quality.name == ALL and not quality.tasks and scorers
    if faults and not optional:
        prefix = f"{quality.name}: "
        raise ConfigError([f"quality={quality.name}: {fault.removeprefix(prefix)}" for fault in (*faults, *unfit)])
    return SelectedScorers(scorers=tuple(scorers), left_out=(*faults, *unfit))


def _workload_faults(scorer: Scorer, workload: str, registry: Registry) -> list[str]:
    """Return why a scorer cannot grade the answers to this workload."""
    if not scorer.grades_load:
        return []
    kinds = registry.kinds["workload"]
    keys = kinds[workload].reference_keys if workload in kinds else None
    if keys is None or scorer.load_reference in keys:
        return []
    fit = [name for name, kind in kinds.items() if scorer.load_reference in (kind.reference_keys or ())]
    return [
        f"it grades the answers to the load by their {scorer.load_reference}, which workload={workload} does not have; use "
        + " or ".join(f"workload={name}" for name in fit)
    ]


def _kind_faults(scorer: Scorer) -> list[str]:
    kind = kind_named(scorer.settings.api)
    if scorer.grades_load or kind.answers_text or scorer.name == kind.correctness:
        return []
    instead = f"; use quality={kind.correctness}" if kind.correctness else ""
    return [f"it grades texts, and answers to quality.api={kind.name} have none{instead}"]


def _question_path(scorer: Scorer, cache_dir: Path) -> Path:
    """Return the file of a scorer's questions, and download it if needed. Raises ConfigError."""
    if scorer.asks_itself or scorer.grades_load:
        return Path(scorer.settings.path or "")
    if scorer.settings.path is not None:
        return Path(scorer.settings.path).expanduser()
    if isinstance(scorer.source, PackagedFile):
        return question_file(scorer.source, cache_dir)
    if scorer.source is None:
        raise ConfigError("it has no questions of its own; set quality.path to a file")
    return scorer.source


def stored_summaries(folder: RunFolder) -> tuple[QualitySummary, ...]:
    """Return the summaries of a run's stored quality. Raises StoreError."""
    return tuple(summaries(read_quality(folder))) if folder.quality.exists() else ()


def unasked_questions(request: RunRequest) -> list[tuple[Scorer, Path, int]]:
    """Return each scorer, with its questions, and a concurrency at which no answers are stored yet. Raises StoreError."""
    stored = graded_questions(request.folder) if request.quality.scorers else set()
    return [
        (scorer, path, concurrency)
        for scorer, path in request.quality.scorers
        if not scorer.grades_load
        for concurrency in request.settings.quality.concurrency
        if (scorer.name, concurrency) not in stored
    ]


def grade_questions(request: RunRequest, lease: EngineLease) -> None:
    """Ask all questions that have no stored answer, and store the grades of one scorer and concurrency at a time.

    Raises QualityError when a scorer gets no answer (with `quality=all`, when none does: an engine may lack what one of them
    needs), StoreError, EngineError when the engine dies, KeyboardInterrupt.
    """
    failed = 0
    asked = unasked_questions(request)
    first = request.settings.quality.concurrency[0]
    for scorer, path, concurrency in asked:
        cache_error = _empty_cache(request, lease, repeated=concurrency != first)
        if scorer.asks_itself:
            graded = _evaluate(request, lease, scorer, concurrency)
        else:
            graded = _ask_and_grade(request, lease, scorer, path, concurrency)
        _store(request, lease, scorer, graded, concurrency=concurrency, cache_error=cache_error)
        discard_answers(request.folder, scorer.name, concurrency)
        if graded and all(one.answer.error is not None for one in graded):
            failed += 1
            if request.settings.quality.name != ALL or failed == len(asked):
                raise QualityError(
                    f"quality={scorer.name}: none of {len(graded)} questions was answered: {graded[0].answer.error}"
                )


def _empty_cache(request: RunRequest, lease: EngineLease, *, repeated: bool) -> str | None:
    """Empty the engine's prefix cache. If that fails before questions that are `repeated`, return the reason: the answers
    may come from a warm cache."""
    if lease.engine.reset_path is None and not repeated:
        return None
    from servebench.engine.supervisor.endpoint import reset_cache

    reason = reset_cache(lease.engine, lease.running)
    return reason if repeated and request.settings.engine.prefix_caching is not False else None


def grade_load(
    request: RunRequest, lease: EngineLease, level: PlannedPoint, requests: Sequence[Request], records: Sequence[Record]
) -> None:
    """Grade the answers to a point's own requests, with those scorers that ask no questions. Raises StoreError."""
    settings = request.settings
    for scorer, _ in request.quality.scorers:
        if scorer.grades_load:
            graded = scorer.grade_load(requests, records)
            if not graded and settings.quality.name != ALL:
                request.events(Notice("nothing_to_grade", scorer.name, at=settings.workload.name))
            _store(request, lease, scorer, graded, point=level.point, concurrency=level.concurrency, rate=level.rate)


def _store(request: RunRequest, lease: EngineLease, scorer: Scorer, graded: Sequence[Judged], **at: Any) -> None:
    """Store and show grades; `at` says at which point or load the questions were asked. Raises StoreError."""
    import pandas as pd

    at = {"run_id": request.run_id, "emulated": lease.launcher.emulated, "point": None, "rate": None, **at}
    records = [_record(one, scorer, at) for one in graded]
    add_quality(request.folder, records)
    for summary in summaries(pd.DataFrame(records)):
        request.events(Graded(summary))


def _watch(request: RunRequest, lease: EngineLease, scorer: Scorer, concurrency: int) -> Callable[[str], None]:
    """Return a function that shows progress and raises EngineError if the engine has died."""

    def watch(text: str) -> None:
        request.events(Doing("quality", scorer.name, concurrency, text))
        if reason := lease.running.died():
            raise EngineError(reason, kind=FailureKind.DIED)

    return watch


def _ask_and_grade(
    request: RunRequest, lease: EngineLease, scorer: Scorer, path: Path, concurrency: int
) -> list[Judged]:
    quality = scorer.settings
    items = scorer.items(path, quality.count, quality.seed)
    if quality.max_tokens is not None:
        items = [replace(item, max_tokens=quality.max_tokens) for item in items]
    digests = {item.item_id: item.digest for item in items}
    watch = _watch(request, lease, scorer, concurrency)
    with AnswerLog(request.folder, scorer.name, concurrency) as log:
        unanswered = [item for item in items if digests[item.item_id] not in log.known]
        if len(unanswered) < len(items):
            kept = len(items) - len(unanswered)
            request.events(Notice("answers_kept", scorer.name, f"{kept} of {len(items)}", str(concurrency)))
        from servebench.quality.ask import ask

        fresh = ask(
            unanswered,
            _endpoint(request, lease),
            concurrency=concurrency,
            timeout_s=quality.timeout_s,
            api=quality.api,
            dialect=lease.engine.dialect,
            on_answer=lambda item, answer: log.add(digests[item.item_id], answer),
            watch=lambda answered: watch(f"{answered}/{len(unanswered)} answers"),
        )
        answers: Mapping[str, ItemAnswer] = {
            **{item.item_id: log.known[digest] for item in items if (digest := digests[item.item_id]) in log.known},
            **{answer.item_id: answer for answer in fresh},
        }
    request.events(Doing("grading", scorer.name, len(items)))
    return [scorer.judged(item, answers[item.item_id]) for item in items]


def _evaluate(request: RunRequest, lease: EngineLease, scorer: Scorer, concurrency: int) -> Sequence[Judged]:
    items = scorer.settings.items
    request.events(Doing("quality", scorer.name, concurrency))
    with AnswerLog(request.folder, scorer.name, concurrency) as log:
        if log.known:
            request.events(Notice("answers_kept", scorer.name, str(len(log.known)), str(concurrency)))
        endpoint = replace(_endpoint(request, lease), memory=log, watch=_watch(request, lease, scorer, concurrency))
        return scorer.evaluate(endpoint, count=None if items == "all" else items, concurrency=concurrency)


def _endpoint(request: RunRequest, lease: EngineLease) -> Endpoint:
    model = request.settings.model
    return Endpoint(
        base_url=lease.running.base_url,
        model=lease.running.model,
        headers=dict(lease.running.headers),
        query=lease.running.query,
        verify_tls=lease.running.verify_tls,
        names=lease.running.names,
        tokenizer=model.tokenizer or model.path or model.name,
    )


def _record(judged: Judged, scorer: Scorer, at: Mapping[str, Any]) -> QualityRecord:
    item, answer, grade = judged.item, judged.answer, judged.grade
    columns: dict[str, Any] = {name: getattr(item, name) for name in ITEM_COLUMNS}
    columns |= {name: getattr(answer, name) for name in ANSWER_COLUMNS}
    columns |= {name: getattr(grade, name) for name in GRADE_COLUMNS}
    columns |= {name: getattr(scorer.settings, name) for name in SETTING_COLUMNS}
    return QualityRecord(
        **at,
        **columns,
        benchmark=f"{scorer.name}.{item.task}" if (scorer.asks_itself or at["point"]) and item.task else scorer.name,
        item_digest=item.digest,
        reference=item.expected,
        answer=answer.text,
        detail=None if grade.detail is None else orjson.dumps(dict(grade.detail)).decode(),
        method=scorer.method,
    )
