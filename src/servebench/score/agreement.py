"""Right and wrong answers: whether two engines differ on the same questions.

Nothing here knows what a question is: an answer is right or wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, comb, sqrt
from statistics import NormalDist
from typing import Literal

ALPHA = 0.05
POWER = 0.8
MARGIN = 0.05
"""Two engines count as not different when the interval of their difference stays within this much, as a share."""

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
class Comparison:
    """Two engines on the same questions. Shares are between 0 and 1; `n_needed` only when too small to tell."""

    n: int
    first_share: float | None
    second_share: float | None
    p_value: float
    finding: Finding
    n_needed: int | None
    sentence: str


def compare(first: Mapping[str, bool], second: Mapping[str, bool], *, alpha: float = ALPHA) -> Comparison:
    """Compare right and wrong answers by question id; only questions that both answered count.

    Different: McNemar's exact p under `alpha`. Not different: the 95 % interval of the paired difference (Agresti and
    Min, Statistics in Medicine 24 (2005), half an answer added to each kind of pair) lies within MARGIN.
    Else the sample is too small, and `n_needed` is what it would take.
    """
    shared = sorted(first.keys() & second.keys())
    n = len(shared)
    if n == 0:
        return Comparison(
            n=0,
            first_share=None,
            second_share=None,
            p_value=1.0,
            finding="too small to tell",
            n_needed=None,
            sentence="too small to tell: no question was answered by both",
        )
    only_first = sum(first[key] and not second[key] for key in shared)
    only_second = sum(second[key] and not first[key] for key in shared)
    first_share = sum(first[key] for key in shared) / n
    second_share = sum(second[key] for key in shared) / n
    p_value = mcnemar(only_first, only_second)
    figures = f"{first_share:.1%} against {second_share:.1%} on {n} questions, p = {p_value:.2g}"
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
    tail = f"; about {needed} questions would be needed" if needed else ""
    return Comparison(
        n=n,
        first_share=first_share,
        second_share=second_share,
        p_value=p_value,
        finding=finding,
        n_needed=needed,
        sentence=f"{finding}: {figures}{tail}",
    )


def _difference(only_first: int, only_second: int, n: int) -> tuple[float, float]:
    z = NormalDist().inv_cdf(0.975)
    b, c, total = only_first + 0.5, only_second + 0.5, n + 2
    middle = (b - c) / total
    half = z * sqrt(max(b + c - (b - c) ** 2 / total, 0.0)) / total
    return middle - half, middle + half
