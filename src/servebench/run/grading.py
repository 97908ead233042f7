"""Quality of a run: puts the scorers' questions to the running engine, grades the answers, stores a row for each.

Knows the order in which quality, engine, store and score are used for it, and nothing of how they do their work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from servebench.analysis.rightness import summaries
from servebench.contracts.engine import Engine, RunningEngine
from servebench.contracts.quality import Answer, Endpoint, Grade, Item, Judged, Scorer
from servebench.contracts.request import Request
from servebench.contracts.results import QualityRecord, QualitySummary, Record
from servebench.contracts.settings import QualitySettings, RunSettings
from servebench.engine.admin import reset_cache
from servebench.load.plan.levels import Level
from servebench.quality.ask import ask
from servebench.report.terminal.console import Display
from servebench.run.scorers import ALL, Chosen
from servebench.store import AnswerLog, RunFolder, add_quality, discard_answers, read_quality
from servebench.util.errors import EngineError, QualityError


@dataclass(frozen=True, kw_only=True)
class Grading:
    """What `grade` is asked to do, on which engine."""

    settings: RunSettings
    run_id: str
    folder: RunFolder
    display: Display
    engine: Engine
    running: RunningEngine
    emulated: bool
    chosen: Chosen


def stored_summaries(folder: RunFolder) -> tuple[QualitySummary, ...]:
    """What is stored of a run's quality. Raises StoreError."""
    return tuple(summaries(read_quality(folder)))


def missing(quality: QualitySettings, chosen: Chosen, folder: RunFolder) -> list[tuple[Scorer, Path, int]]:
    """Each scorer with its questions and a concurrency at which they were not all asked yet. Raises StoreError."""
    frame = read_quality(folder)
    frame = frame[frame["point"].isna()]
    names = [str(name).partition(".")[0] for name in frame["benchmark"]]
    done = set(zip(names, (int(level) for level in frame["concurrency"]), strict=True))
    return [
        (scorer, path, level)
        for scorer, path in chosen.scorers
        if not scorer.grades_load
        for level in quality.concurrency
        if (scorer.name, level) not in done
    ]


def grade(asked: Grading) -> None:
    """Ask what was not asked yet, and store it block by block: a benchmark at one concurrency.

    Raises QualityError, StoreError, EngineError when the engine dies, KeyboardInterrupt.
    """
    quality = asked.settings.quality
    for scorer, path, level in missing(quality, asked.chosen, asked.folder):
        if asked.engine.reset_path is not None:
            # the questions of an earlier level would be hits at this one
            reset_cache(asked.engine, asked.running)
        judged = _evaluated(asked, scorer, level) if scorer.asks_itself else _asked(asked, scorer, path, level)
        records = [
            _record(one, scorer, emulated=asked.emulated, run_id=asked.run_id, concurrency=level) for one in judged
        ]
        _store(asked.folder, records, asked.display)
        discard_answers(asked.folder, scorer.name, level)
        if judged and all(one.answer.error is not None for one in judged):
            raise QualityError(
                f"quality={scorer.name}: not one of {len(judged)} questions was answered: {judged[0].answer.error}"
            )


def grade_load(
    chosen: Chosen,
    level: Level,
    requests: Sequence[Request],
    records: Sequence[Record],
    *,
    settings: RunSettings,
    run_id: str,
    folder: RunFolder,
    display: Display,
    emulated: bool,
) -> None:
    """Have the scorers that ask nothing judge what a point's own requests were answered. Raises StoreError."""
    for scorer, _ in chosen.scorers:
        if scorer.grades_load:
            judged = scorer.grade_load(requests, records)
            if not judged and settings.quality.name != ALL:
                display.say(f"quality: {scorer.name} finds nothing to judge in workload={settings.workload.name}")
            at: dict[str, Any] = {"point": level.point, "concurrency": level.concurrency, "rate": level.rate}
            _store(folder, [_record(one, scorer, emulated=emulated, run_id=run_id, **at) for one in judged], display)


def _store(folder: RunFolder, records: Sequence[QualityRecord], display: Display) -> None:
    import pandas as pd

    add_quality(folder, records)
    for own in summaries(pd.DataFrame(records)):
        display.quality(own)


def _told(asked: Grading, label: str) -> Callable[[str], None]:
    def told(words: str) -> None:
        asked.display.status(f"{label} · {words}")
        if gone := asked.running.died():
            raise EngineError(gone, kind="died")

    return told


def _watch(asked: Grading, label: str, planned: int) -> Callable[[int], None]:
    told = _told(asked, label)
    return lambda done: told(f"{done}/{planned} answers")


def _asked(asked: Grading, scorer: Scorer, path: Path, level: int) -> list[Judged]:
    """All answers of a scorer at one concurrency, those that an earlier attempt left among them."""
    quality = scorer.settings
    count = sys.maxsize if quality.items == "all" else quality.items
    items = [_bounded(item, quality) for item in scorer.items(path, count, quality.seed)]
    digests = {item.item_id: item.digest for item in items}
    with AnswerLog(asked.folder, scorer.name, level) as log:
        left = [item for item in items if digests[item.item_id] not in log.known]
        label = f"quality {scorer.name} at concurrency {level}"
        if len(left) < len(items):
            asked.display.say(f"{label}: {len(items) - len(left)} of {len(items)} answers are there already")
        dialect = asked.engine.dialect
        fresh = ask(
            left,
            _endpoint(asked),
            concurrency=level,
            timeout_s=quality.timeout_s,
            api=quality.api,
            path=dialect.chat_path if quality.api == "chat" else dialect.completions_path,
            on_answer=lambda item, answer: log.add(digests[item.item_id], answer),
            watch=_watch(asked, label, len(left)),
        )
        answers: Mapping[str, Answer] = {
            **{item.item_id: log.known[digest] for item in items if (digest := digests[item.item_id]) in log.known},
            **{answer.item_id: answer for answer in fresh},
        }
    asked.display.status(f"grading {len(items)} answers of {scorer.name}")
    return [Judged(item=item, answer=(own := answers[item.item_id]), grade=_grade(scorer, item, own)) for item in items]


def _grade(scorer: Scorer, item: Item, answer: Answer) -> Grade:
    return scorer.grade(item, answer) if answer.error is None else Grade(correct=None, extracted=None)


def _bounded(item: Item, quality: QualitySettings) -> Item:
    return item if quality.max_tokens is None else replace(item, max_tokens=quality.max_tokens)


def _evaluated(asked: Grading, scorer: Scorer, level: int) -> Sequence[Judged]:
    items = scorer.settings.items
    label = f"quality {scorer.name} at concurrency {level}"
    asked.display.status(label)
    with AnswerLog(asked.folder, scorer.name, level) as log:
        if log.known:
            asked.display.say(f"{label}: {len(log.known)} answers are there already")
        endpoint = replace(_endpoint(asked), memory=log, watch=_told(asked, label))
        return scorer.evaluate(endpoint, count=None if items == "all" else items, concurrency=level)


def _endpoint(asked: Grading) -> Endpoint:
    model = asked.settings.model
    return Endpoint(
        base_url=asked.running.base_url,
        model=asked.running.model,
        headers=dict(asked.running.headers),
        verify_tls=asked.running.verify_tls,
        tokenizer=model.tokenizer or model.path or model.name,
    )


def _record(
    one: Judged,
    scorer: Scorer,
    *,
    emulated: bool,
    run_id: str,
    concurrency: int | None,
    rate: float | None = None,
    point: str | None = None,
) -> QualityRecord:
    item, answer, grade = one.item, one.answer, one.grade
    quality = scorer.settings
    return QualityRecord(
        run_id=run_id,
        benchmark=f"{scorer.name}.{item.task}" if (scorer.asks_itself or point) and item.task else scorer.name,
        task=item.task,
        item_id=item.item_id,
        item_digest=item.digest,
        point=point,
        concurrency=concurrency,
        rate=rate,
        correct=grade.correct,
        score=grade.score,
        extracted=grade.extracted,
        reference=item.expected,
        answer=answer.text,
        prompt=item.prompt,
        note=grade.note,
        detail=None if grade.detail is None else orjson.dumps(dict(grade.detail)).decode(),
        outcome=answer.outcome,
        http_status=answer.http_status,
        error=answer.error,
        finish_reason=answer.finish_reason,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        sent_ns=answer.sent_ns,
        ended_ns=answer.ended_ns,
        latency_ms=answer.latency_ms,
        method=scorer.method,
        api=quality.api,
        shots=quality.shots,
        seed=quality.seed,
        max_tokens=item.max_tokens,
        emulated=emulated,
    )
