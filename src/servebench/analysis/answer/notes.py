"""What is to be said below the tables: warnings, what is not equal, and what holds for the whole answer."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from servebench.analysis.answer.model import AnswerColumn, Caveat, CaveatKind, Inequality, Remark, WorkloadAnswer
from servebench.analysis.answer.next_steps import HALVES, longer_keys, one_start
from servebench.analysis.fairness import SettingDifference
from servebench.analysis.slow_starts import own_slow_starts
from servebench.analysis.verdict.model import Comparison
from servebench.analysis.warnings.catalog import CATALOG, type_of
from servebench.contracts.emulation import imitated
from servebench.contracts.labels import RunLabel
from servebench.contracts.level import Level, levels_in_words
from servebench.contracts.stored import RunData, mapping

OUT_OF_LINE = 2.0
"""From this factor on, a user who gets less at a lighter load is not chance."""


def remarks(runs: Sequence[RunData], labels: Mapping[str, RunLabel]) -> tuple[Remark, ...]:
    """Return each warning once, in the order of the catalog: what makes points void, what makes them doubtful, marks."""
    where: dict[str, dict[str, Counter[Level]]] = {}
    spoiling = set[str]()
    points = {run.run_id: Counter(sorted(row.level for row in run.point_rows)) for run in runs}
    for run in runs:
        for row in run.point_rows:
            for code in dict.fromkeys(row.doubts):
                where.setdefault(code, {}).setdefault(run.run_id, Counter())[row.level] += 1
                if row.verdict != "valid" and not type_of(code).mark:
                    spoiling.add(code)
    order = [*CATALOG, *where]
    found = []
    for code in sorted(where, key=lambda code: (code not in spoiling, not type_of(code).void, order.index(code))):
        known = type_of(code)
        if known.of_all:
            continue
        found.append(
            Remark(
                code=code,
                meaning=known.meaning,
                remedy=known.remedy,
                places=tuple(_places(where[code], points, labels)),
                points=sum(one.total() for one in where[code].values()),
                of=sum(one.total() for one in points.values()),
                mark=code not in spoiling,
            )
        )
    return tuple(found)


def _places(
    where: Mapping[str, Counter[Level]], points: Mapping[str, Counter[Level]], labels: Mapping[str, RunLabel]
) -> Iterable[str]:
    """Points in words: all, all at one load, all of a run, or the levels of runs; of several starts how many."""
    measured = {run: levels for run, levels in points.items() if levels}
    every = set[Level]().union(*where.values())
    whole = all(levels == Counter({level: points[run][level] for level in levels}) for run, levels in where.items())
    if whole and all(set(where.get(run, ())) == set(levels) & every for run, levels in measured.items()):
        if every == set[Level]().union(*measured.values()):
            yield "all points" if sum(one.total() for one in points.values()) > 1 else "the point"
        else:
            yield f"all at {levels_in_words(one for own in points.values() for one in own if one in every)}"
        return
    for run, levels in where.items():
        own = [level for level in points[run] if level in levels]
        at = f" at {levels_in_words(own)}" if len(levels) < len(measured[run]) else ""
        count, of = levels.total(), sum(points[run][level] for level in levels)
        yield f"{labels[run].text}{at}" + (f" ({count} of {of} points)" if count < of else "")


def inequalities(comparisons: Sequence[Comparison], labels: Mapping[str, RunLabel]) -> tuple[Inequality, ...]:
    """Return what the compared runs do not share, what matters first; what holds alike for all workloads once."""
    values: dict[tuple[str, str, str], dict[str, dict[str, None]]] = {}
    facts: dict[str, SettingDifference] = {}
    for comparison in comparisons:
        for one in comparison.unequal:
            if one.key == "engine.name":
                # the table has a column for each engine
                continue
            known = values.setdefault((one.key, labels[comparison.ids[0]].workload, one.where), {})
            for run, value in zip(comparison.ids, (one.baseline, one.candidate), strict=True):
                known.setdefault(value, {})[labels[run].series] = None
            if one.key not in facts or one.matters > facts[one.key].matters:
                facts[one.key] = one
    workloads = {labels[run].workload for comparison in comparisons for run in comparison.ids}
    found: dict[tuple[str, Any], Inequality] = {}
    for (key, workload, at), known in values.items():
        same = {value: frozenset(names) for value, names in known.items()}
        alike = [
            {value: frozenset(names) for value, names in one.items()} == same
            for (other, _, other_at), one in values.items()
            if (other, other_at) == (key, at)
        ]
        everywhere = len(alike) == len(workloads) and all(alike) and not at
        where = " ".join(filter(None, ("" if everywhere else workload, f"at {at}" if at else "")))
        found.setdefault(
            (key, where),
            Inequality(
                key=key,
                title=facts[key].title,
                values={value: tuple(names) for value, names in known.items()},
                matters=facts[key].matters,
                reason=facts[key].reason,
                where=where,
            ),
        )
    return tuple(sorted(found.values(), key=lambda one: not one.matters))


def caveats(
    runs: Sequence[RunData],
    workloads: Sequence[WorkloadAnswer],
    labels: Mapping[str, RunLabel],
    earlier: Sequence[RunData] = (),
) -> Iterable[Caveat]:
    """Yield what holds for the whole answer; `earlier` are other stored runs, whose starts show which ones are slow."""
    if how := imitated(run.fact("launch") for run in runs):
        yield Caveat(kind=CaveatKind.IMITATED, how=how)
    for one in workloads:
        for column in one.columns:
            yield from _out_of_line(column, one.levels)
    leads = [lead for one in workloads for lead in one.leads if lead.clear]
    if leads and not any(lead.verdict for lead in leads):
        if one_start(runs):
            yield Caveat(kind=CaveatKind.ONE_START_EACH)
        # what is provisional, or of different settings, is so in the sentence: more starts would not change it
        elif not all(lead.codes or lead.unequal for lead in leads):
            yield Caveat(kind=CaveatKind.NO_VERDICT_YET)
    if any(lead.by_earlier for lead in leads):
        yield Caveat(kind=CaveatKind.BY_EARLIER)
    for run in runs:
        if (slow := own_slow_starts(run, [*earlier, *runs])) is not None:
            yield Caveat(kind=CaveatKind.SLOW_STARTS, label=labels[run.run_id].text, slow_starts=slow)
    # the lengths that all answers of a run with several users in a closed loop have
    several = [run for run in runs if any((row.concurrency or 1) > 1 for row in run.point_rows)]
    asked = [one for one in (mapping(run.config.get("workload")) for run in several) if one.get("exact_output") is True]
    for tokens in sorted({length for one in asked if isinstance(length := one.get("output_tokens"), int)}):
        yield Caveat(kind=CaveatKind.ONE_LENGTH, tokens=tokens)
    shown = (cell for one in workloads for column in one.columns for cell in column.cells.values())
    if any(cell.wide and cell.verdict != "void" for cell in shown):
        yield from _wide(runs)


def _wide(runs: Sequence[RunData]) -> Iterable[Caveat]:
    """What points with a wide interval are wider than, and what makes them narrower."""
    wide = {code for run in runs for row in run.point_rows if row.verdict != "void" for code in row.doubts}
    limits = [one.wide for one in CATALOG.values() if one.wide and one.code in wide]
    if limits:
        than, names = zip(*limits, strict=True)
        # which to raise, and to which value, that intervals are half as wide; all where none has a value
        values = [[f"{key} from {x:g} to {HALVES * x:g}" for key, x in longer_keys(runs, one).items()] for one in names]
        keys = [" or ".join(known) or name for known, name in zip(values, names, strict=True)]
        # the mean of few starts is as wide as they differ, however long their points are; rounds add starts by themselves
        several = any(len({row.start_id for row in run.point_rows}) > 1 for run in runs)
        if several and not any(mapping(run.config.get("study")).get("until") for run in runs):
            keys.append("study.starts")
        yield Caveat(kind=CaveatKind.WIDE, limits=than, keys=tuple(dict.fromkeys(keys)))


def _out_of_line(column: AnswerColumn, levels: Sequence[Level]) -> Iterable[Caveat]:
    """The levels at which each user got far less than at the next, heavier one."""
    speeds = [
        (level, cell.value / level.concurrency)
        for level in levels
        if level.concurrency and (cell := column.cells.get(level)) is not None and cell.value and cell.verdict != "void"
    ]
    for (level, speed), (heavier, more) in pairwise(speeds):
        if speed * OUT_OF_LINE < more:
            factor = more / speed
            yield Caveat(kind=CaveatKind.OUT_OF_LINE, label=column.label, level=level, heavier=heavier, factor=factor)
