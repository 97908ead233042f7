"""Serves the dashboard warm: slow imports and reads are done before the first page is requested.

`python -m servebench.report.dashboard.serve OUTPUTS PORT STREAMLIT_OPTIONS`; `servebench dashboard` starts it.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from servebench.analysis.estimate import best_level, levels_of, mean_of
from servebench.analysis.statistics import is_weak_percentile
from servebench.contracts.labels import run_labels
from servebench.contracts.point_row import columns_shown
from servebench.contracts.stored import FACTS, RunData
from servebench.report.dashboard.local import ADDRESS, Door, guard
from servebench.report.trust import count_verdicts
from servebench.store.overview import listed_rows
from servebench.store.studies import load_outputs, study_paths
from servebench.util.safe_text import clean_line

if TYPE_CHECKING:
    import pandas as pd

Signature = tuple[tuple[str, int], ...]


def signature(outputs: Path) -> Signature:
    """Return what changes when a study is added or continues: the studies and when their state was last written."""
    found = []
    for path in study_paths(outputs):
        state = path / "study.json"
        found.append((path.name, (state if state.exists() else path).stat().st_mtime_ns))
    return tuple(found)


@lru_cache(maxsize=2)
def stored(outputs: str, _: Signature) -> tuple[pd.DataFrame, Mapping[str, RunData]]:
    """Return a row for each run of a folder, and the runs by id with the points that lists show, read again when its signature
    changes. Shared: do not modify them."""
    import pandas as pd

    studies = load_outputs(Path(outputs), listed_rows)
    labels = {key: label.text for one in studies for key, label in run_labels(one.runs).items()}
    runs = {run.run_id: run for one in studies for run in one.runs}
    return pd.DataFrame([run_row(run, labels[key]) for key, run in runs.items()]), runs


def run_row(run: RunData, label: str) -> dict[str, Any]:
    """Return a run as the overview shows it: its load with the highest throughput, as `ls` has it; void ones where there are no
    others. Verdict and warnings are those of a point that is not valid, if there is one."""
    rows, columns = run.point_rows, [one.name for one in columns_shown("dashboard")]
    best = best_level(rows) or best_level(replace(row, verdict="doubtful") for row in rows)
    at = levels_of(rows)[best.level] if best else []
    shown = next((row for row in at if row.verdict != "valid"), at[-1] if at else None)
    weak = {name for name in columns for row in at if is_weak_percentile(row, name)}
    found = {
        "study": run.study_id,
        "run": label,
        "level": best.level.number if best else None,
        **{name: None if name in weak else mean_of(at, name) for name in columns},
        "verdict": shown.verdict if shown else None,
        "doubts": ";".join(shown.doubts) if shown else None,
        **{name: run.fact(name) for name in FACTS},
        "status": run.status,
        "error": run.error,
    }
    return {
        **{name: clean_line(value) if isinstance(value, str) else value for name, value in found.items()},
        **{"started_s": run.started_s, "points": len(rows), "valid": count_verdicts(rows)["valid"], "id": run.run_id},
        "page": f"?view=Study&one-study={quote(run.study_id)}",
    }


def main() -> None:
    """Warm up, then become Streamlit."""
    from streamlit.web import cli

    from servebench.report.html import page  # noqa: F401  slow to import

    outputs, port, *options = sys.argv[1:]
    # made here: other users can read the words of a command
    token = secrets.token_urlsafe(32)
    guard(Door(token, int(port)))
    sys.stderr.write(
        f"servebench: the dashboard is at http://{ADDRESS}:{port}/?token={token}; press Ctrl-C to stop it\n"
    )
    sys.stderr.flush()
    stored(outputs, signature(Path(outputs)))
    app = Path(__file__).with_name("app.py")
    sys.argv = ["streamlit", "run", str(app), *options, "--", outputs]
    cli.main()


if __name__ == "__main__":
    # Streamlit's pages import this module by name: that copy must be the warm one
    from servebench.report.dashboard.serve import main as start

    start()
