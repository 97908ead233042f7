"""The numbers of a run as another load generator would print them, beside servebench's, with what makes the difference."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from servebench.contracts.stored import RunData
from servebench.measure.dialects import Dialect, retell
from servebench.util.figures import MISSING, number

TITLES = {
    "output_throughput_tok_s": "output tok/s",
    "request_throughput_req_s": "requests/s",
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "itl_ms": "ITL ms",
    "e2e_ms": "E2E ms",
}


@dataclass(frozen=True, kw_only=True)
class RetoldPoint:
    """A point by a tool's definitions; `rows` are those of `measure.dialects.retell`."""

    run: str
    level: str
    rows: Sequence[Any]


def _title(metric: str) -> str:
    if metric in TITLES:
        return TITLES[metric]
    name, _, statistic = metric.rpartition("_")
    return f"{TITLES.get(name, name)} {statistic}"


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:+.1f} %"


def print_retold(points: Sequence[RetoldPoint], title: str, notes: Sequence[str], out: Console) -> None:
    """Write a table a point, then what the tool does otherwise."""
    for point in points:
        out.print(Text(f"{point.run}, load {point.level}, as {title} would tell it", style="bold"))
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        for name in ("", "servebench", title, "by the\nwindow", "by the\ndefinition"):
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        table.add_column("the definition", overflow="fold")
        for row in point.rows:
            cells = (number(row.own), number(row.theirs), _percent(row.by_window), _percent(row.by_definition))
            table.add_row(_title(row.metric), *cells, row.because)
        out.print(table)
    out.print(
        "by the window: servebench counts what happened while the asked load was there, the tool its whole run\n"
        "by the definition: what the tool's own definition changes on the same requests"
    )
    for note in notes:
        out.print(f"also: {note}", markup=False)


def write_json(points: Sequence[RetoldPoint], tool: str, notes: Sequence[str]) -> None:
    """The same as JSON, to standard output."""
    told = [
        {
            "run": point.run,
            "level": point.level,
            "metrics": [
                {**asdict(row), "by_window": row.by_window, "by_definition": row.by_definition} for row in point.rows
            ],
        }
        for point in points
    ]
    sys.stdout.write(json.dumps({"as": tool, "notes": list(notes), "points": told}, indent=2) + "\n")


def retold_points(runs: Sequence[RunData], dialect: Dialect) -> list[RetoldPoint]:
    """Return the points of these runs by another tool's definitions, without those that have no requests."""
    points = []
    for run in runs:
        requests = run.requests
        for row in run.point_rows if len(requests) else ():
            retold = retell(requests[requests["point"] == row.point], row, dialect)
            if retold:
                points.append(RetoldPoint(run=run.run_id, level=row.level_label, rows=retold))
    return points
