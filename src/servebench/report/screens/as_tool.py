"""A run's numbers by another tool's definitions: next to servebench's, with the cause of each difference; or by the rules of
MLPerf Endpoints, marked as unofficial."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from servebench.analysis.mlperf import rules
from servebench.analysis.mlperf.rules import CurvePoint, RuleFinding
from servebench.contracts.labels import run_labels
from servebench.contracts.level import Level
from servebench.contracts.point_row import POINT_COLUMNS
from servebench.contracts.stored import RunData
from servebench.measure.dialects import ToolDefinition, retell
from servebench.report.blocks import Block, Heading, Line, items, table
from servebench.util.figures import change, number, short_number

LEGEND = (
    "from the window: servebench measures only while the requested load is present, the tool over its whole run",
    "from the definition: the effect of the tool's definition on the same requests",
)
UNOFFICIAL = "UNOFFICIAL"
POINTS = ("load", "region", "system_tps", "tps_per_user", "ttft_p90_ms", "steady state")
BROKEN = ("broken rule", "§", "at", "found", "needed", "then")
NOTES = (
    f"{UNOFFICIAL}: no result of MLPerf, not verified by MLCommons, and not to be published as one",
    f"by: {rules.SOURCE}",
    f"not judged: {', '.join(rules.NOT_JUDGED)}",
)
NO_SIZE = (
    "without --data-set N a point is cut into 20 super-passes, and min-query-count and sample-multiple are not judged"
)


@dataclass(frozen=True, kw_only=True)
class ToolPoint:
    """A point by a tool's definitions, with the rows of `measure.dialects`."""

    run: str
    level: Level
    repeat: int
    rows: Sequence[Any]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        rows = [{**asdict(row), "by_window": row.by_window, "by_definition": row.by_definition} for row in self.rows]
        return {"run": self.run, "level": str(self.level), "repeat": self.repeat, "metrics": rows}


def points_as_tool(runs: Sequence[RunData], dialect: ToolDefinition) -> list[ToolPoint]:
    """Return the points of these runs by another tool's definitions, without those that have no requests."""
    labels = run_labels(runs)
    return [
        ToolPoint(run=labels[run.run_id].text, level=row.level, repeat=row.repeat, rows=rows)
        for run in runs
        if len(requests := run.requests)
        for row in run.point_rows
        if (rows := retell(requests[requests["point"] == row.point], row, dialect))
    ]


def as_tool_blocks(points: Sequence[ToolPoint], dialect: ToolDefinition) -> Iterator[Block]:
    """Yield a table for each point, then the tool's other definitions."""
    repeated = any(point.repeat for point in points)
    head = ("", "servebench", dialect.title, "from the\nwindow", "from the\ndefinition", "definition")
    for point in points:
        which = f"{point.level.words}, repeat {point.repeat}" if repeated else point.level.words
        yield Heading(f"{point.run}, {which}, by the definitions of {dialect.title}")
        rows = [
            [
                *(POINT_COLUMNS[row.metric].labelled, number(row.own), number(row.theirs)),
                *(change(row.by_window), change(row.by_definition), row.because),
            ]
            for row in point.rows
        ]
        yield table(head, rows, wrap=(5,))
    yield from map(Line.of, LEGEND)
    yield items(f"note: {note}" for note in dialect.notes)


def curves_of(runs: Sequence[RunData], data_set: int | None) -> dict[str, list[CurvePoint]]:
    """Return the points of each run that has stored requests, by its label. Raises StoreError."""
    labels = run_labels(runs)
    return {labels[run.run_id].text: points for run in runs if (points := rules.curve_of(run, data_set))}


def as_document(curves: Mapping[str, Sequence[CurvePoint]], data_set: int | None) -> dict[str, Any]:
    """Return the curves as plain data."""
    runs = []
    for name, points in curves.items():
        regions = rules.regions_of(rules.fixed_levels(points))
        findings = rules.judge(points, data_set)
        shown = [
            {
                **asdict(one),
                "level": str(one.level),
                "region": rules.region_of(one, regions),
                "official": asdict(one.official),
            }
            for one in points
        ]
        judged = [{**asdict(one), "level": one.level and str(one.level)} for one in findings]
        broken = sorted({one.rule for one in findings if not one.kept})
        runs.append({"run": name, "regions": regions, "points": shown, "rules": judged, "broken": broken})
    facts = {"source": rules.SOURCE, "data_set": data_set, "not_judged": list(rules.NOT_JUDGED)}
    return {"as": "mlperf", "unofficial": True, **facts, "runs": runs}


def as_mlperf_blocks(curves: Mapping[str, Sequence[CurvePoint]], data_set: int | None) -> Iterator[Block]:
    """Yield for each curve a table of its points and one of the rules that it breaks."""
    for name, points in curves.items():
        regions = rules.regions_of(rules.fixed_levels(points))
        yield Heading(f"{UNOFFICIAL}: {name}, by the rules of MLPerf Endpoints")
        shown = [[_at(one), rules.region_of(one, regions) or "-", *_figures(one)] for one in points]
        yield table(POINTS, shown, left=(0, 1), wrap=(5,), caption=UNOFFICIAL)
        broken = [one for one in rules.judge(points, data_set) if not one.kept]
        count = len({one.rule for one in broken})
        yield Line.of(
            f"{UNOFFICIAL}: {count} of the rules that its records show are broken", tone="bad" if count else "good"
        )
        if broken:
            yield table(BROKEN, [_finding(one) for one in broken], left=(0, 1), wrap=(2, 3, 4, 5))
    yield from map(Line.of, NOTES if data_set else (*NOTES, NO_SIZE))


def _figures(point: CurvePoint) -> Iterator[str]:
    metrics, steady = point.official, point.steady
    yield from map(number, (metrics.system_tps, metrics.tps_per_user, metrics.ttft_p90_ms))
    text = "no window" if steady is None else f"{point.duration_s:.0f} s, {steady.verdict.lower().replace('_', ' ')}"
    yield f"{text} (whole run)" if metrics is point.total else text


def _finding(one: RuleFinding) -> list[str]:
    section, consequence = rules.RULES[one.rule]
    shown = (each.replace("_", " ") if isinstance(each, str) else _exact(each) for each in (one.found, one.needed))
    return [one.rule, section, _at(one), *shown, consequence]


def _exact(value: float) -> str:
    """A rule is kept or not by all digits of a number of requests."""
    return f"{value:,.0f}" if float(value).is_integer() else short_number(value)


def _at(one: CurvePoint | RuleFinding) -> str:
    if one.level is None:
        return "curve"
    return f"{one.level.words}, repeat {one.repeat}" if one.repeat else one.level.words
