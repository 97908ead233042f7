"""From judged answers to figures: the share right with its interval, how fast right answers came, and what to doubt."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from servebench.contracts.results import Doubt, QualitySummary
from servebench.score.agreement import MARGIN
from servebench.shares import wilson
from servebench.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

UNANSWERED_SHARE = 0.01
"""More failed requests than this share, and the rest is no sample of the questions any more."""
UNREAD_SHARE = 0.1
Z = NormalDist().inv_cdf(0.975)


def summaries(frame: pd.DataFrame) -> list[QualitySummary]:
    """A summary for each benchmark and concurrency of quality.parquet, in the order in which they were asked."""
    if frame.empty:
        return []
    return [_summary(own) for _, own in frame.groupby(["benchmark", "concurrency", "point"], sort=False, dropna=False)]


def _summary(own: pd.DataFrame) -> QualitySummary:
    benchmark = str(own["benchmark"].iloc[0])
    judged = own[own["correct"].notna()]
    n, right = len(judged), int(judged["correct"].astype(bool).sum())
    scores = own["score"].dropna().to_numpy(dtype=np.float64)
    accuracy = right / n if n else None
    score = float(scores.mean()) if scores.size else None
    low, high = wilson(right, n) if n else _mean_interval(scores)
    answered = own[own["outcome"] == "ok"]
    latency = answered["latency_ms"].dropna().to_numpy(dtype=np.float64)
    tokens = answered["output_tokens"].dropna().to_numpy(dtype=np.float64)
    seconds = busy_s(own)
    unread = int(judged["extracted"].isna().sum())
    unanswered = len(own) - len(answered)
    emulated = bool(own["emulated"].any())
    count = n or int(scores.size)
    return QualitySummary(
        benchmark=benchmark,
        method=str(own["method"].iloc[0]),
        point=_known(own["point"].iloc[0]),
        concurrency=_whole(own["concurrency"].iloc[0]),
        rate=_known(own["rate"].iloc[0]),
        n=count,
        right=right,
        unanswered=unanswered,
        unread=unread,
        accuracy=accuracy,
        score=score,
        low=low,
        high=high,
        latency_ms_p50=float(np.percentile(latency, 50)) if latency.size else None,
        latency_ms_p99=float(np.percentile(latency, 99)) if latency.size else None,
        output_tokens_mean=float(tokens.mean()) if tokens.size else None,
        seconds=seconds,
        answers_per_s=len(answered) / seconds if seconds else None,
        right_per_s=right / seconds if seconds and n else None,
        emulated=emulated,
        doubts=tuple(_doubts(benchmark, own, count, (low, high), unread=unread, unanswered=unanswered)),
    )


def _known(value: Any) -> Any:
    """The value; None for a cell that is missing."""
    return None if value is None or value != value else value


def _whole(value: Any) -> int | None:
    return None if _known(value) is None else int(value)


def busy_s(own: pd.DataFrame) -> float:
    """Seconds in which at least one question was in flight: a pause between two parts of a study does not count."""
    spans = own[["sent_ns", "ended_ns"]].dropna().to_numpy(dtype=np.int64)
    total, reached = 0, None
    for sent, ended in spans[np.argsort(spans[:, 0])].tolist() if len(spans) else []:
        begin = sent if reached is None else max(sent, reached)
        total += max(0, ended - begin)
        reached = ended if reached is None else max(reached, ended)
    return total / NS_PER_S


def _mean_interval(scores: Any) -> tuple[float | None, float | None]:
    """The 95 % interval of a mean of scores from 0 to 1, by the normal approximation."""
    if scores.size < 2:
        return None, None
    reach = Z * float(scores.std(ddof=1)) / sqrt(scores.size)
    return max(0.0, float(scores.mean()) - reach), min(1.0, float(scores.mean()) + reach)


def _doubts(
    benchmark: str,
    own: pd.DataFrame,
    count: int,
    interval: tuple[float | None, float | None],
    *,
    unread: int,
    unanswered: int,
) -> Sequence[Doubt]:
    found = []
    low, high = interval
    if count and (low is None or high is None or (high - low) / 2 > MARGIN):
        reach = "" if low is None or high is None else f" (± {50 * (high - low):.1f} points)"
        found.append(
            Doubt(
                code="sample_too_small",
                message=f"{benchmark} rests on {count} questions{reach}: differences of {100 * MARGIN:g} points do not show",
                remedy="raise quality.items",
            )
        )
    if unanswered > UNANSWERED_SHARE * len(own):
        errors = own.loc[own["outcome"] != "ok", "error"].dropna()
        why = f": {errors.iloc[0]}" if len(errors) else ""
        found.append(
            Doubt(
                code="unanswered",
                message=f"{benchmark}: {unanswered} of {len(own)} questions got no answer{why}",
                remedy="they count neither as right nor as wrong; lower quality.concurrency or raise quality.timeout_s",
                void=unanswered == len(own),
            )
        )
    if count and unread > UNREAD_SHARE * count:
        cut = int((own["finish_reason"] == "length").sum())
        found.append(
            Doubt(
                code="unread_answers",
                message=f"{benchmark}: {unread} of {count} answers hold nothing that could be graded and count as wrong; "
                f"{cut} were cut off",
                remedy="read them in quality.parquet; a model that explains needs a higher quality.max_tokens",
            )
        )
    return found
