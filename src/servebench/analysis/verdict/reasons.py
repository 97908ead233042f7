"""The reasons against a verdict. Nothing here is a sentence: the words are those of `report.wording.comparison`."""

from dataclasses import dataclass
from enum import StrEnum

from servebench.analysis.disturbance import Taker


class ReasonKind(StrEnum):
    """What stands against a verdict, or makes it provisional; in brackets, which fields of a Reason have a value."""

    ONE_START = "one_start"  # each side has one start of its engine, which says nothing of other starts
    LEVEL_MISSING = "level_missing"  # a side has no such level (`side`: `baseline`, `candidate` or `both`)
    METRIC_MISSING = "metric_missing"  # a side has no such number (`side`)
    REQUESTS_MISSING = "requests_missing"
    """The numbers of a side are stored without their requests, as another tool's are (`side`)."""
    VOID_POINT = "void_point"  # a point of the level is void (`codes`, `taker`)
    VOID_TO_REPLACE = "void_to_replace"
    """A point of the level is void, and another start may replace it (`codes`, `taker`)."""
    VOID_FOR_GOOD = "void_for_good"
    """A point of the level is void and is not measured again (`codes`, `taker`, `needed`: the starts in which it was tried)."""
    FEW_REQUESTS = "few_requests"  # a start has too few requests for the metric (`count`, `needed`)
    FEW_REQUESTS_YET = "few_requests_yet"  # the same, and `needed` more starts suffice (`count`)
    FEW_SLICES = "few_slices"  # a start has too few slices of time for the metric (`count`, `needed`)
    REQUESTS_FAILED = "requests_failed"  # more requests failed than leave the metric a finite value
    WIDENED = "widened"  # warnings of a known size widen the interval (`share`, `codes`)
    PROVISIONAL = "provisional"  # warnings of unknown size may change the result (`codes`)
    INTERVAL_TOO_WIDE = "interval_too_wide"  # the interval leaves open whether there is a difference that matters
    MAY_BE_CHANCE = "may_be_chance"
    """The row's own interval leaves out 0, and among all rows of the comparison that may be chance."""
    STARTS_NEEDED = "starts_needed"  # a study with `study.until=decided` has not decided this yet
    STARTS_OF_TTFT = "starts_of_ttft"  # a time to the first token is looked at from `needed` starts on


class MethodKind(StrEnum):
    """What an interval of a difference rests on."""

    STARTS = "starts"  # the model of starts: the starts of each side, and earlier ones of their set-ups
    LOOKS = "looks"  # the same at a look of `study.until=decided`, for all looks together
    FAILED_SHARES = (
        "failed_shares"  # shares of failed requests: Welch's t-test over starts, the requests of single ones
    )
    BLOCKS = "blocks"  # blocks of load of a tune, within starts, by the model of starts


@dataclass(frozen=True)
class Method:
    """What an interval rests on: the starts of each side, measured `slice_by_slice` in turns, and `earlier` ones of their
    set-ups."""

    kind: MethodKind
    starts: tuple[int, int] = (1, 1)
    earlier: int = 0
    slice_by_slice: bool = False


TOO_FEW = (ReasonKind.FEW_REQUESTS, ReasonKind.FEW_REQUESTS_YET, ReasonKind.FEW_SLICES)
"""Reasons for which a ratio would mean nothing."""
MORE_STARTS_HELP = (ReasonKind.INTERVAL_TOO_WIDE, ReasonKind.MAY_BE_CHANCE)
"""Reasons that more starts remove, of a comparison whose number of starts was fixed before."""


@dataclass(frozen=True)
class Reason:
    """One reason against a verdict. `kind` says which of the other fields have a value."""

    kind: ReasonKind
    side: str = ""
    codes: tuple[str, ...] = ()
    count: int = 0
    needed: int = 0
    share: float = 0.0
    taker: Taker | None = None
    """Who took the machine, where a point is void for that."""
