"""Selects and counts the points that reports show."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from statistics import fmean

from servebench.analysis.warnings.catalog import CATALOG, UNKNOWN, is_wide, trust_word
from servebench.contracts.point_row import PointRow
from servebench.util.figures import MISSING

UNJUDGED = "unknown"
"""The trust in a point of a file that has no verdicts."""
VERDICTS = ("valid", "doubtful", "void")


@dataclass(frozen=True, kw_only=True)
class BestLevel:
    """The level of a run with the highest output throughput: its means over starts of the engine (a start's repeats first), and
    from how many points. `low` and `high` are the interval of a single point."""

    level: str
    throughput: float
    low: float | None = None
    high: float | None = None
    ttft_ms: float | None = None
    points: int = 1


def best_level(rows: Iterable[PointRow]) -> BestLevel | None:
    """Return the best level among those of which more than half of the points are valid, else among all; void points count for
    nothing. None without a throughput."""
    levels: dict[str, list[PointRow]] = {}
    for row in rows:
        if row.output_throughput_tok_s and row.verdict != "void":
            levels.setdefault(row.level_label, []).append(row)
    valid = [own for own in levels.values() if 2 * sum(row.verdict == "valid" for row in own) > len(own)]
    return max(map(_level, valid or levels.values()), key=lambda one: one.throughput, default=None)


def _level(rows: Sequence[PointRow]) -> BestLevel:
    first, one = rows[0], len(rows) == 1
    return BestLevel(
        level=first.level_label,
        throughput=mean_over_starts(rows, "output_throughput_tok_s") or 0.0,
        low=first.output_throughput_tok_s_low if one else None,
        high=first.output_throughput_tok_s_high if one else None,
        ttft_ms=mean_over_starts(rows, "ttft_ms_p50"),
        points=len(rows),
    )


def mean_over_starts(rows: Sequence[PointRow], column: str) -> float | None:
    """Return the geometric mean over starts of the means over their points, as in a comparison; None where a point has no
    positive and finite value."""
    starts: dict[str | None, list[float]] = {}
    for row in rows:
        value = row.get(column)
        if value is None or not 0 < value < inf:
            return None
        starts.setdefault(row.start_id, []).append(log(value))
    return exp(fmean(fmean(own) for own in starts.values()))


def count_verdicts(rows: Sequence[PointRow]) -> dict[str, int]:
    """Return how many points have each verdict."""
    return {verdict: sum(row.verdict == verdict for row in rows) for verdict in VERDICTS}


def valid_count(rows: Sequence[PointRow]) -> str:
    """Return how many of the points are valid, as text."""
    if not rows:
        return MISSING
    valid = count_verdicts(rows)["valid"]
    return f"{valid} valid" if valid == len(rows) else f"{valid}/{len(rows)} valid"


def point_trust(verdict: str | None, codes: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return how far to trust a point in a word or two (`valid`, `doubtful, wide`), and the codes of the warnings that say why:
    those that make it doubtful or void, and those of a wide interval."""
    why = (code for code in dict.fromkeys(codes) if is_wide([code]) or not (code in CATALOG and CATALOG[code].mark))
    return trust_word(verdict or UNJUDGED, codes), tuple(why)


def reason_of_code(code: str) -> str:
    """Return a warning as a short reason: its code, and the first clause of what it means."""
    return f"{code}: {CATALOG[code].meaning.partition(', ')[0] if code in CATALOG else UNKNOWN}"
