"""A run's numbers by another load generator's definitions, next to servebench's, with the cause of each difference."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from servebench.contracts.labels import run_labels
from servebench.contracts.level import Level
from servebench.contracts.point_row import POINT_COLUMNS
from servebench.contracts.stored import RunData
from servebench.measure.dialects import ToolDefinition, retell
from servebench.report.terminal.tables import new_table
from servebench.util.figures import change, number
from servebench.util.plain_data import to_json as plain_json

LEGEND = (
    "from the window: servebench measures only while the requested load is present, the tool over its whole run\n"
    "from the definition: the effect of the tool's definition on the same requests"
)


@dataclass(frozen=True, kw_only=True)
class ToolPoint:
    """A point by a tool's definitions, with the rows of `measure.dialects`."""

    run: str
    level: Level
    repeat: int
    rows: Sequence[Any]


def print_as_tool(points: Sequence[ToolPoint], title: str, notes: Sequence[str], out: Console) -> None:
    """Print a table per point, then the tool's other definitions."""
    repeated = any(point.repeat for point in points)
    for point in points:
        which = f"{point.level.words}, repeat {point.repeat}" if repeated else point.level.words
        out.print(Text(f"{point.run}, {which}, by the definitions of {title}", style="bold"))
        table = new_table()
        for name in ("", "servebench", title, "from the\nwindow", "from the\ndefinition"):
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        table.add_column("definition", overflow="fold")
        for row in point.rows:
            cells = (number(row.own), number(row.theirs), change(row.by_window), change(row.by_definition))
            table.add_row(POINT_COLUMNS[row.metric].labelled, *cells, Text(row.because))
        out.print(table)
    out.print(LEGEND)
    for note in notes:
        out.print(f"note: {note}")


def write_json(points: Sequence[ToolPoint], tool: str, notes: Sequence[str]) -> None:
    """Write the same as JSON to standard output."""
    plain = [
        {
            "run": point.run,
            "level": str(point.level),
            "repeat": point.repeat,
            "metrics": [
                {**asdict(row), "by_window": row.by_window, "by_definition": row.by_definition} for row in point.rows
            ],
        }
        for point in points
    ]
    sys.stdout.write(plain_json({"as": tool, "notes": list(notes), "points": plain}))


def points_as_tool(runs: Sequence[RunData], dialect: ToolDefinition) -> list[ToolPoint]:
    """Return the points of these runs by another tool's definitions, without those that have no requests."""
    points = []
    labels = run_labels(runs)
    for run in runs:
        requests = run.requests
        for row in run.point_rows if len(requests) else ():
            rows = retell(requests[requests["point"] == row.point], row, dialect)
            if rows:
                points.append(ToolPoint(run=labels[run.run_id].text, level=row.level, repeat=row.repeat, rows=rows))
    return points
