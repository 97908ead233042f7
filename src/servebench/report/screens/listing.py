"""What `servebench ls` shows."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from servebench.analysis.estimate import THROUGHPUT, best_level, levels_of, mean_of
from servebench.contracts.estimate import LevelEstimate
from servebench.contracts.labels import run_labels
from servebench.contracts.point_row import POINT_COLUMNS, PointRow
from servebench.contracts.stored import FACTS, RunData, StudyData
from servebench.report.blocks import Block, Line, Span, Table, TableColumn, row
from servebench.report.trust import count_verdicts, valid_count
from servebench.store.studies import command_words
from servebench.util.figures import MISSING, local_time, number, plus_minus
from servebench.util.short_id import short_id

CONTINUED_MAX = 3
"""Of the studies that a command continues only the newest are listed."""
TONES = {"finished": "good", "failed": "bad", "interrupted": "warn", "running": "same", "not started": "warn"}
BEST, TTFT = f"best {POINT_COLUMNS[THROUGHPUT].heading}", POINT_COLUMNS["ttft_ms_p50"].labelled
RIGHT_ALIGNED = ("#", "points", BEST, TTFT)
FOLDED = ("study", "run")
"""Columns whose cells are broken where a terminal is narrow."""
LEFT_OUT = ("folder", TTFT, "model", "when", "at", "points")
"""Columns that a terminal which is too narrow for them does not show, the first one first."""
BROKEN, NAME_WIDTH = 3, 12
"""So many columns are left out before names are broken, and so wide they stay while others are left out for them."""
LIST_COLUMNS = frozenset(
    {*FACTS, "verdict", "concurrency", "rate", "repeat", "start_id", "ttft_ms_p50"}
    | {THROUGHPUT, f"{THROUGHPUT}_low", f"{THROUGHPUT}_high"}
)
"""The columns of points that a list takes: to read all of a thousand runs takes a second."""
Row = Mapping[str, str | Span]
"""The cells of a line by heading."""


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
        "best_at": str(best.level) if best else None,
        "best_ttft_ms_p50": ttft,
        "faults": list(run.faults),
    }


def run_list(studies: Sequence[StudyData], numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return every run of the studies as `ls --json` prints it, with its number and label."""
    return [
        {"number": numbers[run.run_id], "label": labels[run.run_id].text, **run_facts(run)}
        for study in studies
        for labels in (run_labels(study.runs),)
        for run in study.runs
    ]


def list_blocks(
    studies: Sequence[StudyData],
    numbers: Mapping[str, int],
    *,
    width: int | None = None,
    most: int | None = None,
    candidates: bool = True,
    older: int = 0,
) -> Iterator[Block]:
    """Yield every run of the studies with its number, newest study last; only the newest studies with about `most` lines. Without
    `candidates` the runs of a tune are one line; without a `width` nothing is left out or broken. There are `older` runs."""
    newest = studies if most is None else _newest(studies, most, candidates=candidates)
    shown = [(study, _rows(study, numbers, candidates=candidates)) for study in newest]
    models = {run.fact("model") or MISSING for study, _ in shown for run in study.runs}
    yield _fitting([one for _, rows in shown for one in rows], width, without=("model",) if len(models) == 1 else ())
    listed = (best_level(run.point_rows) for study, _ in shown for run in study.runs)
    if any(best is not None and best.points > 1 for best in listed):
        yield Line.of("best tok/s: at the load where it is highest, the mean over its starts and repeats", tone="dim")
    if len(models) == 1:
        yield Line.of(f"model: {models.pop()}", tone="dim")
    yield from _notes([study for study, _ in shown], candidates=candidates)
    if older := older + sum(len(study.runs) for study in studies[: len(studies) - len(shown)]):
        text = f"{older:,} older runs are not shown: add --all, or a condition such as engine=vllm"
        yield Line.of(text, tone="dim")


def _notes(studies: Sequence[StudyData], *, candidates: bool) -> Iterator[Block]:
    """Yield what is to be done with studies, and what of them cannot be read."""
    if not candidates and (tunes := [study for study in studies if study.is_tune]):
        name = command_words(tunes[-1].path)
        text = f"the best settings of a tune: servebench show {name}; its candidates: servebench ls --all"
        yield Line.of(text, tone="dim")
    for study in [one for one in studies if one.status == "interrupted"][-CONTINUED_MAX:]:
        yield Line.of(f"{short_id(study.study_id)} is not complete: servebench resume {command_words(study.path)}")
    for study in studies:
        yield from (Line.of(f"{study.study_id}: {fault}") for fault in study.faults)
        yield from (Line.of(f"{run.run_id}: {fault}") for run in study.runs for fault in run.faults)


def _rows(study: StudyData, numbers: Mapping[str, int], *, candidates: bool) -> list[Row]:
    if _is_one_line(study, candidates=candidates):
        return [_tune_row(study, numbers)]
    labels = run_labels(study.runs)
    return [
        {
            "#": str(numbers[run.run_id]),
            "study": short_id(study.study_id) if run is study.runs[0] else "",
            **_cells(run, labels[run.run_id].text),
        }
        for run in study.runs
    ]


def _is_one_line(study: StudyData, *, candidates: bool) -> bool:
    return study.is_tune and bool(study.runs) and not candidates


def _tune_row(study: StudyData, numbers: Mapping[str, int]) -> Row:
    """Return the line of a tune. It has no best throughput: the highest of many candidates is high by luck, too."""
    known = sorted(numbers[run.run_id] for run in study.runs)
    count = len(study.runs)
    return {
        "#": f"{known[0]}-{known[-1]}" if count > 1 else str(known[0]),
        "study": short_id(study.study_id),
        **_cells(study.runs[0], ""),
        "run": f"tune of {study.runs[0].engine}: {count} candidate{'s' if count > 1 else ''}",
        "status": Span(study.status, TONES.get(study.status, "")),
        "points": valid_count([row for run in study.runs for row in run.point_rows]),
        **dict.fromkeys((BEST, "at", TTFT), MISSING),
        "folder": study.study_id,
    }


def _fitting(rows: Sequence[Row], width: int | None, *, without: Sequence[str]) -> Table:
    """Return the lines as a table with as many columns as there is room for; all of them without a width."""
    for count in range(len(LEFT_OUT) + 1):
        names = [name for name in rows[0] if name not in (*without, *LEFT_OUT[:count])] if rows else []
        widths = {name: max(len(name), *(len(Line.of(one[name]).text) for one in rows)) for name in names}
        widths |= {name: min(widths[name], NAME_WIDTH) for name in FOLDED if count >= BROKEN and rows}
        if width is None or sum(widths.values()) + len(names) - 1 <= width:
            break
    columns = [
        TableColumn(name, left=name not in RIGHT_ALIGNED, wrap=width is not None and name in FOLDED) for name in names
    ]
    return Table(columns, [row(*(one[name] for name in names)) for one in rows], ruled=True, caption="Runs")


def _cells(run: RunData, label: str) -> Row:
    best = best_level(run.point_rows)
    return {
        "run": label + (f" ({run.foreign})" if run.foreign else ""),
        "when": local_time(run.started_s)[5:] or MISSING,
        "status": Span(run.standing, TONES.get(run.standing, "")),
        "points": valid_count(run.point_rows),
        BEST: plus_minus(best.value, best.low, best.high) if best else MISSING,
        "at": str(best.level) if best else MISSING,
        "model": (run.fact("model") or MISSING).rsplit("/", 1)[-1],
        TTFT: number(_ttft_at(run.point_rows, best)),
        "folder": run.run_id,
    }


def _ttft_at(rows: Sequence[PointRow], best: LevelEstimate | None) -> float | None:
    return mean_of(levels_of(rows)[best.level], "ttft_ms_p50") if best else None


def _newest(studies: Sequence[StudyData], most: int, *, candidates: bool) -> Sequence[StudyData]:
    lines = (1 if _is_one_line(study, candidates=candidates) else len(study.runs) for study in reversed(studies))
    return studies[-max(1, sum(count <= most for count in accumulate(lines))) :]
