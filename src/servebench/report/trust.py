"""How far to trust points, in words and counts."""

from collections.abc import Sequence

from servebench.analysis.warnings.catalog import trust_word, type_of
from servebench.contracts.point_row import PointRow
from servebench.util.figures import MISSING

VERDICTS = {"valid": "good", "doubtful": "warn", "void": "bad"}
"""The verdicts of points, and the tone of each."""


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
    those that make it doubtful or void, and those of a wide interval. A point of another tool may have no verdict: `unknown`."""
    why = (code for code in dict.fromkeys(codes) if type_of(code).wide or not type_of(code).mark)
    return trust_word(verdict or "unknown", codes), tuple(why)


def reason_of_code(code: str) -> str:
    """Return a warning as a short reason: its code, and the first clause of what it means."""
    return f"{code}: {type_of(code).meaning.partition(', ')[0]}"
