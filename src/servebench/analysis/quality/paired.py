"""Tests of two engines on the same questions.

Nothing here knows what a question is: an answer is right or wrong, or has a score.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Literal, Self

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

    def swapped(self) -> Self:
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


def compare_answers(first: Mapping[str, bool], second: Mapping[str, bool], *, alpha: float = ALPHA) -> PairedComparison:
    """Compare right and wrong answers by question id; only questions that both answered count.

    Different: McNemar's exact p is below `alpha`. Not different: the 95% interval of the paired difference (Agresti and
    Min, Statistics in Medicine 24 (2005), half an answer added to each kind of pair) lies within MARGIN.
    Otherwise the sample is too small.
    """
    pairs = _shared(first, second)
    if not pairs:
        return _compared(pairs, 1.0, "too small to tell")
    only_first, only_second = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    p_value, n = mcnemar(only_first, only_second), len(pairs)
    b, c, total = only_first + 0.5, only_second + 0.5, n + 2
    reach = abs(b - c) / total + Z_95 * sqrt(max(b + c - (b - c) ** 2 / total, 0.0)) / total
    if p_value < alpha:
        return _compared(pairs, p_value, "different")
    if reach <= MARGIN:
        return _compared(pairs, p_value, "not different")
    needed = questions_needed(max((only_first + only_second) / n, MARGIN), MARGIN, alpha=alpha)
    return _compared(pairs, p_value, "too small to tell", needed)


def compare_scores(
    first: Mapping[str, float], second: Mapping[str, float], *, alpha: float = ALPHA
) -> PairedComparison:
    """Compare scores from 0 to 1 by question id: a paired comparison of means by the normal approximation."""
    pairs = _shared(first, second)
    if len(pairs) < 2:
        return replace(_compared([], 1.0, "too small to tell", scores=True), n=len(pairs))
    gaps = [a - b for a, b in pairs]
    gap, deviation = fmean(gaps), stdev(gaps)
    error = deviation / sqrt(len(pairs))
    p_value = 2 * (1 - NormalDist().cdf(abs(gap) / error)) if error else (0.0 if gap else 1.0)
    if p_value < alpha and len(pairs) >= PAIRS_MIN:
        return _compared(pairs, p_value, "different", scores=True)
    if abs(gap) + Z_95 * error <= MARGIN and len(pairs) >= PAIRS_MIN:
        return _compared(pairs, p_value, "not different", scores=True)
    z_alpha, z_power = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(POWER)
    needed = max(ceil(((z_alpha + z_power) * deviation / MARGIN) ** 2), PAIRS_MIN)
    return _compared(pairs, p_value, "too small to tell", needed, scores=True)


def _shared(first: Mapping[str, float], second: Mapping[str, float]) -> list[tuple[float, float]]:
    return [(first[key], second[key]) for key in sorted(first.keys() & second.keys())]


def _compared(
    pairs: Sequence[tuple[float, float]],
    p_value: float,
    finding: Finding,
    needed: int | None = None,
    *,
    scores: bool = False,
) -> PairedComparison:
    means = [fmean(side) for side in zip(*pairs, strict=True)] if pairs else [None, None]
    more = None if needed is None else max(needed, len(pairs) + 1)
    return PairedComparison(
        n=len(pairs),
        first_share=means[0],
        second_share=means[1],
        p_value=p_value,
        finding=finding,
        n_needed=more,
        scores=scores,
    )
