"""What the warnings of points can do to one metric: the largest error, where there is a bound, or that there is none.

A bound is a share of the measured value. It follows from the columns of the point; `bounds` says how. A warning
whose size is not known makes what is concluded from the metric provisional; one that does not concern the metric does nothing.

What befalls one start and not most of the others, such as streams that fall into step, is part of the spread between starts, and
so of every interval over starts already: of several starts, only warnings of more than half of them count.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from servebench.analysis.warnings.catalog import type_of
from servebench.contracts.point_row import PointRow


@dataclass(frozen=True)
class Weight:
    """How wrong a metric may be by its warnings: at most the share `bound`, by the warnings `bounded`; but for those in
    `unbounded`, whose size is unknown."""

    bound: float = 0.0
    bounded: tuple[str, ...] = ()
    unbounded: tuple[str, ...] = ()


def weigh(rows: Iterable[PointRow], metric: str, without: Collection[str] = ()) -> Weight:
    """Return what the warnings of points can do to the mean of a metric over them, those of the codes `without` aside."""
    listed = list(rows)
    lasting = _lasting_codes(listed).difference(without)
    factors, bounded, unbounded = [], [], []
    for row in listed:
        factor = 1.0
        for code in row.doubts:
            if code not in lasting or type_of(code).mark:
                continue
            known = type_of(code)
            parts = [part for part in parts_of(metric) if part in known.affects]
            errors = [None if known.bound is None else known.bound(row, part) for part in parts]
            if None in errors:
                unbounded.append(code)
            elif worst := max((error for error in errors if error is not None), default=0.0):
                factor *= 1 + worst
                bounded.append(code)
        factors.append(factor)
    bound = sum(factors) / len(factors) - 1 if factors else 0.0
    return Weight(bound, tuple(dict.fromkeys(bounded)), tuple(dict.fromkeys(unbounded)))


def _lasting_codes(rows: Sequence[PointRow]) -> set[str]:
    starts: dict[str | None, set[str]] = {}
    for row in rows:
        starts.setdefault(row.start_id, set()).update(row.doubts)
    every = set().union(*starts.values())
    return {code for code in every if 2 * sum(code in codes for codes in starts.values()) > len(starts)}


def parts_of(metric: str) -> tuple[str, ...]:
    """Return what a metric is made of, in the words of `WarningType.affects`."""
    if metric.startswith("cost_"):
        return ("throughput", "cost")
    if metric.startswith("goodput"):
        return ("throughput", "ttft", "tpot", "e2e")
    known = ("ttft", "tpot", "itl", "e2e", "failed", "cold_start")
    return (next((part for part in known if metric.startswith(part)), "throughput"),)
