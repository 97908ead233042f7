"""Exports runs as CSV and JSON."""

import csv
import io
from collections.abc import Sequence

from servebench.contracts.labels import run_labels
from servebench.contracts.point_row import POINT_COLUMNS
from servebench.contracts.stored import RunData
from servebench.store.tables import csv_cell
from servebench.util.plain_data import to_json as plain_json
from servebench.util.safe_text import clean_csv


def to_csv(runs: Sequence[RunData]) -> str:
    """Return all points of all runs as CSV; study and run come before the columns of points.csv. Labels are those of the runs
    among one another."""
    labels = run_labels(runs)
    every = [
        {"study": run.study_id, "run": run.name, **row.as_dict(), "label": labels[run.run_id].text}
        for run in runs
        for row in run.point_rows
    ]
    # a table without rows has its columns, too
    names = list(dict.fromkeys(name for row in every for name in row)) or ["study", "run", *POINT_COLUMNS, "label"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(clean_csv, names))
    writer.writerows([csv_cell(row.get(name)) for name in names] for row in every)
    return text.getvalue()


def to_json(runs: Sequence[RunData]) -> str:
    """Return all runs with manifest and points as JSON."""
    plain = [
        {
            "study": run.study_id,
            "run": run.name,
            "status": run.status,
            "error": run.error,
            "measured_by": run.foreign or "servebench",
            "manifest": dict(run.manifest),
            "points": [row.as_dict() for row in run.point_rows],
        }
        for run in runs
    ]
    return plain_json(plain)
