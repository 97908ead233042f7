"""What is to be said below the tables: warnings, what is not equal, and what holds for the whole answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from servebench.analysis.answer.model import AnswerColumn, Inequality, Remark, WorkloadAnswer
from servebench.analysis.answer.next_steps import one_start
from servebench.analysis.comparison.model import Comparison
from servebench.analysis.warnings.catalog import CATALOG, UNKNOWN
from servebench.contracts.labels import RunLabel
from servebench.contracts.point_row import level_words
from servebench.contracts.stored import RunData
from servebench.util.figures import number

OUT_OF_LINE = 2.0
"""From this factor on, a user who gets less at a lighter load is not chance."""


def is_mark(code: str) -> bool:
    """Return whether a warning leaves the verdict of its point alone."""
    return code in CATALOG and CATALOG[code].mark


def remarks(runs: Sequence[RunData], labels: Mapping[str, RunLabel]) -> tuple[Remark, ...]:
    """Return each warning once, in the order of the catalog, what is void or doubtful before what is only marked."""
    where: dict[str, dict[str, set[str]]] = {}
    points = {run.run_id: list(dict.fromkeys(row.level_label for row in run.point_rows)) for run in runs}
    for run in runs:
        for row in run.point_rows:
            for code in row.doubts:
                where.setdefault(code, {}).setdefault(run.run_id, set()).add(row.level_label)
    order = [*CATALOG, *where]
    found = []
    for code in sorted(where, key=lambda code: (is_mark(code), order.index(code))):
        if code == "emulated":
            continue
        known = CATALOG.get(code)
        found.append(
            Remark(
                code=code,
                meaning=known.meaning if known else UNKNOWN,
                remedy=known.remedy if known else "",
                places=tuple(_places(where[code], points, labels)),
                mark=is_mark(code),
            )
        )
    return tuple(found)


def _places(
    where: Mapping[str, set[str]], points: Mapping[str, Sequence[str]], labels: Mapping[str, RunLabel]
) -> Iterable[str]:
    """Points in words: all, all at one load, all of a run, or the levels of runs."""
    measured = {run: set(levels) for run, levels in points.items() if levels}
    every = set().union(*where.values())
    if all(where.get(run, set()) == levels & every for run, levels in measured.items()):
        if every == set().union(*measured.values()):
            yield "all points" if sum(map(len, points.values())) > 1 else "the point"
        else:
            yield f"all at {', '.join(dict.fromkeys(one for own in points.values() for one in own if one in every))}"
        return
    for run, levels in where.items():
        at = f" at {', '.join(level for level in points[run] if level in levels)}" if levels < measured[run] else ""
        yield f"{labels[run].text}{at}"


def inequalities(comparisons: Sequence[Comparison], labels: Mapping[str, RunLabel]) -> tuple[Inequality, ...]:
    """Return what the compared runs do not share, what matters first."""
    values: dict[str, dict[str, dict[str, None]]] = {}
    facts: dict[str, tuple[bool, str]] = {}
    for comparison in comparisons:
        for one in comparison.unequal:
            known = values.setdefault(one.key, {})
            for run, value in zip(comparison.ids, (one.baseline, one.candidate), strict=True):
                known.setdefault(value, {})[labels[run].series] = None
            matters, reason = facts.get(one.key, (False, one.reason))
            facts[one.key] = (matters or one.matters, one.reason if one.matters else reason)
    found = [
        Inequality(
            key=key,
            values={value: tuple(names) for value, names in known.items()},
            matters=facts[key][0],
            reason=facts[key][1],
        )
        for key, known in values.items()
    ]
    return tuple(sorted(found, key=lambda one: not one.matters))


def caveats(runs: Sequence[RunData], workloads: Sequence[WorkloadAnswer]) -> Iterable[str]:
    """Yield what holds for the whole answer."""
    if any(run.emulated for run in runs):
        yield "Emulated engines: these numbers do not describe the real ones."
    for one in workloads:
        for column in one.columns:
            yield from _out_of_line(column, one.levels)
    leads = [lead for one in workloads for lead in one.leads if lead.clear]
    if leads and not any(lead.verdict for lead in leads):
        if one_start(runs):
            yield "One start of each: these are differences of these starts, not yet a verdict on the engines."
        else:
            yield "No lead is a verdict on the engines yet: study.until=decided adds starts until there is one."


def _out_of_line(column: AnswerColumn, levels: Sequence[str]) -> Iterable[str]:
    """The levels at which each user got far less than at the next, heavier one."""
    speeds = [
        (level, cell.value / int(level))
        for level in levels
        if level.isdigit() and (cell := column.cells.get(level)) is not None and cell.value and cell.verdict != "void"
    ]
    for (level, speed), (heavier, more) in pairwise(speeds):
        if speed * OUT_OF_LINE < more:
            yield (
                f"{column.label} at {level_words(level)}: {number(more / speed, 2)} times slower for each user than at "
                f"{level_words(heavier)}, so something held it up: measure it again."
            )
