"""What commands have left in `outputs/`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd

from support.commands import attached


def attached_study(url: str, *words: str) -> tuple[str, ...]:
    """Return the words of a study `s` of a server that is already running, without tracking."""
    return attached(url, "tracking=none", "study.name=s", *words)


def document(path: Path) -> Any:
    """Return what a JSON file says."""
    return json.loads(path.read_text())


def run_of(folder: Path, study: str = "*", run: str = "*") -> Path:
    """Return the folder of the only run that has such a name."""
    (found,) = (path.parent for path in folder.glob(f"outputs/{study}/{run}/run.json"))
    return found


def status(folder: Path) -> str:
    """Return the status of a run, or of a study."""
    file = folder / "run.json"
    return str(document(file if file.exists() else folder / "study.json")["status"])


def points(run: Path) -> pd.DataFrame:
    """Return the points of a run, also of one that is measured now: read whole, since pandas opens a path twice."""
    return pd.read_parquet(io.BytesIO((run / "points.parquet").read_bytes())).sort_values(["repeat", "concurrency"])


def requests(run: Path, *, warmup: bool = False) -> pd.DataFrame:
    """Return the requests of a run without its warm-up, or those of that."""
    found = pd.read_parquet(run / "requests.parquet")
    return found[found.warmup == warmup]
