"""Conclusions made by hand."""

from servebench.analysis.answer.model import LevelLead, Rival
from servebench.analysis.estimate import THROUGHPUT
from servebench.analysis.verdict.model import METRICS, ComparisonRow, Difference
from servebench.analysis.verdict.reasons import Method, MethodKind
from servebench.contracts.level import Level


def lead_of(size, low=None, high=None, *, users=4, best="a", rival="b", codes=()):
    """A clear lead of this size over one rival, with an interval if it is given."""
    metric = next(one for one in METRICS if one.name == THROUGHPUT)
    found = Difference(effect=size, low=low, high=high, method=Method(MethodKind.STARTS)) if low else None
    row = ComparisonRow(
        level=Level(users), metric=metric, baseline=None, candidate=None, difference=found, doubts=codes
    )
    return LevelLead(
        level=Level(users), best=best, rivals=(Rival(label=rival, distance=1 / (1 + size) - 1, row=row, clear=True),)
    )
