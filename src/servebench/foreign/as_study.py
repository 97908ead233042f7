"""Stores the results of other load generators as a study, which every command can read."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servebench import __version__
from servebench.analysis.warnings.catalog import FOREIGN
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import SCHEMA_VERSION, Point
from servebench.contracts.stored import FOREIGN_KEY
from servebench.foreign.readers import ForeignRun
from servebench.store.layout import create_study, slug
from servebench.store.manifest import write_manifest
from servebench.store.state import RunState, StudyState, write_run, write_study
from servebench.store.tables import write_points
from servebench.util.bounded_file import RESULT_BYTES_MAX, read_bytes
from servebench.util.errors import ConfigError
from servebench.util.redaction import redact
from servebench.util.safe_text import in_one_line

UNKNOWN = "unknown"
NAME_MAX = 200
GROUPS = ("engine", "model", "gpu", "workload")


def store_foreign(outputs: Path, found: Sequence[tuple[Path, ForeignRun]], given: Mapping[str, str]) -> Path:
    """Write a study of foreign runs and return its folder.

    `given` are the user's names: `name` for the study, and engine, model, gpu and workload, which replace those of the files.
    Raises ConfigError, StoreError.
    """
    _check_distinct([path for path, _ in found])
    groups: dict[tuple[str, str, str], list[tuple[Path, ForeignRun]]] = {}
    for path, run in found:
        facts = _facts(run, given)
        groups.setdefault((run.tool, facts["engine"], facts["model"]), []).append((path, run))
    names = [f"{i:02d}_{slug(engine)}_{slug(tool)}" for i, (tool, engine, _) in enumerate(groups)]
    study = create_study(outputs, given.get("name"), f"import_{found[0][1].tool}")
    now = time.time()
    state = StudyState(
        study_id=study.name,
        words=("import", *(str(path) for path, _ in found)),
        runs=tuple(names),
        status="finished",
        servebench_version=__version__,
        tracking={"name": "none"},
        started_s=now,
        ended_s=now,
    )
    write_study(study, state)
    for name, files in zip(names, groups.values(), strict=True):
        _store_run(study.create_run(name), f"{study.name}/{name}", files, given, now)
    return study.path


def _check_distinct(paths: Sequence[Path]) -> None:
    """Raise ConfigError for two files of the same content: they would pass for two measurements that agree."""
    seen: dict[str, Path] = {}
    for path in paths:
        other = seen.setdefault(_digest(path), path)
        if other is not path:
            raise ConfigError(f"{path} has the same content as {other}: name each result once")


def _digest(path: Path) -> str:
    return hashlib.sha256(read_bytes(path, RESULT_BYTES_MAX)).hexdigest()


def _facts(run: ForeignRun, given: Mapping[str, str]) -> dict[str, str]:
    of_file = {"engine": run.engine, "model": run.model}
    return {
        group: given.get(group) or in_one_line(str(of_file.get(group) or ""), NAME_MAX) or UNKNOWN for group in GROUPS
    }


def _store_run(
    folder: Any, run_id: str, files: Sequence[tuple[Path, ForeignRun]], given: Mapping[str, str], now: float
) -> None:
    run = files[0][1]
    facts = _facts(run, given)
    title = f"{facts['engine']} · {facts['model']} · {facts['workload']} (by {run.tool})"
    doubt = FOREIGN.issue(f"measured by {run.tool}, with its definitions and over its whole run")
    rows = [row for _, one in files for row in one.points]
    rows.sort(key=lambda row: (row.get("concurrency") or 0, row.get("rate") or 0.0))
    known = {"run_id": run_id, **facts, "launch": "attach", "gpu_count": 0, "repeat": 0, "emulated": False}
    points = [
        Point(row=PointRow.from_dict({**row, **known, "point": f"p{i}"}), doubts=(doubt,)) for i, row in enumerate(rows)
    ]
    write_points(folder, points)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "study_id": folder.path.parent.name,
        "run_id": run_id,
        "title": title,
        "status": "finished",
        "started_s": now,
        "ended_s": now,
        "servebench_version": __version__,
        FOREIGN_KEY: {
            "tool": run.tool,
            "files": [{"path": path.name, "sha256": _digest(path)} for path, _ in files],
            "config": dict(run.config),
        },
        "config": {**{group: {"name": facts[group]} for group in GROUPS}, "launch": {"name": "attach"}},
    }
    # of the files' own words, which are not this user's
    write_manifest(folder.manifest, redact(manifest), own=False)
    write_run(folder, RunState(run_id=run_id, title=title, overrides=(), status="finished", started_s=now, ended_s=now))
