"""The answer of a study as data: what the last screen, the report's first screen and MLflow's description show.

Everything here rests on the comparisons of `servebench compare`: an answer never claims more than they do.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

from servebench.analysis.comparison.compare import MARGIN, STARTS_ADVISED
from servebench.analysis.comparison.model import Comparison, ComparisonRow
from servebench.analysis.pairing import pairs_within
from servebench.analysis.recommendation.model import Entrant, RankedLevel
from servebench.analysis.recommendation.values import metric_interval, metric_value
from servebench.analysis.run_comparison import compare_speed, seconds_per_start
from servebench.analysis.stored_runs import entrant_of
from servebench.analysis.warnings.catalog import CATALOG, UNKNOWN
from servebench.contracts.labels import RunLabel, run_labels
from servebench.contracts.point_row import level_words
from servebench.contracts.stored import RunData, mapping
from servebench.util.figures import number, plus_minus

THROUGHPUT = "output_throughput_tok_s"
AGAIN = frozenset(
    {"lock_step", "too_few_requests", "too_short", "machine_busy", "not_stationary", "supply_exhausted", "client_bound",
     "clock_stepped", "level_not_reached"}
)  # fmt: skip
"""Warnings that a second, longer measurement may settle."""
LONGER = 2.0
"""How many times as long `servebench resume --better` measures."""
OUT_OF_LINE = 2.0
"""From this factor on, a user who gets less at a lighter load is not chance."""
TIMES_FROM = 1.0
"""From this lead on, a factor is easier to read than a percentage."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A load level of a run: output throughput in tok/s with its 95% interval, and TTFT p50 in ms. A `best` cell leads all
    others of its level by more than the intervals leave open."""

    value: float | None
    low: float | None = None
    high: float | None = None
    ttft_ms: float | None = None
    verdict: str = "valid"
    codes: tuple[str, ...] = ()
    best: bool = False

    @property
    def text(self) -> str:
        """The throughput with half of its interval."""
        return plus_minus(self.value, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A run in the table of its workload. `cells` are by level."""

    run_id: str
    label: str
    colour: int
    status: str
    error: str | None
    cells: Mapping[str, Cell]

    @property
    def codes(self) -> tuple[str, ...]:
        """The warnings of its points that are doubtful or void, each once."""
        return tuple(dict.fromkeys(code for cell in self.cells.values() for code in cell.codes))


@dataclass(frozen=True, kw_only=True)
class Lead:
    """By how much the best run of a level leads the next, as a share, with its interval.

    `clear`: the interval leaves no doubt against any other run. `verdict`: it is one on the engines, by several starts, and
    not only a difference of these starts. `tied` are the runs that it is not clear against, `unequal` settings that differ and
    matter, `codes` warnings of unknown size, which make it provisional.
    """

    level: str
    leader: str
    rival: str
    size: float
    low: float | None = None
    high: float | None = None
    clear: bool = False
    verdict: bool = False
    tied: tuple[str, ...] = ()
    unequal: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WorkloadAnswer:
    """One workload: its runs by load level, who leads at each, and that in words."""

    workload: str
    title: str
    levels: tuple[str, ...]
    columns: tuple[Column, ...]
    leads: tuple[Lead, ...]
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A warning with the points that it concerns. A `mark` does not make a point doubtful."""

    code: str
    meaning: str
    remedy: str
    places: tuple[str, ...]
    mark: bool = False

    @property
    def where(self) -> str:
        """The points in words."""
        return "; ".join(self.places)


@dataclass(frozen=True, kw_only=True)
class Inequality:
    """A setting or fact in which runs differ: their labels by value."""

    key: str
    values: Mapping[str, tuple[str, ...]]
    matters: bool
    reason: str

    @property
    def text(self) -> str:
        """The key, and each value with the runs that have it."""
        parts = (f"{value} ({', '.join(names)})" for value, names in self.values.items())
        return f"{self.key}: {', '.join(parts)}"


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """A command to run next, why, and about how long it takes."""

    command: str
    why: str
    seconds: float | None = None
    continues: bool = False
    """Whether it measures what is missing."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All that one screen says of some runs. `comparisons` are those that it rests on."""

    workloads: tuple[WorkloadAnswer, ...]
    failures: tuple[str, ...] = ()
    inequalities: tuple[Inequality, ...] = ()
    remarks: tuple[Remark, ...] = ()
    caveats: tuple[str, ...] = ()
    next_steps: tuple[NextStep, ...] = ()
    comparisons: tuple[Comparison, ...] = field(default=(), repr=False)


def answer_of(
    runs: Sequence[RunData],
    *,
    earlier: Sequence[RunData] = (),
    varying: str | None = None,
    name: str = "last",
    words: Sequence[str] = (),
    comparisons: Sequence[Comparison] | None = None,
) -> Answer:
    """Return the answer that runs give. `earlier` are other stored runs, `name` is how a command names the study of these
    runs, `words` is the command that made it. `comparisons` of these runs replace those that it makes itself."""
    labels = run_labels(runs)
    entrants = {run.run_id: entrant_of(run, labels[run.run_id].text) for run in runs if run.point_rows}
    pairs = pairs_within([run for run in runs if run.run_id in entrants]) if comparisons is None else []
    found = list(comparisons or ())
    found += compare_speed(pairs, varying=varying, earlier=earlier, labels=labels) if pairs else []
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(run.fact("workload") or "", []).append(run)
    workloads = [_workload_answer(key, group, labels, entrants, found) for key, group in groups.items()]
    return Answer(
        workloads=tuple(workloads),
        failures=tuple(_failure(run, labels[run.run_id].text) for run in runs if run.status != "finished"),
        inequalities=_inequalities(found, labels),
        remarks=_remarks(runs, labels),
        caveats=tuple(_caveats(runs, workloads)),
        next_steps=tuple(_next_steps(runs, workloads, name, words)),
        comparisons=tuple(found),
    )


def _failure(run: RunData, label: str) -> str:
    return f"{label}: {run.status}" + (f": {run.error}" if run.error else "")


def _workload_answer(
    workload: str,
    runs: Sequence[RunData],
    labels: Mapping[str, RunLabel],
    entrants: Mapping[str, Entrant],
    comparisons: Sequence[Comparison],
) -> WorkloadAnswer:
    cells = {run.run_id: _cells(entrants[run.run_id]) if run.run_id in entrants else {} for run in runs}
    loads = {level.label: level.load for one in entrants.values() for level in one.levels}
    levels = sorted({level for own in cells.values() for level in own}, key=lambda level: loads[level])
    leads = [lead for level in levels if (lead := _lead(level, cells, labels, comparisons)) is not None]
    best = {(lead.level, lead.leader) for lead in leads if lead.clear}
    columns = [
        Column(
            run_id=run.run_id,
            label=labels[run.run_id].series,
            colour=labels[run.run_id].colour,
            status=run.status,
            error=run.error,
            cells={
                level: replace(cell, best=(level, labels[run.run_id].series) in best)
                for level, cell in cells[run.run_id].items()
            },
        )
        for run in runs
    ]
    return WorkloadAnswer(
        workload=workload,
        title=_title(workload, runs),
        levels=tuple(levels),
        columns=tuple(columns),
        leads=tuple(leads),
        sentence=_sentence(leads) if len(columns) > 1 else _alone(columns[0], levels),
    )


def _title(workload: str, runs: Sequence[RunData]) -> str:
    """What all runs of a workload share: its name and lengths, the model, the GPU."""
    sizes = {
        tuple(mapping(run.config.get("workload")).get(f"{way}_tokens") for way in ("input", "output")) for run in runs
    }
    lengths = sizes.pop() if len(sizes) == 1 else (None, None)
    known = all(isinstance(length, int) for length in lengths)
    models = {(run.fact("model") or "").rstrip("/").rsplit("/", 1)[-1] for run in runs}
    machines = {run.fact("gpu") or "" for run in runs}
    parts = [workload, f"{lengths[0]} in / {lengths[1]} out" if known else ""]
    parts += [next(iter(one)) for one in (models, machines) if len(one) == 1]
    return " · ".join(part for part in parts if part and part != "none")


def _cells(entrant: Entrant) -> dict[str, Cell]:
    return {level.label: _cell(level) for level in entrant.levels}


def _cell(level: RankedLevel) -> Cell:
    """A level: of one point its own figures, of several their mean over starts and its interval."""
    row = level.rows[0]
    value, low, high = (row.get(f"{THROUGHPUT}{end}") for end in ("", "_low", "_high"))
    if len(level.rows) > 1:
        value = metric_value(THROUGHPUT, level)
        low, high = metric_interval(THROUGHPUT, level) or (None, None)
    ttft_ms = metric_value("ttft_ms_p50", level) if len(level.rows) > 1 else row.ttft_ms_p50
    codes = tuple(code for code in level.doubts if not _is_mark(code)) if level.verdict != "valid" else ()
    return Cell(value=value, low=low, high=high, ttft_ms=ttft_ms, verdict=level.verdict, codes=codes)


def _is_mark(code: str) -> bool:
    return code in CATALOG and CATALOG[code].mark


def _lead(
    level: str,
    cells: Mapping[str, Mapping[str, Cell]],
    labels: Mapping[str, RunLabel],
    comparisons: Sequence[Comparison],
) -> Lead | None:
    """The lead at a level; None with fewer than two runs that count there."""
    values = {
        run: own[level].value or 0.0 for run, own in cells.items() if level in own and own[level].verdict != "void"
    }
    order = sorted((run for run, value in values.items() if value), key=lambda run: -values[run])
    if len(order) < 2:
        return None
    first, second = order[:2]
    rows = {rival: _seen_from(first, rival, level, comparisons) for rival in order[1:]}
    open_rivals = [rival for rival, row in rows.items() if not _is_clear(row)]
    # where a lead is not clear, the rival that it is not clear against is the one to name
    rival = open_rivals[0] if open_rivals else second
    row = rows[rival]
    unequal = [
        one.key
        for comparison in comparisons
        if set(comparison.ids) == {first, rival}
        for one in comparison.unequal
        if one.matters
    ]
    return Lead(
        level=level,
        leader=labels[first].series,
        rival=labels[rival].series,
        size=row.effect if row is not None and row.effect is not None else values[first] / values[rival] - 1,
        low=row.low if row is not None else None,
        high=row.high if row is not None else None,
        clear=not open_rivals,
        tied=tuple(labels[rival].series for rival in open_rivals),
        verdict=all(row is not None and row.competes and row.result == "faster" for row in rows.values()),
        unequal=tuple(dict.fromkeys(unequal)),
        codes=tuple(dict.fromkeys(code for one in rows.values() if one is not None for code in one.doubts)),
    )


def _is_clear(row: ComparisonRow | None) -> bool:
    """Whether a lead is more than its interval leaves open, and may be as large as a difference that matters."""
    return row is not None and row.low is not None and row.high is not None and row.low > 0 and row.high > MARGIN


def _seen_from(first: str, rival: str, level: str, comparisons: Iterable[Comparison]) -> ComparisonRow | None:
    """The throughput's row of two runs at a level, with the first as the candidate."""
    for one in comparisons:
        if set(one.ids) != {first, rival}:
            continue
        row = next((row for row in one.rows if row.level == level and row.metric.name == THROUGHPUT), None)
        return row if row is None or one.ids == (rival, first) else _turned(row)
    return None


def _turned(row: ComparisonRow) -> ComparisonRow:
    """A row with baseline and candidate exchanged."""

    def other(share: float | None) -> float | None:
        return None if share is None or share <= -1 else 1 / (1 + share) - 1

    results = {"faster": "slower", "slower": "faster"}
    return replace(
        row,
        baseline=row.candidate,
        candidate=row.baseline,
        effect=other(row.effect),
        low=other(row.high),
        high=other(row.low),
        result=results.get(row.result, row.result),  # type: ignore[arg-type]
    )


def lead_text(lead: Lead) -> str:
    """Return a lead with its interval: `41% [35, 48] more tok/s than x`, `2.3 times [2.1, 2.6] the tok/s of x`."""
    ends = lead.low, lead.high
    if lead.size >= TIMES_FROM:
        interval = "" if None in ends else f" [{', '.join(number(1 + (end or 0), 2) for end in ends)}]"
        return f"{number(1 + lead.size, 2)} times{interval} the tok/s of {lead.rival}"
    digits = 0 if lead.size >= 0.1 else 1
    interval = "" if None in ends else f" [{', '.join(f'{100 * (end or 0):.{digits}f}' for end in ends)}]"
    return f"{100 * lead.size:.{digits}f}%{interval} more tok/s than {lead.rival}"


def _sentence(leads: Sequence[Lead]) -> str:
    """Who leads where: neighbouring levels with the same leader share a clause, with the lead at the highest of them."""
    clauses = []
    for (_, clear), found in groupby(leads, key=lambda lead: (lead.leader if lead.clear else None, lead.clear)):
        group = list(found)
        last = group[-1]
        begin = "" if len(group) == 1 else f"{level_words(group[0].level, short=True)} to "
        if clear:
            where = f" at {level_words(last.level)}" if len(group) > 1 else ""
            text = f"{last.leader} gives {lead_text(last)}{where}"
        else:
            names = dict.fromkeys(name for lead in group for name in (lead.leader, *lead.tied))
            text = f"no clear difference between {' and '.join(names)}"
        provisional = " (provisional)" if any(lead.codes for lead in group) else ""
        clauses.append(f"{begin}{level_words(last.level)}: {text}{provisional}")
    return "; ".join(clauses)


def _alone(column: Column, levels: Sequence[str]) -> str:
    """What one run shows: its highest throughput, and what one gets at its lowest load."""
    known = [level for level in levels if column.cells[level].value and column.cells[level].verdict != "void"]
    if not known:
        return ""
    top = max(known, key=lambda level: column.cells[level].value or 0.0)
    shown = dict.fromkeys((known[0], top))
    clauses = []
    for level in shown:
        cell = column.cells[level]
        ttft = f", TTFT p50 {number(cell.ttft_ms)} ms" if cell.ttft_ms is not None else ""
        clauses.append(f"{level_words(level)}: {cell.text} tok/s{ttft}")
    return "; ".join(clauses)


def _remarks(runs: Sequence[RunData], labels: Mapping[str, RunLabel]) -> tuple[Remark, ...]:
    """Each warning once, in the order of the catalog, what is void or doubtful before what is only marked."""
    where: dict[str, dict[str, set[str]]] = {}
    points = {run.run_id: list(dict.fromkeys(row.level_label for row in run.point_rows)) for run in runs}
    for run in runs:
        for row in run.point_rows:
            for code in row.doubts:
                where.setdefault(code, {}).setdefault(run.run_id, set()).add(row.level_label)
    order = [*CATALOG, *where]
    found = []
    for code in sorted(where, key=lambda code: (_is_mark(code), order.index(code))):
        if code == "emulated":
            continue
        known = CATALOG.get(code)
        found.append(
            Remark(
                code=code,
                meaning=known.meaning if known else UNKNOWN,
                remedy=known.remedy if known else "",
                places=tuple(_places(where[code], points, labels)),
                mark=_is_mark(code),
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


def _inequalities(comparisons: Sequence[Comparison], labels: Mapping[str, RunLabel]) -> tuple[Inequality, ...]:
    """What the compared runs do not share, what matters first."""
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


def _caveats(runs: Sequence[RunData], workloads: Sequence[WorkloadAnswer]) -> Iterable[str]:
    """What holds for the whole answer."""
    if any(run.emulated for run in runs):
        yield "Emulated engines: these numbers do not describe the real ones."
    for one in workloads:
        for column in one.columns:
            yield from _out_of_line(column, one.levels)
    leads = [lead for one in workloads for lead in one.leads if lead.clear]
    if leads and not any(lead.verdict for lead in leads):
        yield "One start of each: these are differences of these starts, not yet a verdict on the engines."


def _out_of_line(column: Column, levels: Sequence[str]) -> Iterable[str]:
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


def _next_steps(
    runs: Sequence[RunData], workloads: Sequence[WorkloadAnswer], name: str, words: Sequence[str]
) -> Iterable[NextStep]:
    """What to run next: what is missing, then what would settle doubts, then what shows more."""
    statuses = {run.status for run in runs}
    if statuses & {"interrupted", "missing", "running"}:
        yield NextStep(command=f"servebench resume {name}", why="measure what is missing", continues=True)
    if "failed" in statuses:
        yield NextStep(command=f"servebench resume {name} --failed", why="try the failed runs again", continues=True)
    if any(needs_again(row.verdict, row.doubts) for run in runs for row in run.point_rows):
        yield NextStep(
            command=f"servebench resume {name} --better",
            why="settle the doubtful points",
            seconds=sum(map(_better_s, runs)),
        )
    # a name can be given only once
    words = [word for word in words if not word.startswith("study.name=")]
    if _one_start(runs) and len(runs) > 1 and words and any(lead.clear for one in workloads for lead in one.leads):
        each = [seconds_per_start(run) for run in runs]
        yield NextStep(
            command=f"servebench {shlex.join(words)} study.starts={STARTS_ADVISED}",
            why="for a verdict",
            seconds=STARTS_ADVISED * sum(one or 0.0 for one in each) if None not in each else None,
        )
    yield NextStep(command=f"servebench report {name} --open", why="all charts")


def _one_start(runs: Sequence[RunData]) -> bool:
    return all(len({row.start_id for row in run.point_rows}) <= 1 for run in runs)


def needs_again(verdict: str | None, codes: Iterable[str]) -> bool:
    """Return whether a longer measurement may settle what makes a point doubtful or void."""
    return verdict != "valid" and bool(AGAIN & set(codes))


def _better_s(run: RunData) -> float:
    """About how long it takes to measure the doubtful points of a run again, its engine's start included."""
    rows = [row for row in run.point_rows if needs_again(row.verdict, row.doubts)]
    start_s = mapping(run.manifest.get("cold_start")).get("seconds")
    began = float(start_s) if isinstance(start_s, (int, float)) else 0.0
    return LONGER * sum(row.window_s or 0.0 for row in rows) + (began if rows else 0.0)
