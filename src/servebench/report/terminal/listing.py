"""The output of `servebench ls`."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from rich.text import Text

from servebench.analysis.estimate import best_level, levels_of, mean_of
from servebench.contracts.estimate import LevelEstimate
from servebench.contracts.labels import run_labels
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import FACTS, RunData, StudyData
from servebench.report.points import count_verdicts, valid_count
from servebench.report.terminal.tables import STATUS_STYLES, console, local_time, new_table
from servebench.store.studies import command_words
from servebench.util.figures import MISSING, number, plus_minus
from servebench.util.plain_json import to_json as plain_json
from servebench.util.short_id import short_id

RIGHT_ALIGNED = ("#", "points", "best tok/s", "TTFT p50 ms")


def run_facts(run: RunData) -> dict[str, Any]:
    """Return a run as `ls --json` prints it."""
    rows = run.point_rows
    best = best_level(rows)
    ttft = _ttft_at(rows, best)
    return {
        "study": run.study_id,
        "run": run.name,
        "path": str(run.path),
        "title": run.title,
        "status": run.status,
        "error": run.error,
        "tool": run.foreign or "servebench",
        **{name: run.fact(name) for name in FACTS},
        "started_s": run.started_s,
        "points": len(rows),
        "verdicts": count_verdicts(rows),
        "best_output_throughput_tok_s": best.value if best else None,
        "best_at": best.level if best else None,
        "best_ttft_ms_p50": ttft,
        "faults": list(run.faults),
    }


WIDE = 120
"""From this width on, tables of runs show more columns."""


CONTINUED_MAX = 3
"""So many studies are listed that a command continues: the newest."""


def list_runs(
    studies: Sequence[StudyData], *, as_json: bool, numbers: Mapping[str, int], most: int | None = None
) -> None:
    """Print every run of the studies with its number, newest study last; on a terminal the newest studies with about `most`."""
    out, before = console(), sum(len(study.runs) for study in studies)
    if most is not None and out.is_terminal and not as_json:
        studies = _newest(studies, most)
    labels = {key: label.text for study in studies for key, label in run_labels(study.runs).items()}
    if as_json:
        runs = (run for study in studies for run in study.runs)
        print_json([{"number": numbers[one.run_id], "label": labels[one.run_id], **run_facts(one)} for one in runs])
        return
    models = {run.fact("model") or MISSING for study in studies for run in study.runs}
    wide = out.width >= WIDE
    more = [
        name
        for name, shown in {"model": wide and len(models) > 1, "TTFT p50 ms": wide, "folder": wide}.items()
        if shown
    ]
    table = new_table(narrow=True)
    for name in ("#", "study", "run", "when", "status", "points", "best tok/s", "at", *more):
        table.add_column(
            name, overflow="fold", no_wrap=name != "run", justify="right" if name in RIGHT_ALIGNED else "left"
        )
    for study in studies:
        for run in study.runs:
            first = short_id(study.study_id) if run is study.runs[0] else ""
            table.add_row(str(numbers[run.run_id]), first, *_cells(run, labels[run.run_id], more))
    out.print(table)
    listed = (best_level(run.point_rows) for study in studies for run in study.runs)
    if any(best is not None and best.points > 1 for best in listed):
        out.print("best tok/s: at the load where it is highest, the mean over its starts and repeats", style="dim")
    if len(models) == 1:
        out.print(f"model: {models.pop()}", style="dim")
    for study in [one for one in studies if one.status == "interrupted"][-CONTINUED_MAX:]:
        out.print(f"{short_id(study.study_id)} is not complete: servebench resume {command_words(study.path)}")
    for name, faults in _faults(studies):
        for fault in faults:
            out.print(f"{name}: {fault}")
    if older := before - len(labels):
        out.print(f"{older:,} older runs are not shown: add --all, or a condition such as engine=vllm", style="dim")


def _cells(run: RunData, label: str, more: Sequence[str]) -> list[str | Text]:
    """Return the cells of a run from its label on; `more` are the columns that a wide terminal has besides."""
    best = best_level(run.point_rows)
    extra = {
        "model": (run.fact("model") or MISSING).rsplit("/", 1)[-1],
        "TTFT p50 ms": number(_ttft_at(run.point_rows, best)),
        "folder": run.run_id,
    }
    return [
        label + (f" ({run.foreign})" if run.foreign else ""),
        local_time(run.started_s)[5:] or MISSING,
        Text(run.standing, style=STATUS_STYLES.get(run.standing, "")),
        valid_count(run.point_rows),
        plus_minus(best.value, best.low, best.high) if best else MISSING,
        best.level if best else MISSING,
        *(extra[name] for name in more),
    ]


def _ttft_at(rows: Sequence[PointRow], best: LevelEstimate | None) -> float | None:
    return mean_of(levels_of(rows)[best.level], "ttft_ms_p50") if best else None


def _newest(studies: Sequence[StudyData], most: int) -> list[StudyData]:
    """The newest studies that have about so many runs together."""
    counts = accumulate(len(study.runs) for study in reversed(studies))
    return list(studies)[-max(1, sum(count <= most for count in counts)) :]


def _faults(studies: Sequence[StudyData]) -> Iterable[tuple[str, Sequence[str]]]:
    for study in studies:
        yield study.study_id, study.faults
        for run in study.runs:
            yield run.run_id, run.faults


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    sys.stdout.write(plain_json(value))
