"""Serves the dashboard warm: slow imports and reads are done before the first page is requested.

`python -m servebench.report.dashboard.serve OUTPUTS PORT STREAMLIT_OPTIONS`; `servebench dashboard` starts it.
"""

from __future__ import annotations

import secrets
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from servebench.report.dashboard.local import ADDRESS, Door, guard
from servebench.store.overview import all_points
from servebench.store.studies import study_paths

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
def points_of(outputs: str, _: Signature) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return all points and runs in a folder, read again when its signature changes. Shared: do not modify them."""
    points, runs = all_points(Path(outputs))
    if not points.empty:
        points = points.copy()  # defragment it
        points["load"] = points["rate"].fillna(points["concurrency"]) if "rate" in points else points["concurrency"]
        points["level"] = points["load"].map(lambda value: f"{value:g}")
        points["run_key"] = points["study"] + "/" + points["run"]
    return points, runs


def main() -> None:
    """Warm up, then become Streamlit."""
    from streamlit.web import cli

    from servebench.report.html import page, page_data  # noqa: F401  slow to import

    outputs, port, *options = sys.argv[1:]
    # made here: other users can read the words of a command
    token = secrets.token_urlsafe(32)
    guard(Door(token, int(port)))
    sys.stderr.write(
        f"servebench: the dashboard is at http://{ADDRESS}:{port}/?token={token}; press Ctrl-C to stop it\n"
    )
    sys.stderr.flush()
    points_of(outputs, signature(Path(outputs)))
    app = Path(__file__).with_name("app.py")
    sys.argv = ["streamlit", "run", str(app), *options, "--", outputs]
    cli.main()


if __name__ == "__main__":
    # Streamlit's pages import this module by name: that copy must be the warm one
    from servebench.report.dashboard.serve import main as start

    start()
