"""The summary of a study in the folder `summary/`, made for tools outside of servebench, above all MLflow.

`report.html` is the page of `servebench report`, `comparison.md` the verdicts, `points.csv` all points, the SVG and PNG files are
the charts of the report, and `summary.json` holds what MLflow's parent run shows: a note in Markdown, metrics per engine, tags.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servebench.contracts.point_row import columns_shown
from servebench.contracts.stored import RunData, StudyData
from servebench.store.tracking import SUMMARY_FACTS

if TYPE_CHECKING:
    from servebench.report.screens.page import Page

FOLDER = "summary"
WHOLE = "summary.json"
NOTE_WIDTH = 100


def write_summary(path: Path) -> Path:
    """Write the summary of the study in this folder, replace an earlier one, and return the summary's folder.

    Raises ConfigError, StoreError, OSError.
    """
    from servebench.analysis.recommendation.rules import load_rules
    from servebench.report.charts import draw
    from servebench.report.charts.specs import comparing
    from servebench.report.export.markdown import to_markdown
    from servebench.report.export.runs import to_csv
    from servebench.report.files import write_file
    from servebench.report.html.page import page
    from servebench.report.html.page_data import page_of
    from servebench.report.screens.comparison import comparison_blocks
    from servebench.store import studies as read

    study = read.load_study(path)
    data = page_of(study, load_rules())
    folder = path / FOLDER
    folder.mkdir(exist_ok=True)
    # it is the last file: a summary without it was cut off
    (folder / WHOLE).unlink(missing_ok=True)
    write_file(folder / "report.html", page(data))
    if data.comparisons:
        blocks = chain.from_iterable(map(comparison_blocks, data.comparisons))
        write_file(folder / "comparison.md", to_markdown(blocks))
    if any(one.rows for one in data.runs):
        write_file(folder / "points.csv", to_csv(study.runs))
    for chart in comparing(data.series, data.limits):
        spec = draw.composed(chart, data.series)
        write_file(folder / f"{chart.name}.svg", draw.svg(spec))
        write_file(folder / f"{chart.name}.png", draw.png(spec))
    shown = {"note": note(study), "metrics": metrics(data), "tags": tags(study.runs)}
    write_file(folder / WHOLE, json.dumps(shown, indent=1) + "\n")
    return folder


def label(name: str) -> str:
    """Return a run's short name in a form that is valid in a metric's name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")


def metrics(data: Page) -> list[dict[str, Any]]:
    """Return `metric/engine` for each level with a point that is not void, with the load and the time of its last point."""
    from servebench.analysis.estimate import levels_of, mean_of

    return [
        {
            "name": f"{column.name}/{label(one.name)}",
            "value": value,
            **{key: own[-1].get(key) for key in ("concurrency", "rate", "window_end_ns")},
        }
        for one in data.runs
        for own in levels_of(row for row in one.rows if row.verdict != "void").values()
        for column in columns_shown("mlflow")
        if (value := mean_of(own, column.name)) is not None
    ]


def tags(runs: Sequence[RunData]) -> dict[str, str]:
    """Return tags to filter studies by: each fact of the runs with all its values."""
    found = {
        f"servebench.{name}": ",".join(dict.fromkeys(str(value) for run in runs if (value := run.fact(name))))
        for name in SUMMARY_FACTS
    }
    found["servebench.emulated"] = str(any(run.emulated for run in runs)).lower()
    return found


def note(study: StudyData) -> str:
    """Return the study in Markdown: the last screen of the terminal, and the command that made it."""
    from servebench.report.export.markdown import to_markdown
    from servebench.report.screens.answer import answer_blocks
    from servebench.study.outlook import study_conclusions
    from servebench.util.safe_text import markdown_code

    lines = [to_markdown(answer_blocks(study_conclusions(study.path).answer, width=NOTE_WIDTH))]
    if study.words:
        lines += [markdown_code(f"servebench {shlex.join(study.words)}"), ""]
    lines.append(f"Artifacts: `{FOLDER}/report.html`, `{FOLDER}/comparison.md`, the charts.")
    return "\n".join(lines)
