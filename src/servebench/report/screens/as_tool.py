"""A run's numbers by another load generator's definitions, next to servebench's, with the cause of each difference."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from servebench.contracts.labels import run_labels
from servebench.contracts.level import Level
from servebench.contracts.point_row import POINT_COLUMNS
from servebench.contracts.stored import RunData
from servebench.measure.dialects import ToolDefinition, retell
from servebench.report.blocks import Block, Heading, Line, items, table
from servebench.util.figures import change, number

LEGEND = (
    "from the window: servebench measures only while the requested load is present, the tool over its whole run",
    "from the definition: the effect of the tool's definition on the same requests",
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
