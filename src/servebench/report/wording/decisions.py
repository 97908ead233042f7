"""The text of what a study with `study.until=decided` has decided."""

from __future__ import annotations

from servebench.analysis.comparison.decisions import Decision, PairDecision
from servebench.analysis.decided import StudyDecision
from servebench.report.wording.comparison import text_of
from servebench.util.figures import MISSING, change, change_interval, percent

HEADINGS = ("load", "metric", "verdict", "difference [interval]", "starts")
NOTE = (
    "Intervals: 95%, of 'equal' 90% (two one-sided tests); they hold for all looks together. One metric that differs decides a "
    "level, which is not measured any further. P-values are corrected for the number of levels, metrics and pairs, so where a "
    "verdict is still open the interval may leave out 0."
)


DIFFERENT = ("faster", "slower", "mixed")


def round_line(found: StudyDecision, rounds: int) -> str:
    """Return what is decided and what is open after a round of starts."""
    verdicts = [verdict for pair in found.pairs for verdict in pair.levels.values() if verdict != "not compared"]
    undecided = [
        f"{title_of(pair, found)} at {', '.join(map(str, pair.open_levels))}"
        for pair in found.pairs
        if pair.open_levels
    ]
    done = sum(verdict != "open" for verdict in verdicts)
    rest = f"; open: {'; '.join(undecided)}" if undecided else ""
    return f"round {rounds}: {done} of {len(verdicts)} levels decided after {_minutes(found)}{rest}"


def title_of(pair: PairDecision, found: StudyDecision) -> str:
    """Return what a pair of runs is called."""
    return f"{found.labels[pair.candidate]} vs {found.labels[pair.baseline]}"


def levels_line(pair: PairDecision, found: StudyDecision) -> str:
    """Return the verdict at each level; in brackets where warnings make it provisional, none where fairness refuses one."""
    if unequal := found.unequal.get((pair.baseline, pair.candidate)):
        return f"no verdict: the runs have different settings ({unequal})"
    firm = {one.level for one in pair.rows if one.row.competes and one.verdict in DIFFERENT}
    shown = [
        f"{f'({verdict})' if verdict in DIFFERENT and level not in firm else verdict} at {level}"
        for level, verdict in pair.levels.items()
        if verdict != "open"
    ]
    lines = [f"decided: {', '.join(shown)}"] if shown else []
    return "; ".join([*lines, *([f"not decided: {', '.join(map(str, pair.open_levels))}"] if pair.open_levels else [])])


def _minutes(found: StudyDecision) -> str:
    return f"{found.engine_s / 60:.1f} of {round(found.budget_s / 60, 1):,g} engine minutes"


def cells_of(one: Decision, pair: PairDecision, found: StudyDecision) -> tuple[str, ...]:
    """Return the cells of a row under HEADINGS. A verdict in brackets is provisional, or one that fairness refuses."""
    row = one.row
    text = f"equal within {percent(pair.margin)}" if one.verdict == "equal" else one.verdict
    counts = row.competes and (pair.baseline, pair.candidate) not in found.unequal
    shown = text if counts or one.verdict in ("open", "not compared") else f"({text})"
    size = (
        MISSING
        if row.effect is None or not one.starts
        else f"{change(row.effect)} {change_interval(row.low, row.high)}"
    )
    return (str(row.level), row.metric.title, shown, size, str(one.starts or MISSING))


def notes_of(found: StudyDecision) -> list[str]:
    """Return what is open and what it would take, how much starts differ, and why rows are provisional or missing."""
    lines = [line for pair in found.pairs for line in _open_lines(pair, found)]
    places: dict[str, dict[str, None]] = {}
    for pair in found.pairs:
        for one in pair.rows:
            if one.row.reasons:
                places.setdefault(text_of(one.row.reasons), {})[f"{title_of(pair, found)} at {one.level}"] = None
    lines += [f"{why}: {'; '.join(where)}" for why, where in places.items()]
    for name, spread in found.spreads.items():
        if spread.between is not None:
            lines.append(
                f"{found.labels[name]}: its {spread.starts} starts differ by {percent(spread.between)}, points of one start by "
                f"{percent(spread.within)} more (standard deviations of output throughput)"
            )
    return [*lines, f"the engines ran for {_minutes(found)}"]


def _open_lines(pair: PairDecision, found: StudyDecision) -> list[str]:
    lines = []
    for level in pair.open_levels:
        starts = pair.starts_at(level)
        needed = pair.starts_needed(level)
        if needed is None or needed <= starts:
            more = "it would take very many more starts" if starts > 1 else "it has no two starts of each"
        else:
            minutes = (
                (needed - starts)
                * sum(found.start_seconds.get(one, 0.0) for one in (pair.baseline, pair.candidate))
                / 60
            )
            count = f"{needed - starts} more start{'s' * (needed - starts > 1)} of each"
            more = f"would take about {count}, {max(1, round(minutes))} engine minutes"
        lines.append(f"{title_of(pair, found)} at {level}: undecided: {more}")
    return lines
