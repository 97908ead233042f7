"""The sections of a report below its first screen: charts, points, comparison, timeline, limits, quality, warnings, commands."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import compress, starmap

from servebench.analysis.limits import RUNS_MAX
from servebench.analysis.warnings.catalog import explain
from servebench.contracts.level import Level, levels_in_words
from servebench.contracts.results import QualitySummary
from servebench.contracts.stored import RunData, mapping
from servebench.report.blocks import Block, Charts, Fold, Heading, Label, Line, NextCommand, Verbatim, items, table
from servebench.report.charts.model import STATS
from servebench.report.charts.specs import comparing, distributions, legend_of, weak_note
from servebench.report.charts.timeline import timeline_chart
from servebench.report.screens.comparison import comparison_blocks
from servebench.report.screens.page import Page
from servebench.report.screens.points import points_blocks
from servebench.report.trust import point_trust
from servebench.report.wording.limits import action_text, fact_text, statement_of
from servebench.util.figures import local_time, number, percent, seconds

DOUBT_NOTE = (
    "Why a point is doubtful, wide or void stands beside its trust; Warnings and remedies, below, explains the codes."
)
DISTURBERS_MAX = 3
"""So many are named above a timeline."""
STILL_PANELS = 3
"""So many panels of a timeline are in its still picture: its requests, and the first ones below them."""
FIRST = ("output_throughput", "ttft", "tpot", "goodput", "user_speed_against_throughput")
"""The charts that are shown at once; the others are a click away."""
CHARTS_NOTE = "Bands and bars are 95% intervals. Hollow marks are doubtful points."
QUALITY_HEAD = (
    *("run", "benchmark", "at", "answers", "measure", "%", "95% interval"),
    *("failed", "latency p50 ms", "p99 ms", "right/s", "warnings"),
)
LIMITS_HEAD = ("run", "load", "limit", "evidence", "what to try")
BRACKETS_NOTE = "A verdict in brackets does not count: its points are not valid, or the settings differ."
LONG_COMMAND = 600
"""Longer commands of engines are folded."""


def load(data: Page) -> Iterator[Block]:
    """Yield the charts of throughput and latency against the load: those that decide first, then the others."""
    sets = comparing(data.runs, data.limits)
    if not sets:
        yield Line.of("No point was measured.")
        return
    void = sum(row.verdict == "void" for one in data.runs for row in one.rows)
    hidden = f"{void} void point{'s are' if void > 1 else ' is'} not drawn." if void else ""
    yield Line.of(" ".join(filter(None, (CHARTS_NOTE, hidden, weak_note(data.runs)))), tone="dim")
    yield Charts([one for one in sets if one.name in FIRST], legend_of(data.runs), STATS)
    if more := [one for one in sets if one.name not in FIRST]:
        yield Fold(f"more charts: {', '.join(one.title for one in more)}", [Charts(more)])


def distribution(data: Page) -> Iterator[Block]:
    """Yield the charts of latency distributions at the highest common load."""
    found = distributions(data.runs, data.distribution_at) if data.distribution_at else None
    if found is not None:
        yield Charts([found], legend_of(data.runs))


def points(data: Page) -> Iterator[Block]:
    """Yield the table of all points, with the columns that have values."""
    rows = [(one.label, row) for one in data.runs for row in one.rows]
    if rows:
        yield from points_blocks(rows, "report")
        if any(point_trust(row.verdict, row.doubts)[1] for _, row in rows):
            yield Line.of(DOUBT_NOTE, tone="dim")


def timeline(data: Page) -> Iterator[Block]:
    """Yield the requests of a point of each run over time, with who disturbed it."""
    for one in data.timelines:
        if (chart := timeline_chart(one)) is not None:
            printed = timeline_chart(replace(one, panels=one.panels[: STILL_PANELS - 1]))
            yield Charts([chart], printed=printed)
            yield from (Line.of(who, tone="dim") for _, _, who in one.disturbed[:DISTURBERS_MAX])


def cold_start(data: Page) -> Iterator[Block]:
    """Yield the phases of each cold start."""
    rows, shared = [], []
    for one in data.runs:
        start = mapping(one.run.manifest.get("cold_start"))
        phases = [
            (str(mapping(phase).get("name")), float(mapping(phase)["seconds"]))
            for phase in start.get("phases") or ()
            if isinstance(mapping(phase).get("seconds"), (int, float))
        ]
        if phases and start.get("shared"):
            shared.append(one.label)
        else:
            rows += [[one.label, phase, f"{at:.2f}"] for phase, at in phases]
    if rows:
        yield table(("run", "phase", "ended after, s"), rows, left=(0, 1), caption="Phases of each start")
    if shared:
        yield Line.of(f"Started by an earlier run: {', '.join(shared)}.", tone="dim")


def quality(data: Page) -> Iterator[Block]:
    """Yield the result of each benchmark; comparisons say how the runs compare."""
    if not data.quality:
        yield Line.of("Not measured: set quality= to measure it.", tone="dim")
        return
    if any(result.emulated for _, result in data.quality):
        yield Line.of("The answers of an emulated engine have no meaning.", tone="warn")
    yield table(QUALITY_HEAD, starmap(_quality_cells, data.quality), left=(0, 1, 2, 4, 11), caption="Quality")


def _quality_cells(run: str, result: QualitySummary) -> list[str]:
    share, low, high = (percent(one).removesuffix("%") for one in (result.value, result.low, result.high))
    return [
        *(run, result.benchmark, result.at, str(result.n), result.measure, share),
        *(f"{low} to {high}", str(result.unanswered), number(result.latency_ms_p50)),
        *(number(result.latency_ms_p99), number(result.right_per_s), ", ".join(doubt.code for doubt in result.doubts)),
    ]


def comparison(data: Page) -> Iterator[Block]:
    """Yield the rows and the verdict of each comparison."""
    found = data.conclusions.comparisons
    if not found and sum(bool(one.rows) for one in data.runs) > 1:
        yield Line.of("one run per setup: there is nothing to compare", tone="dim")
    for one in found:
        yield from comparison_blocks(one, opened=len(found) == 1)
    if any(not row.competes for one in found for row in one.rows):
        yield Line.of(BRACKETS_NOTE, tone="dim")


def fairness(data: Page) -> Iterator[Block]:
    """Yield the settings that compared runs do not share."""
    rows: list[list[str | Label]] = [
        [
            one.name,
            "; ".join(f"{value}: {', '.join(names)}" for value, names in one.values.items()),
            Label("matters", "bad") if one.matters else Label("no"),
            one.reason,
        ]
        for one in data.answer.inequalities
    ]
    if rows and data.conclusions.comparisons:
        head = ("setting", "values", "matters", "why")
        yield table(head, rows, left=(2,), wrap=(0, 1, 3), caption="Settings that differ")
    elif data.conclusions.comparisons:
        yield Line.of("All settings are the same.")


def warnings(data: Page) -> Iterator[Block]:
    """Yield each warning with what it means, what to do, and where it occurs."""
    rows = [[one.code, explain(one.code), one.where] for one in data.answer.remarks]
    graded: dict[str, list[str]] = {}
    for run, result in data.quality:
        for doubt in result.doubts:
            graded.setdefault(doubt.code, []).append(f"{run}, {result.benchmark} at {result.at}")
    rows += [[code, explain(code), ", ".join(dict.fromkeys(places))] for code, places in graded.items()]
    if rows:
        head = ("warning", "what it means and what to do", "where")
        yield table(head, rows, wrap=(1, 2), caption="Warnings and remedies")
    elif any(one.rows for one in data.runs):
        yield Line.of("None: every point is valid.")


def limits(data: Page) -> Iterator[Block]:
    """Yield what limits each run at each load, on what evidence, and what to try."""
    levels: dict[tuple[str, ...], list[Level]] = {}
    for run, one in data.conclusions.limits or ():
        evidence = "; ".join(fact_text(fact) for fact in one.evidence)
        proposals = "; ".join(f"{action_text(proposal)} (may cost: {proposal.cost})" for proposal in one.proposals)
        key = (run, f"{statement_of(one)} [{one.code}]", evidence, proposals)
        levels.setdefault(key, []).append(one.level)
    rows = [[run, levels_in_words(at), *rest] for (run, *rest), at in levels.items()]
    left = sum(bool(run.rows) for run in data.runs) - RUNS_MAX
    if rows and left > 0:
        rows.append([f"{left} more", "", "'servebench show RUN' has those of each run", "", ""])
    if rows:
        kept = [any(cells) for cells in zip(*rows, strict=True)]
        head, *shown = (list(compress(cells, kept)) for cells in (LIMITS_HEAD, *rows))
        yield table(head, shown, left=(0, 1), wrap=(2, 3, 4), caption="Limits")


def commands(data: Page) -> Iterator[Block]:
    """Yield the engine's command and the machine of each run; the command of the study is on the first screen."""
    for one in data.runs:
        yield Heading(f"{one.label}: {one.run.title}")
        yield from _made_by(one.run)


def _made_by(run: RunData) -> Iterator[Block]:
    manifest = run.manifest
    machine = mapping(manifest.get("machine"))
    gpus = [mapping(gpu) for gpu in machine.get("gpus") or ()]
    started, ended = manifest.get("started_s"), manifest.get("ended_s")
    facts = {
        "folder": f"{run.path.parent.name}/{run.path.name}",
        "started": local_time(run.started_s),
        "took": seconds(ended - started) if started and ended else None,
        "machine": " · ".join(str(v) for v in (machine.get("platform"), machine.get("cpu_model")) if v),
        "GPU": ", ".join(f"{gpu.get('name')} (driver {gpu.get('driver_version')})" for gpu in gpus),
        "CUDA": machine.get("cuda"),
        "commit": mapping(manifest.get("git")).get("commit"),
        "measured by": run.foreign,
    }
    yield items(f"{name}: {value}" for name, value in facts.items() if value)
    command = mapping(manifest.get("command"))
    argv = [str(word) for word in command.get("argv") or ()]
    variables = [f"{name}={shlex.quote(str(value))}" for name, value in mapping(command.get("env")).items()]
    if argv:
        text = " ".join([*variables, shlex.join(argv)])
        shown = NextCommand("engine", text, "the engine's command")
        yield Fold("the engine's command", [Verbatim(text)], screen=True) if len(text) > LONG_COMMAND else shown
    if run.config and not run.foreign:
        lock = shlex.quote(str(run.path / "manifest.json"))
        yield NextCommand("again", f"servebench run --lock {lock}", "to repeat this run")
