"""From judged answers to figures: the share right with its interval, how fast right answers came, and what to doubt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from servebench.analysis.agreement import ALPHA, MARGIN, PairedComparison, compare, compare_scores, turned
from servebench.analysis.parity import BENCHMARK as PARITY
from servebench.analysis.warnings.catalog import CACHE_NOT_RESET
from servebench.contracts.results import SUMMED, Doubt, QualitySummary
from servebench.util.proportions import wilson
from servebench.util.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

UNANSWERED_SHARE = 0.01
"""More failed requests than this share, and the rest is no sample of the questions any more."""
UNREAD_SHARE = 0.1
CUT_TOKENS_MIN = 32
"""Answers that are bounded to less are meant to be cut: a letter stands at their beginning."""
MEANS = {PARITY: "the same alone and under load", "json": "that fit their schema"}
"""What `correct` says, by scorer; of all others, that the answer is right."""
CHANCE = "chance"
"""The key in a grade's detail of the share that guessing gets right."""


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
    # what is the same twice is no answer that somebody waits for
    fast = benchmark != PARITY
    details = details_of(own["detail"].dropna())
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
        right_per_s=right / seconds if seconds and n and fast else None,
        emulated=emulated,
        details={key: value for key, value in details.items() if key != CHANCE},
        means=MEANS.get(benchmark.partition(".")[0], "right"),
        doubts=(
            *_doubts(benchmark, own, count, (low, high), unread=unread, unanswered=unanswered),
            *_by_chance(benchmark, accuracy, (low, high), details.get(CHANCE)),
            *_warm_cache(benchmark, own),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Two runs on one benchmark at one load. `comparison` is None where they cannot be compared, and `why` says it.

    `chance` is the share that guessing gets, where neither run is told from it: equal figures mean little then.
    """

    benchmark: str
    at: str
    comparison: PairedComparison | None
    why: str = ""
    chance: float | None = None

    @property
    def finding(self) -> str:
        """In three words, or why not."""
        return self.comparison.finding if self.comparison is not None else "not comparable"

    @property
    def sentence(self) -> str:
        """All in one plain line."""
        told = self.comparison.sentence if self.comparison is not None else f"not comparable: {self.why}"
        if self.chance is not None:
            told += f"; guessing gets {100 * self.chance:.0f}%, and neither is told from it"
        return f"{self.benchmark} at {self.at}: {told}"

    @property
    def second_is_worse(self) -> bool:
        """Whether the second is less right, and that is no chance."""
        one = self.comparison
        if one is None or one.finding != "different":
            return False
        return (one.second_share or 0.0) < (one.first_share or 0.0)

    @property
    def lost(self) -> float:
        """How much less right the second is, as a share of the first; 0 where that may be chance."""
        one = self.comparison
        if one is None or not self.second_is_worse or not one.first_share:
            return 0.0
        return 1 - (one.second_share or 0.0) / one.first_share

    def turned(self) -> Agreement:
        """The same with the sides changed."""
        one = self.comparison
        if one is None:
            return self
        return replace(self, comparison=turned(one))


def agreements(first: pd.DataFrame, second: pd.DataFrame) -> list[Agreement]:
    """Two runs' quality tables, compared question by question: each benchmark at each load that both have.

    Where they share a benchmark at no load, each side's lowest load counts and that is said. With several comparisons
    alpha is divided by their number (Bonferroni), so that one of them being wrong stays as unlikely as it says.
    """
    if first.empty or second.empty:
        return []
    mine, theirs = _blocks(_right_or_wrong(first)), _blocks(_right_or_wrong(second))
    pairs: list[tuple[str, str, pd.DataFrame, pd.DataFrame]] = []
    for benchmark in dict.fromkeys(name for name, _ in mine):
        own = {at: block for (name, at), block in mine.items() if name == benchmark}
        other = {at: block for (name, at), block in theirs.items() if name == benchmark}
        shared = [at for at in own if at in other]
        pairs += [(benchmark, at, own[at], other[at]) for at in shared]
        if other and not shared:
            here, there = next(iter(own)), next(iter(other))
            pairs.append((benchmark, f"{here} against {there}", own[here], other[there]))
    return [_agreement(*pair, alpha=ALPHA / len(pairs)) for pair in pairs]


def _right_or_wrong(frame: pd.DataFrame) -> pd.DataFrame:
    """Without parity: that a run agrees with itself is no answer that another could have got right."""
    return frame[frame["benchmark"] != PARITY]


def _blocks(frame: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Rows by benchmark and load; points of one load together."""
    found = {}
    for _, own in frame.groupby(["benchmark", "concurrency", "rate"], sort=False, dropna=False):
        row = own.iloc[0]
        rate = _known(row["rate"])
        at = f"rate {rate:g}/s" if rate is not None else f"concurrency {_whole(row['concurrency'])}"
        found[(str(row["benchmark"]), at)] = own
    return found


def _agreement(benchmark: str, at: str, first: pd.DataFrame, second: pd.DataFrame, *, alpha: float) -> Agreement:
    methods = [str(side["method"].iloc[0]) for side in (first, second)]
    if methods[0] != methods[1]:
        return Agreement(benchmark=benchmark, at=at, comparison=None, why=f"judged by {methods[0]} and by {methods[1]}")
    keys = [set(side["item_id"] + " " + side["item_digest"]) for side in (first, second)]
    if not keys[0] & keys[1]:
        why = "they were asked other questions: quality.seed, quality.shots, quality.max_tokens or the data differ"
        return Agreement(benchmark=benchmark, at=at, comparison=None, why=why)
    if first["correct"].notna().any() and second["correct"].notna().any():
        right = [{key: value > 0 for key, value in _by_question(side, "correct").items()} for side in (first, second)]
        found = compare(right[0], right[1], alpha=alpha)
        chance = _shared_chance(first, second)
        return Agreement(benchmark=benchmark, at=at, comparison=found, chance=chance)
    scores = [_by_question(side, "score") for side in (first, second)]
    found = compare_scores(scores[0], scores[1], alpha=alpha)
    return Agreement(benchmark=benchmark, at=at, comparison=found)


def _shared_chance(*sides: pd.DataFrame) -> float | None:
    """What guessing gets, where the interval of each side holds it."""
    found = None
    for side in sides:
        found = details_of(side["detail"].dropna()).get(CHANCE)
        judged = side["correct"].dropna().astype(bool)
        low, high = wilson(int(judged.sum()), len(judged))
        if found is None or not low <= found <= high:
            return None
    return found


def _by_question(frame: pd.DataFrame, column: str) -> dict[str, float]:
    """What was judged, by question; one that was asked in several points counts once."""
    judged = frame[frame[column].notna()]
    keys = judged["item_id"] + " " + judged["item_digest"]
    return dict(zip(keys, judged[column].astype(float), strict=True))


def _known(value: Any) -> Any:
    """The value; None for a cell that is missing."""
    return None if value is None or value != value else value


def _whole(value: Any) -> int | None:
    return None if _known(value) is None else int(value)


def details_of(texts: Iterable[str]) -> dict[str, float]:
    """The numbers in the JSON objects that a scorer kept, by their key: the mean over those that have it; of counts of
    tokens and of costs (`_tokens`, `_usd`) the sum. True counts as 1. The keys are in the order in which they come."""
    found: dict[str, list[float]] = {}
    for text in texts:
        for key, value in json.loads(text).items():
            if isinstance(value, int | float):
                found.setdefault(key, []).append(float(value))
    return {key: sum(values) if key.endswith(SUMMED) else sum(values) / len(values) for key, values in found.items()}


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
    """The 95 % interval of a mean of scores from 0 to 1, by Student's t. Scores that are all the same say nothing of their
    spread: then as many as three in n may be anything else (the rule of three)."""
    if scores.size < 2:
        return None, None
    from scipy.special import stdtrit

    mean, count = float(scores.mean()), scores.size
    if float(np.ptp(scores)) == 0.0:
        others = min(1.0, 3 / count)
        return mean * (1 - others), mean + (1 - mean) * others
    reach = float(stdtrit(count - 1, 0.975)) * float(scores.std(ddof=1)) / sqrt(count)
    return max(0.0, mean - reach), min(1.0, mean + reach)


def _by_chance(
    benchmark: str, accuracy: float | None, interval: tuple[float | None, float | None], chance: float | None
) -> Iterator[Doubt]:
    low, high = interval
    if None not in (accuracy, low, high, chance) and low <= chance <= high:  # type: ignore[operator]
        yield Doubt(
            code="as_by_chance",
            message=f"{benchmark}: guessing gets {100 * (chance or 0):.0f} % right, which the interval holds: this model may "
            "know none of it",
            remedy="whether an engine spoils its answers cannot be seen in it; ask a larger model, or quality=parity",
            mark=True,
        )


def _warm_cache(benchmark: str, own: pd.DataFrame) -> Iterator[Doubt]:
    # files of earlier versions have no such column
    errors = own["cache_error"].dropna() if "cache_error" in own else None
    if errors is not None and len(errors):
        yield CACHE_NOT_RESET.issue(
            f"{benchmark} at concurrency {_whole(own['concurrency'].iloc[0])}: the prefix cache was not emptied although the "
            f"questions had been asked before ({errors.iloc[0]}), so answers may have come faster"
        )


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
    of_load = bool(own["point"].notna().all())
    if count and (low is None or high is None or (high - low) / 2 > MARGIN):
        noun = "question" if count == 1 else "questions"
        reach = "" if low is None or high is None else f" (± {50 * (high - low):.1f} points)"
        found.append(
            Doubt(
                code="sample_too_small",
                message=f"{benchmark} rests on {count} {noun}{reach}: differences of {100 * MARGIN:g} points do not show",
                remedy="send more requests a point (load.requests)"
                if of_load
                else "raise quality.items (all asks every question that there is), or name a larger file with quality.path",
            )
        )
    if unanswered > UNANSWERED_SHARE * len(own):
        errors = own.loc[own["outcome"] != "ok", "error"].dropna()
        why = f": {errors.iloc[0]}" if len(errors) else ""
        found.append(
            Doubt(
                code="unanswered",
                message=f"{benchmark}: {unanswered} of {len(own)} questions got no answer{why}",
                remedy="they count neither as right nor as wrong; "
                + ("see requests.parquet" if of_load else "lower quality.concurrency or raise quality.timeout_s"),
                void=unanswered == len(own),
            )
        )
    unjudged = own[(own["outcome"] == "ok") & own["correct"].isna() & own["score"].isna()]
    if len(unjudged) > UNANSWERED_SHARE * len(own):
        notes = unjudged["note"].dropna()
        found.append(
            Doubt(
                code="not_judged",
                message=f"{benchmark}: {len(unjudged)} of {len(own)} answers could not be judged"
                + (f": {notes.iloc[0]}" if len(notes) else "")
                + (f" (the first of {notes.nunique()} reasons)" if notes.nunique() > 1 else ""),
                remedy="they count neither as right nor as wrong; see note in quality.parquet",
                void=len(unjudged) == len(own),
            )
        )
    cut = int((own["finish_reason"] == "length").sum())
    lost = own[(own["finish_reason"] == "length") & (own["correct"] == False) & (own["max_tokens"] >= CUT_TOKENS_MIN)]  # noqa: E712
    if benchmark != PARITY and len(lost) > UNREAD_SHARE * max(count, 1):
        found.append(
            Doubt(
                code="cut_off",
                message=f"{benchmark}: {len(lost)} of {count} answers were cut off at their length "
                f"({int(lost['max_tokens'].max())} tokens at most) and count as wrong",
                remedy=("raise workload.output_tokens" if of_load else "raise quality.max_tokens")
                + "; a model that never ends is wrong all the same, so read some in quality.parquet",
            )
        )
    if count and unread > UNREAD_SHARE * count:
        found.append(
            Doubt(
                code="unread_answers",
                message=f"{benchmark}: {unread} of {count} answers hold nothing that could be graded and count as wrong; "
                f"{cut} were cut off",
                remedy="read them in quality.parquet; a model that explains needs a higher "
                + ("workload.output_tokens" if of_load else "quality.max_tokens"),
            )
        )
    return found
