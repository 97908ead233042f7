"""A study by the definitions and rules of MLPerf Endpoints, marked as unofficial."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from servebench.analysis.mlperf.rules import (
    NOT_JUDGED,
    SOURCE,
    CurvePoint,
    RuleFinding,
    broken,
    curve_of,
    judge,
    region_of,
    regions_of,
)
from servebench.contracts.labels import run_labels
from servebench.contracts.stored import RunData
from servebench.report.blocks import Block, Heading, Line, table
from servebench.util.figures import number, short_number

UNOFFICIAL = "UNOFFICIAL"
NOTES = (
    f"{UNOFFICIAL}: not a result of MLPerf, not verified by MLCommons, and not to be published as one.",
    f"by: {SOURCE}",
    "steady state: seconds from first to last issue of its window / seconds that the rules ask for, and the detector's verdict; "
    "where the window is official its metrics are shown, else those of the whole run (*)",
)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A run as a curve of MLPerf Endpoints, and what its rules say of it."""

    run: str
    points: Sequence[CurvePoint]
    findings: Sequence[RuleFinding]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        regions = regions_of([one.users for one in self.points if one.users is not None])
        return {
            "run": self.run,
            "unofficial": True,
            "regions": regions and vars(regions),
            "points": [one.as_dict(regions) for one in self.points],
            "rules": [one.as_dict() for one in self.findings],
            "broken": sorted({one.rule.name for one in broken(self.findings)}),
        }


def curves_of(runs: Sequence[RunData], data_set: int | None) -> list[Curve]:
    """Return the curves of these runs, without those that have no requests. `data_set` is the number of its samples."""
    labels = run_labels(runs)
    curves = ((run, curve_of(run, data_set)) for run in runs)
    return [
        Curve(run=labels[run.run_id].text, points=points, findings=judge(points, data_set))
        for run, points in curves
        if points
    ]


def as_document(curves: Sequence[Curve], data_set: int | None) -> dict[str, Any]:
    """Return the curves as plain data."""
    return {
        "as": "mlperf",
        "unofficial": True,
        "source": SOURCE,
        "data_set": data_set,
        "not_judged": list(NOT_JUDGED),
        "runs": [one.as_dict() for one in curves],
    }


def as_mlperf_blocks(curves: Sequence[Curve], data_set: int | None) -> Iterator[Block]:
    """Yield for each curve a table of its points and one of the rules that it breaks."""
    for curve in curves:
        yield Heading(f"{UNOFFICIAL}: {curve.run}, by the rules of MLPerf Endpoints")
        yield _points(curve)
        bad = broken(curve.findings)
        if bad:
            yield Line.of(f"{UNOFFICIAL}: breaks {len({one.rule.name for one in bad})} rules", tone="bad")
            yield _rules(bad)
        else:
            judged = len({one.rule.name for one in curve.findings})
            yield Line.of(f"{UNOFFICIAL}: breaks none of the {judged} rules that its records show", tone="good")
    yield from map(Line.of, NOTES)
    if data_set is None:
        yield Line.of(
            "the size of the data set is not known (--data-set N): a point is cut into 20 super-passes, and min-query-count and "
            "sample-multiple are not judged"
        )
    yield Line.of(f"not judged: {', '.join(NOT_JUDGED)}")


def _points(curve: Curve) -> Block:
    regions = regions_of([one.users for one in curve.points if one.users is not None])
    head = ("load", "region", "system_tps", "tps_per_user", "ttft_p90_ms", "steady state")
    rows = []
    for one in curve.points:
        metrics, steady = one.official, one.steady
        basis = "" if steady is not None and steady.official else "*"
        shown = [number(each) for each in (metrics.system_tps, metrics.tps_per_user, metrics.ttft_p90_ms)]
        rows.append([_at(one), region_of(one.users, regions) or "-", *shown, _steady(one) + basis])
    return table(head, rows, left=(0, 1), wrap=(5,), caption=UNOFFICIAL)


def _steady(point: CurvePoint) -> str:
    if point.steady is None:
        return "not defined"
    return f"{point.duration_s:.0f} s, {point.steady.verdict.lower().replace('_', ' ')}"


def _rules(findings: Sequence[RuleFinding]) -> Block:
    rows = []
    for one in findings:
        figures = [one.found, one.needed]
        shown = [each if isinstance(each, str) else short_number(each) for each in figures]
        rows.append([one.rule.name, one.rule.section, _at(one), *shown, one.rule.consequence])
    return table(("broken rule", "§", "at", "found", "needed", "then"), rows, left=(0, 1), wrap=(3, 4, 5))


def _at(one: CurvePoint | RuleFinding) -> str:
    if one.level is None:
        return "curve"
    return f"{one.level.words}, repeat {one.repeat}" if one.repeat else one.level.words
