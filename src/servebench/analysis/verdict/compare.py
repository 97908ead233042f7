"""Compares runs whose starts were fixed before: the rows of all levels, their corrected p-values, and the result."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from servebench.analysis.fairness import SettingDifference
from servebench.analysis.verdict.families import corrected
from servebench.analysis.verdict.model import DIFFERENT, FAILED, Comparison, ComparisonRow, Side, VerdictKind, better
from servebench.analysis.verdict.questions import between, questions
from servebench.analysis.verdict.reasons import Reason, ReasonKind
from servebench.analysis.verdict.starts import StartComparison, group_by_start

SIGNIFICANCE = 0.05
MARGIN = 0.05
"""The smallest difference that matters by default."""
FAILED_MARGIN = 0.01
"""The difference between shares of failed requests that matters."""
STARTS_ADVISED = 5
"""Starts with which a difference of 5% is found where starts differ by 1% (docs/calibration.md)."""


def compare(
    pairs: Iterable[tuple[Side, Side, Sequence[SettingDifference]]],
    *,
    margin: float = MARGIN,
    with_doubtful: bool = False,
) -> list[Comparison]:
    """Compare each candidate with its baseline: (baseline, candidate, their unequal settings). Pure.

    `margin` is a share. P-values are corrected over all pairs. `with_doubtful` accepts what warnings make provisional.
    """
    listed = list(pairs)
    asked = [StartComparison(questions(a, b, with_doubtful), a, b) for a, b, _ in listed]
    rows = [one.with_differences() for one in asked]
    firsts = [found[0] if (found := one.first_question()) is not None else None for one in asked]
    ps = corrected(
        [
            one.asked(None if first is None else first.p, own)
            for one, own, first in zip(asked, rows, firsts, strict=True)
        ]
    )
    return [
        with_rows(
            replace(
                between(a, b, margin),
                first=None if first is None else _judge(replace(first, p_corrected=p_first), margin),
                unequal=tuple(unequal),
                starts=(len(group_by_start(a.samples)), len(group_by_start(b.samples))),
                start_seconds=(a.start_seconds, b.start_seconds),
            ),
            [_judge(replace(row, p_corrected=p), margin) for row, p in zip(own, p_rows, strict=True)],
        )
        for (a, b, unequal), own, first, (p_first, p_rows) in zip(listed, rows, firsts, ps, strict=True)
    ]


def _judge(row: ComparisonRow, margin: float) -> ComparisonRow:
    """The row with its verdict. Rows of a single start have no p-value, and so none."""
    found = row.difference
    if found is None or row.p_corrected is None:
        return row
    margin = margin if row.metric is not FAILED else FAILED_MARGIN
    if found.bound <= margin:
        # a difference that is certain and too small to matter is no difference either
        return row.judged(VerdictKind.EQUAL, bound=found.bound)
    if row.p_corrected < SIGNIFICANCE and found.leaves_out_zero:
        return row.judged(better(row.metric, found.effect), bound=found.bound)
    if found.bound <= 2 * margin:
        return row.judged(VerdictKind.EQUAL, bound=found.bound)
    row = row.judged(VerdictKind.OPEN, bound=found.bound)
    open_by = ReasonKind.MAY_BE_CHANCE if row.may_be_chance else ReasonKind.INTERVAL_TOO_WIDE
    return row if row.reasons else row.because(Reason(open_by))


def with_rows(comparison: Comparison, rows: Iterable[ComparisonRow], *, decided: bool = False) -> Comparison:
    """Return the comparison with these rows, and the result that follows from them and its first question: what differs, and
    *equal* only where no row is open; of a study that has `decided`, where its first question is answered so."""
    first = comparison.first
    if comparison.mattering:
        # the settings may be all that a row shows: it keeps what it found, and counts as little as a doubtful one
        first = None if first is None else replace(first, competes=False)
        provisional = tuple(replace(row, competes=False) for row in rows)
        return replace(comparison, rows=provisional, first=first, result=VerdictKind.UNEQUAL, bound=None)
    found = replace(comparison, rows=tuple(rows), bound=None)
    counted = (*found.competing, *([first] if first is not None and first.competes else []))
    if different := {row.result for row in counted} & DIFFERENT:
        return replace(found, result=VerdictKind.MIXED if len(different) > 1 else different.pop())
    if decided and first is not None and first.competes and first.result in (VerdictKind.EQUAL, VerdictKind.NOT_WORSE):
        return replace(found, result=first.result, bound=first.bound)
    same = [row.bound or 0.0 for row in found.competing if row.result is VerdictKind.EQUAL and not decided]
    # a row whose interval is too wide for a verdict may differ by more
    if same and all(row.low is None for row in found.competing if row.result is VerdictKind.OPEN):
        return replace(found, result=VerdictKind.EQUAL, bound=max(same))
    return replace(found, result=VerdictKind.OPEN)
