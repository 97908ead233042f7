"""Tests of two engines on the same questions.

Nothing here knows what a question is: an answer is right or wrong, or has a score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Literal

from servebench.contracts.estimate import Z_95

ALPHA = 0.05
POWER = 0.8
MARGIN = 0.05
"""Two engines count as not different when the interval of their difference stays within this share."""
PAIRS_MIN = 30
"""Below this many pairs of scores the normal approximation is not valid."""

Finding = Literal["different", "not different", "too small to tell"]


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Two engines on the same questions. Shares are between 0 and 1, or mean scores where `scores` is set; where they are
    too few, `n_needed` is the number of questions with which a difference of MARGIN would be found. The observed difference
    does not enter: it is what is not known yet (Hoenig and Heisey 2001, Am. Stat. 55)."""

    n: int
    first_share: float | None
    second_share: float | None
    p_value: float
    finding: Finding
    n_needed: int | None
    scores: bool = False

    def swapped(self) -> PairedComparison:
        """Return the same comparison with the sides swapped."""
        return replace(self, first_share=self.second_share, second_share=self.first_share)


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test, from the questions that only one engine got right.

    This is the binomial test of the discordant pairs at one half; 1.0 without any.
    """
    from scipy.stats import binomtest

    pairs = only_first + only_second
    return float(binomtest(only_first, pairs, 0.5).pvalue) if pairs else 1.0


def questions_needed(discordant: float, difference: float, *, alpha: float = ALPHA) -> int:
    """Return how many questions McNemar's test needs to find `difference` (a share) if `discordant` of the pairs differ.

    Connor, Biometrics 43 (1987). Raises ValueError when the difference is 0 or larger than the discordant share.
    """
    gap = abs(difference)
    if not 0 < gap <= discordant <= 1:
        raise ValueError(f"need 0 < difference <= discordant <= 1, got {difference} and {discordant}")
    z_alpha, z_power = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(POWER)
    return ceil((z_alpha * sqrt(discordant) + z_power * sqrt(discordant - gap * gap)) ** 2 / (gap * gap))


def _nothing_in_common(n: int, *, scores: bool = False) -> PairedComparison:
    return PairedComparison(
        n=n, first_share=None, second_share=None, p_value=1.0, finding="too small to tell", n_needed=None, scores=scores
    )


def compare_answers(first: Mapping[str, bool], second: Mapping[str, bool], *, alpha: float = ALPHA) -> PairedComparison:
    """Compare right and wrong answers by question id; only questions that both answered count.

    Different: McNemar's exact p is below `alpha`. Not different: the 95% interval of the paired difference (Agresti and
    Min, Statistics in Medicine 24 (2005), half an answer added to each kind of pair) lies within MARGIN.
    Otherwise the sample is too small.
    """
    shared = sorted(first.keys() & second.keys())
    n = len(shared)
    if n == 0:
        return _nothing_in_common(n)
    only_first = sum(first[key] and not second[key] for key in shared)
    only_second = sum(second[key] and not first[key] for key in shared)
    p_value = mcnemar(only_first, only_second)
    low, high = _difference_interval(only_first, only_second, n)
    needed: int | None = None
    finding: Finding
    if p_value < alpha:
        finding = "different"
    elif low >= -MARGIN and high <= MARGIN:
        finding = "not different"
    else:
        finding = "too small to tell"
        needed = max(questions_needed(max((only_first + only_second) / n, MARGIN), MARGIN, alpha=alpha), n + 1)
    return PairedComparison(
        n=n,
        first_share=sum(first[key] for key in shared) / n,
        second_share=sum(second[key] for key in shared) / n,
        p_value=p_value,
        finding=finding,
        n_needed=needed,
    )


def compare_scores(
    first: Mapping[str, float], second: Mapping[str, float], *, alpha: float = ALPHA
) -> PairedComparison:
    """Compare scores from 0 to 1 by question id: a paired comparison of means by the normal approximation."""
    shared = sorted(first.keys() & second.keys())
    n = len(shared)
    if n < 2:
        return _nothing_in_common(n, scores=True)
    gaps = [first[key] - second[key] for key in shared]
    gap, deviation = fmean(gaps), stdev(gaps)
    error = deviation / sqrt(n)
    p_value = 2 * (1 - NormalDist().cdf(abs(gap) / error)) if error else (0.0 if gap else 1.0)
    needed: int | None = None
    finding: Finding
    if p_value < alpha and n >= PAIRS_MIN:
        finding = "different"
    elif abs(gap) + Z_95 * error <= MARGIN and n >= PAIRS_MIN:
        finding = "not different"
    else:
        finding = "too small to tell"
        z_alpha, z_power = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(POWER)
        needed = max(ceil(((z_alpha + z_power) * deviation / MARGIN) ** 2), n + 1, PAIRS_MIN)
    return PairedComparison(
        n=n,
        first_share=fmean(first[key] for key in shared),
        second_share=fmean(second[key] for key in shared),
        p_value=p_value,
        finding=finding,
        n_needed=needed,
        scores=True,
    )


def _difference_interval(only_first: int, only_second: int, n: int) -> tuple[float, float]:
    b, c, total = only_first + 0.5, only_second + 0.5, n + 2
    middle = (b - c) / total
    half = Z_95 * sqrt(max(b + c - (b - c) ** 2 / total, 0.0)) / total
    return middle - half, middle + half
