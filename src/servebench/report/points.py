"""Selects and counts the points that reports show."""

from collections.abc import Iterable, Sequence

from servebench.contracts.point_row import PointRow
from servebench.util.figures import MISSING

VERDICTS = ("valid", "doubtful", "void")


def best_row(rows: Iterable[PointRow]) -> PointRow | None:
    """Return the point with the highest output throughput among the valid ones, otherwise among the doubtful ones."""
    known = [row for row in rows if row.output_throughput_tok_s is not None]
    for verdict in ("valid", "doubtful"):
        candidates = [row for row in known if row.verdict == verdict]
        if candidates:
            return max(candidates, key=lambda row: row.output_throughput_tok_s or 0.0)
    return None


def count_verdicts(rows: Sequence[PointRow]) -> dict[str, int]:
    """Return how many points have each verdict."""
    return {verdict: sum(row.verdict == verdict for row in rows) for verdict in VERDICTS}


def valid_count(rows: Sequence[PointRow]) -> str:
    """Return how many of the points are valid, as text."""
    if not rows:
        return MISSING
    valid = count_verdicts(rows)["valid"]
    return f"{valid} valid" if valid == len(rows) else f"{valid}/{len(rows)} valid"
