"""Right and wrong answers: whether two engines differ on the same questions.

Nothing here knows what a question is: an answer is right or wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, comb, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Literal

ALPHA = 0.05
POWER = 0.8
MARGIN = 0.05
"""Two engines count as not different when the interval of their difference stays within this much, as a share."""

PAIRS_MIN = 30
"""Fewer pairs of scores than this tell nothing by the normal approximation."""

Finding = Literal["different", "not different", "too small to tell"]


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided p-value of McNemar's exact test, from the questions that only one of two engines got right.

    The binomial test of the discordant pairs at one half; 1.0 without any.
    """
    pairs = only_first + only_second
    if pairs == 0:
        return 1.0
    tail = sum(comb(pairs, k) for k in range(min(only_first, only_second) + 1))
    return float(min(1.0, 2 * tail / 2**pairs))


def questions_needed(discordant: float, difference: float, *, alpha: float = ALPHA, power: float = POWER) -> int:
    """Questions for McNemar's test to find `difference` (a share) when `discordant` of the pairs differ.

    Connor, Biometrics 43 (1987). Raises ValueError when the difference is 0 or over the discordant share.
    """
    gap = abs(difference)
    if not 0 < gap <= discordant <= 1:
        raise ValueError(f"need 0 < difference <= discordant <= 1, got {difference} and {discordant}")
    z_alpha, z_power = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(power)
    return ceil((z_alpha * sqrt(discordant) + z_power * sqrt(discordant - gap * gap)) ** 2 / (gap * gap))


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Two engines on the same questions. Shares are between 0 and 1; `n_needed` only when too small to tell."""

    n: int
    first_share: float | None
    second_share: float | None
    p_value: float
    finding: Finding
    n_needed: int | None
    scores: bool = False
    """Whether the shares are mean scores."""

    @property
    def sentence(self) -> str:
        """In one plain line."""
        if self.first_share is None or self.second_share is None:
            return f"{self.finding}: {self.n or 'no'} question{'s were' if self.n > 1 else ' was'} answered by both"
        first, second = (f"{s:.3f}" if self.scores else f"{s:.1%}" for s in (self.first_share, self.second_share))
        figures = f"{first} against {second} on {self.n} questions, p = {self.p_value:.2g}"
        tail = f"; about {self.n_needed} questions would be needed" if self.n_needed else ""
        return f"{self.finding}: {figures}{tail}"


def turned(one: PairedComparison) -> PairedComparison:
    """The same with the sides changed."""
    return replace(one, first_share=one.second_share, second_share=one.first_share)


def compare(first: Mapping[str, bool], second: Mapping[str, bool], *, alpha: float = ALPHA) -> PairedComparison:
    """Compare right and wrong answers by question id; only questions that both answered count.

    Different: McNemar's exact p under `alpha`. Not different: the 95 % interval of the paired difference (Agresti and
    Min, Statistics in Medicine 24 (2005), half an answer added to each kind of pair) lies within MARGIN.
    Else the sample is too small, and `n_needed` is what it would take.
    """
    shared = sorted(first.keys() & second.keys())
    n = len(shared)
    if n == 0:
        return PairedComparison(
            n=0,
            first_share=None,
            second_share=None,
            p_value=1.0,
            finding="too small to tell",
            n_needed=None,
        )
    only_first = sum(first[key] and not second[key] for key in shared)
    only_second = sum(second[key] and not first[key] for key in shared)
    first_share = sum(first[key] for key in shared) / n
    second_share = sum(second[key] for key in shared) / n
    p_value = mcnemar(only_first, only_second)
    low, high = _difference(only_first, only_second, n)
    needed: int | None = None
    finding: Finding
    if p_value < alpha:
        finding = "different"
    elif low >= -MARGIN and high <= MARGIN:
        finding = "not different"
    else:
        finding = "too small to tell"
        gap = abs(only_first - only_second) / n
        if gap:
            needed = max(questions_needed((only_first + only_second) / n, gap, alpha=alpha), n + 1)
        else:
            discordant = max((only_first + only_second) / n, MARGIN)
            needed = max(questions_needed(discordant, MARGIN, alpha=alpha), n + 1)
    return PairedComparison(
        n=n,
        first_share=first_share,
        second_share=second_share,
        p_value=p_value,
        finding=finding,
        n_needed=needed,
    )


def compare_scores(
    first: Mapping[str, float], second: Mapping[str, float], *, alpha: float = ALPHA
) -> PairedComparison:
    """The same for scores from 0 to 1: a paired comparison of means by the normal approximation."""
    shared = sorted(first.keys() & second.keys())
    n = len(shared)
    if n < 2:
        return PairedComparison(
            n=n,
            first_share=None,
            second_share=None,
            p_value=1.0,
            finding="too small to tell",
            n_needed=None,
            scores=True,
        )
    gaps = [first[key] - second[key] for key in shared]
    first_share, second_share = fmean(first[key] for key in shared), fmean(second[key] for key in shared)
    gap, spread = fmean(gaps), stdev(gaps)
    error = spread / sqrt(n)
    p_value = 2 * (1 - NormalDist().cdf(abs(gap) / error)) if error else (0.0 if gap else 1.0)
    z_alpha, z_power = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(POWER)
    reach = NormalDist().inv_cdf(0.975) * error
    needed: int | None = None
    finding: Finding
    # under thirty pairs the normal approximation says too much
    if p_value < alpha and n >= PAIRS_MIN:
        finding = "different"
    elif abs(gap) + reach <= MARGIN and n >= PAIRS_MIN:
        finding = "not different"
    else:
        finding = "too small to tell"
        needed = max(ceil(((z_alpha + z_power) * spread / (abs(gap) or MARGIN)) ** 2), n + 1, PAIRS_MIN)
    return PairedComparison(
        n=n,
        first_share=first_share,
        second_share=second_share,
        p_value=p_value,
        finding=finding,
        n_needed=needed,
        scores=True,
    )


def _difference(only_first: int, only_second: int, n: int) -> tuple[float, float]:
    z = NormalDist().inv_cdf(0.975)
    b, c, total = only_first + 0.5, only_second + 0.5, n + 2
    middle = (b - c) / total
    half = z * sqrt(max(b + c - (b - c) ** 2 / total, 0.0)) / total
    return middle - half, middle + half
