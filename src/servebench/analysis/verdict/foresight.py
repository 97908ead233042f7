"""How many starts a gate will take, by how much starts differed before: what a study can say before it measures."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, fmean

import numpy as np

from servebench.analysis.start_model import ERROR_LEAST, SLOW_SIDES, StartModel, Starts
from servebench.analysis.verdict.gate import GATED, GateQuestion
from servebench.analysis.verdict.looks import TTFT, TTFT_STARTS_MIN, WITHIN_SPENT
from servebench.analysis.verdict.model import Metric
from servebench.analysis.verdict.reasons import Method, MethodKind
from servebench.analysis.verdict.starts import OverStarts
from servebench.contracts.level import Level
from servebench.contracts.precision import LOOKS

PASSED = 0.95
"""How often equal engines are to pass."""
ROOM = 0.85
"""The share of the limit that is planned with: starts may differ more than those that are known (docs/precision.md)."""
USUAL_RATIO = 0.5
"""The variance between starts by that of points of one start, before anything is known."""
NORMAL = NormalDist()


def starts_to_pass(
    known: Mapping[str, Sequence[Starts]], question: GateQuestion, looks: Iterable[int] = LOOKS
) -> int | None:
    """Return after how many starts of each equal engines pass in PASSED of studies, by `known` starts of each metric; None where
    nothing is known, or the looks do not suffice.

    The interval of a look is that of starts which differ as the known ones do (normal scores), and the difference that is
    measured has their error.
    """
    asked = [(GATED[name], known[name], level) for name in GATED if name in known for level in known[name][0].levels]
    asked = [one for one in asked if question.asks(one[0], one[2], _error(*one[1:]))]
    most = (count for count in looks if count > 1 and all(_passes(*one, count, question.limit) for one in asked))
    return next(most, None) if asked else None


def another_start_pays(cold_s: float, load_s: float, known: Sequence[Starts] = ()) -> bool:
    """Return whether another start, with its load, makes a comparison more exact than points that are longer by the time that it
    takes, by `known` starts of a metric.

    Two starts have the error (s^2 + e^2) / 2, if starts differ by s and points of one start by e; one start of the same time has
    s^2 + e^2 load_s / (cold_s + 2 load_s).
    """
    ratio = USUAL_RATIO
    if known:
        spread, factor = StartModel(known).spread
        error = factor * fmean(_error(known, level) for level in known[0].levels) / 2**0.5
        ratio = (spread / max(error, ERROR_LEAST)) ** 2
    return bool(ratio * (cold_s + 2 * load_s) > cold_s)


def _error(groups: Sequence[Starts], level: Level) -> float:
    """The mean standard error of the difference of two starts at a level."""
    errors = [float(own.errors.mean()) for one in groups if (own := one.at([level])).values.size]
    return fmean(errors) * (1.0 if groups[0].differences else 2**0.5)


def _passes(metric: Metric, groups: Sequence[Starts], level: Level, count: int, limit: float) -> bool:
    """Whether equal engines are within the limit in one question after so many starts."""
    if metric in TTFT and count < TTFT_STARTS_MIN:
        return False
    earlier, in_turns = [own for one in groups if (own := one.at([level])).values.size], groups[0].differences
    slow_side, error = SLOW_SIDES.get(metric.name, 0), _error(groups, level)
    start_sd, factor = StartModel(earlier, slow_side=slow_side).spread
    sd = math.hypot(2**0.5 * start_sd, error * (1.0 if in_turns else factor))
    scores = np.array([NORMAL.inv_cdf((place + 0.5) / count) for place in range(count)])
    scores = scores[:, None] / scores.std(ddof=1) * sd
    sides = (scores,) if in_turns else (scores / 2**0.5, -scores / 2**0.5)
    errors = np.array([error / len(sides) ** 0.5])
    model = StartModel([Starts((level,), one, errors, in_turns) for one in sides], earlier, slow_side)
    known = OverStarts(model, np.ones(1), Method(MethodKind.LOOKS), paired=in_turns).mixture
    half = known.quantile(1 - WITHIN_SPENT / count**0.5)
    room = ROOM * abs(math.log1p(-limit if metric.higher_is_better else limit))
    return bool(half + NORMAL.inv_cdf(PASSED) * sd / count**0.5 <= room)
