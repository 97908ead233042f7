"""Serves the dashboard with everything warm: what is slow to import and to read is there before the first page is asked for.

`python -m servebench.report.dashboard.serve OUTPUTS -- STREAMLIT_OPTIONS`; `servebench dashboard` starts it.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from servebench.store import studies as read

if TYPE_CHECKING:
    import pandas as pd

Signature = tuple[tuple[str, int], ...]


def signature(outputs: Path) -> Signature:
    """What changes when a study is added or goes on: the studies and when their state was last written."""
    found = []
    for path in read.study_paths(outputs):
        state = path / "study.json"
        found.append((path.name, (state if state.exists() else path).stat().st_mtime_ns))
    return tuple(found)


@lru_cache(maxsize=2)
def points_of(outputs: str, _: Signature) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All points and runs below a folder, read again when its signature changes. Shared: nobody may change them."""
    points, runs = read.all_points(Path(outputs))
    if not points.empty:
        points = points.copy()  # in one piece: it is made of many
        points["load"] = points["rate"].fillna(points["concurrency"]) if "rate" in points else points["concurrency"]
        points["level"] = points["load"].map(lambda value: f"{value:g}")
        points["run_key"] = points["study"] + "/" + points["run"]
        differ = [name for name in ("engine", "workload", "model", "gpu") if points[name].nunique() > 1] or ["engine"]
        told = points[differ].fillna("-").astype(str)
        points["series"] = told[differ[0]]
        for name in differ[1:]:
            points["series"] += ", " + told[name]
    return points, runs


def main() -> None:
    """Warm up, then become Streamlit."""
    from streamlit.web import cli

    from servebench.report.dashboard import charts  # noqa: F401
    from servebench.report.html import build  # noqa: F401  slow to import

    outputs = sys.argv[1]
    points_of(outputs, signature(Path(outputs)))
    app = Path(__file__).with_name("app.py")
    sys.argv = ["streamlit", "run", str(app), *sys.argv[2:], "--", outputs]
    cli.main()


if __name__ == "__main__":
    # Streamlit's pages import this module by its name: the warm copy has to be that one
    from servebench.report.dashboard.serve import main as start

    start()
