"""The text of what the repeats of a run show."""

from servebench.analysis.repeats import RepeatedMetric, RepeatNote
from servebench.contracts.point_row import POINT_COLUMNS
from servebench.util.figures import change, number, percent


def value_text(found: RepeatedMetric) -> str:
    """Return a mean with its interval, or with the spread of one repeat where there are too few."""
    one = found.estimate
    if one.low is None:
        return f"{number(one.value)} (one repeat ±{percent(found.spread)})"
    return f"{number(one.value)} [{number(one.low)}, {number(one.high)}]"


def note_text(note: RepeatNote) -> str:
    """Return which repeat is an outlier, or what rose or fell over the repeats, and what to do."""
    title = POINT_COLUMNS[note.column].title
    p = f"p = {note.p:.2g}" + (f" after Holm's correction for {note.tests} tests" if note.tests > 1 else "")
    if note.repeat is not None:
        return (
            f"repeat {note.repeat} at {note.level} is an outlier: its {title} is {change(note.change)} from the median of the "
            f"others (Grubbs' test, {p}); check what else the machine was doing, or measure the level again"
        )
    return (
        f"{title} {'rose' if note.change > 0 else 'fell'} by {percent(abs(note.change))} from the first repeat to the last "
        f"(seasonal Kendall test over levels, {p}): the machine or the engine changed over time; compare engines with "
        "load.order=interleaved, and check clocks and temperature"
    )
