"""Whether two runs differ on the same benchmark questions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from servebench.analysis.quality.paired import ALPHA, PairedComparison, compare_answers, compare_scores
from servebench.analysis.quality.parity import BENCHMARK as PARITY
from servebench.analysis.quality.summary import CHANCE, details_of, plain_value, whole_value
from servebench.util.proportions import wilson

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Two runs on one benchmark at one load. `comparison` is None where they cannot be compared: they were graded by `methods`
    that differ, or, without these, were asked different questions.

    `chance` is the share right by guessing where neither run is better than that: equal scores mean little then.
    """

    benchmark: str
    at: str
    comparison: PairedComparison | None
    methods: tuple[str, ...] = ()
    chance: float | None = None

    @property
    def finding(self) -> str:
        """The finding of the comparison, or that there is none."""
        return self.comparison.finding if self.comparison is not None else "not comparable"

    @property
    def second_is_worse(self) -> bool:
        """Whether the second run is significantly less accurate."""
        one = self.comparison
        if one is None or one.finding != "different":
            return False
        return (one.second_share or 0.0) < (one.first_share or 0.0)

    @property
    def lost(self) -> float:
        """How much less accurate the second run is, as a share of the first; 0 where that may be chance."""
        one = self.comparison
        if one is None or not self.second_is_worse or not one.first_share:
            return 0.0
        return 1 - (one.second_share or 0.0) / one.first_share

    def swapped(self) -> Agreement:
        """Return the same agreement with the sides swapped."""
        return self if self.comparison is None else replace(self, comparison=self.comparison.swapped())


def agreements(first: pd.DataFrame, second: pd.DataFrame) -> list[Agreement]:
    """Compare two runs' quality tables question by question, each benchmark at each load that both have.

    Where they share no load for a benchmark, the first load of each is compared and named. With several comparisons
    alpha is divided by their number (Bonferroni).
    """
    if first.empty or second.empty:
        return []
    ours, theirs = _by_benchmark_and_load(first), _by_benchmark_and_load(second)
    pairs: list[tuple[str, str, pd.DataFrame, pd.DataFrame]] = []
    for benchmark in dict.fromkeys(name for name, _ in ours):
        own = {at: block for (name, at), block in ours.items() if name == benchmark}
        other = {at: block for (name, at), block in theirs.items() if name == benchmark}
        shared = [at for at in own if at in other]
        pairs += [(benchmark, at, own[at], other[at]) for at in shared]
        if other and not shared:
            here, there = next(iter(own)), next(iter(other))
            pairs.append((benchmark, f"{here} vs {there}", own[here], other[there]))
    return [_agreement(*pair, alpha=ALPHA / len(pairs)) for pair in pairs]


def _by_benchmark_and_load(frame: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Rows by benchmark and load, points of one load together; without parity, whose answers are not right or wrong."""
    found = {}
    frame = frame[frame["benchmark"] != PARITY]
    for _, own in frame.groupby(["benchmark", "concurrency", "rate"], sort=False, dropna=False):
        row = own.iloc[0]
        rate, users = plain_value(row["rate"]), whole_value(row["concurrency"])
        found[str(row["benchmark"]), f"concurrency {users}" if rate is None else f"rate {rate:g}/s"] = own
    return found


def _agreement(benchmark: str, at: str, first: pd.DataFrame, second: pd.DataFrame, *, alpha: float) -> Agreement:
    methods = [str(side["method"].iloc[0]) for side in (first, second)]
    if methods[0] != methods[1]:
        return Agreement(benchmark=benchmark, at=at, comparison=None, methods=tuple(methods))
    keys = [set(side["item_id"] + " " + side["item_digest"]) for side in (first, second)]
    if not keys[0] & keys[1]:
        return Agreement(benchmark=benchmark, at=at, comparison=None)
    if first["correct"].notna().any() and second["correct"].notna().any():
        right = [{key: value > 0 for key, value in _by_question(side, "correct").items()} for side in (first, second)]
        found = compare_answers(right[0], right[1], alpha=alpha)
        return Agreement(benchmark=benchmark, at=at, comparison=found, chance=_shared_chance(first, second))
    scores = [_by_question(side, "score") for side in (first, second)]
    return Agreement(benchmark=benchmark, at=at, comparison=compare_scores(scores[0], scores[1], alpha=alpha))


def _shared_chance(*sides: pd.DataFrame) -> float | None:
    """Return the share right by guessing, where the interval of each side contains it."""
    found = None
    for side in sides:
        found = details_of(side["detail"].dropna()).get(CHANCE)
        graded = side["correct"].dropna().astype(bool)
        low, high = wilson(int(graded.sum()), len(graded))
        if found is None or not low <= found <= high:
            return None
    return found


def _by_question(frame: pd.DataFrame, column: str) -> dict[str, float]:
    """Return the grades by question; one that was asked in several points counts once."""
    graded = frame[frame[column].notna()]
    keys = graded["item_id"] + " " + graded["item_digest"]
    return dict(zip(keys, graded[column].astype(float), strict=True))
