"""The summary of each benchmark at each load: the share right with its interval, speed, and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from servebench.analysis.estimate import student
from servebench.analysis.quality.paired import MARGIN
from servebench.analysis.quality.parity import BENCHMARK as PARITY
from servebench.analysis.warnings import catalog
from servebench.contracts.results import SUMMED, Doubt, QualitySummary, Thinking
from servebench.util.bounded_file import json_object
from servebench.util.proportions import wilson
from servebench.util.stretches import covered
from servebench.util.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

CHANCE = "chance"
"""The key in a grade's detail of the share that guessing gets right."""
UNANSWERED_SHARE = 0.01
"""With a larger share of failed requests the rest is no longer a sample of the questions."""
UNREAD_SHARE = 0.1
CUT_TOKENS_MIN = 32
"""Answers with a lower limit are meant to be cut: their letter stands at the beginning."""
UNFINISHED: Thinking = "unfinished"
MEANS = {PARITY: "the same alone and under load", "json": "that match their schema"}
"""What `correct` means, by scorer; for all others, that the answer is right."""


def summaries(frame: pd.DataFrame) -> list[QualitySummary]:
    """Return a summary for each benchmark and load of quality.parquet, in the order in which they were asked."""
    if frame.empty:
        return []
    return [_summary(own) for _, own in frame.groupby(["benchmark", "concurrency", "point"], sort=False, dropna=False)]


def _summary(own: pd.DataFrame) -> QualitySummary:
    benchmark = str(own["benchmark"].iloc[0])
    graded = own[own["correct"].notna()]
    n, right = len(graded), int(graded["correct"].astype(bool).sum())
    scores = own["score"].dropna().to_numpy(dtype=np.float64)
    low, high = wilson(right, n) if n else _mean_interval(scores)
    answered = own[_answered(own)]
    latency = answered["latency_ms"].dropna().to_numpy(dtype=np.float64)
    tokens = answered["output_tokens"].dropna().to_numpy(dtype=np.float64)
    # a pause between parts of a study does not count
    seconds = covered(own[["sent_ns", "ended_ns"]].dropna().to_numpy(dtype=np.int64).tolist()) / NS_PER_S
    details = details_of(own["detail"].dropna())
    found = QualitySummary(
        benchmark=benchmark,
        method=str(own["method"].iloc[0]),
        point=plain_value(own["point"].iloc[0]),
        concurrency=whole_value(own["concurrency"].iloc[0]),
        rate=plain_value(own["rate"].iloc[0]),
        n=n or int(scores.size),
        right=right,
        unanswered=len(own) - len(answered),
        unread=int(graded["extracted"].isna().sum()),
        accuracy=right / n if n else None,
        score=float(scores.mean()) if scores.size else None,
        low=low,
        high=high,
        latency_ms_p50=float(np.percentile(latency, 50)) if latency.size else None,
        latency_ms_p99=float(np.percentile(latency, 99)) if latency.size else None,
        output_tokens_mean=float(tokens.mean()) if tokens.size else None,
        seconds=seconds,
        answers_per_s=len(answered) / seconds if seconds else None,
        # equal answers of parity are not answers that a user waits for
        right_per_s=right / seconds if seconds and n and benchmark != PARITY else None,
        emulated=bool(own["emulated"].any()),
        details={key: value for key, value in details.items() if key != CHANCE},
        means=MEANS.get(benchmark.partition(".")[0], "right"),
        with_thinking=int(own["thinking"].notna().sum()),
        unfinished_thinking=int((own["thinking"] == UNFINISHED).sum()),
    )
    return replace(found, doubts=tuple(_warnings(own, found, details.get(CHANCE))))


def _answered(own: pd.DataFrame) -> pd.Series:
    return (own["outcome"] == "ok") & (own["thinking"] != UNFINISHED)


def _mean_interval(scores: Any) -> tuple[float | None, float | None]:
    """Return the 95% interval of a mean of scores from 0 to 1, by Student's t.

    Scores that are all equal do not show their spread: then up to three in n may be anything else (the rule of three).
    """
    if scores.size < 2:
        return None, None
    mean, count = float(scores.mean()), scores.size
    if float(np.ptp(scores)) == 0.0:
        others = min(1.0, 3 / count)
        return mean * (1 - others), mean + (1 - mean) * others
    reach = student(count - 1) * float(scores.std(ddof=1)) / sqrt(count)
    return max(0.0, mean - reach), min(1.0, mean + reach)


def _warnings(own: pd.DataFrame, found: QualitySummary, chance: float | None) -> Iterator[Doubt]:
    benchmark, count, low, high = found.benchmark, found.n, found.low, found.high
    of_load = bool(own["point"].notna().all())
    if count and (low is None or high is None or (high - low) / 2 > MARGIN):
        half = "" if low is None or high is None else f" (±{50 * (high - low):.1f} points)"
        yield catalog.SAMPLE_TOO_SMALL.issue(
            f"{benchmark} rests on {count} question{'' if count == 1 else 's'}{half}: it cannot show differences of "
            f"{100 * MARGIN:g} points",
            remedy="send more requests per point (load.requests)" if of_load else None,
        )
    failed = own[own["outcome"] != "ok"]
    if len(failed) > UNANSWERED_SHARE * len(own):
        errors = failed["error"].dropna()
        why = f": {errors.iloc[0]}" if len(errors) else ""
        yield catalog.UNANSWERED.issue(
            f"{benchmark}: {len(failed)} of {len(own)} questions got no answer{why}",
            remedy="read the errors in requests.parquet" if of_load else None,
            void=len(failed) == len(own),
        )
    if found.unfinished_thinking > UNANSWERED_SHARE * len(own):
        yield catalog.UNFINISHED_THINKING.issue(
            f"{benchmark}: {found.unfinished_thinking} of {len(own)} answers ended inside their thinking",
            void=found.unanswered == len(own),
        )
    ungraded = own[_answered(own) & own["correct"].isna() & own["score"].isna()]
    if len(ungraded) > UNANSWERED_SHARE * len(own):
        notes = ungraded["note"].dropna()
        first = f": {notes.iloc[0]}" if len(notes) else ""
        more = f" (the first of {notes.nunique()} reasons)" if notes.nunique() > 1 else ""
        yield catalog.NOT_JUDGED.issue(
            f"{benchmark}: {len(ungraded)} of {len(own)} answers could not be graded{first}{more}",
            void=len(ungraded) == len(own),
        )
    cut = own[own["finish_reason"] == "length"]
    lost = cut[(cut["correct"] == False) & (cut["max_tokens"] >= CUT_TOKENS_MIN)]  # noqa: E712
    if benchmark != PARITY and len(lost) > UNREAD_SHARE * max(count, 1):
        yield catalog.CUT_OFF.issue(
            f"{benchmark}: {len(lost)} of {count} answers reached the limit of {int(lost['max_tokens'].max())} tokens and "
            "count as wrong"
        )
    if count and found.unread > UNREAD_SHARE * count:
        yield catalog.UNREAD_ANSWERS.issue(
            f"{benchmark}: {found.unread} of {count} answers contain nothing that can be graded and count as wrong; "
            f"{len(cut)} reached the token limit"
        )
    if found.accuracy is not None and chance is not None and (low or 0.0) <= chance <= (high or 0.0):
        yield catalog.AS_BY_CHANCE.issue(
            f"{benchmark}: guessing gets {chance:.0%} right, which lies within the interval: the model may know none"
        )
    errors = own["cache_error"].dropna()
    if len(errors):
        yield catalog.CACHE_NOT_RESET.issue(
            f"{benchmark} at concurrency {found.concurrency}: the prefix cache was not emptied before the questions were asked "
            f"again ({errors.iloc[0]}), so answers may have come faster"
        )


def plain_value(value: Any) -> Any:
    """Return a cell's value; None where it is missing."""
    return None if value is None or value != value else value


def whole_value(value: Any) -> int | None:
    """Return a cell's value as an integer; None where it is missing."""
    return None if plain_value(value) is None else int(value)


def details_of(texts: Iterable[str]) -> dict[str, float]:
    """Return the numbers in the JSON objects that a scorer stored, by key: the mean over the objects that have it.

    Counts of tokens and costs (`_tokens`, `_usd`) are summed. True counts as 1. Keys keep their order of appearance.
    """
    found: dict[str, list[float]] = {}
    for text in texts:
        for key, value in json_object(text).items():
            if isinstance(value, int | float):
                found.setdefault(key, []).append(float(value))
    return {key: sum(values) if key.endswith(SUMMED) else sum(values) / len(values) for key, values in found.items()}
