"""The output of `servebench ls` and `servebench show`."""

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from servebench.analysis.answer import Answer
from servebench.analysis.repeats import RepeatSummary
from servebench.analysis.warnings.catalog import explain
from servebench.contracts.labels import run_labels
from servebench.contracts.point_row import PointRow, level_label
from servebench.contracts.stored import FACTS, RunData, StudyData, mapping
from servebench.report.points import best_row, count_verdicts, valid_count
from servebench.report.terminal.answer import print_answer
from servebench.report.terminal.results import cell_text, print_repeats
from servebench.report.terminal.tables import POINTS_NOTE, STATUS_STYLES, console, local_time, new_table, verdict_text
from servebench.util.clean import clean_line
from servebench.util.figures import MISSING, number, percent, percent_interval, seconds, with_interval
from servebench.util.short_id import short_id

RIGHT_ALIGNED = ("best tok/s", "TTFT p50 ms")
POINT_COLUMNS = (
    ("ok", "requests_ok"),
    ("fail", "requests_failed"),
    ("tok/s", "output_throughput_tok_s"),
    ("TTFT p50", "ttft_ms_p50"),
    ("p99", "ttft_ms_p99"),
    ("ITL mean", "itl_ms_mean"),
    ("p99", "itl_ms_p99"),
    ("TPOT mean", "tpot_ms_mean"),
    ("E2E p50", "e2e_ms_p50"),
    ("req/s in SLO", "goodput_req_s"),
)


def run_facts(run: RunData) -> dict[str, Any]:
    """Return a run as `ls --json` prints it."""
    rows = run.point_rows
    best = best_row(rows)
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
        "best_output_throughput_tok_s": best.output_throughput_tok_s if best else None,
        "best_at": best.level_label if best else None,
        "best_ttft_ms_p50": best.ttft_ms_p50 if best else None,
        "faults": list(run.faults),
    }


WIDE = 120
"""From this width on, tables of runs show more columns."""


def number_runs(studies: Iterable[StudyData]) -> dict[str, int]:
    """Return the number of each run by which commands take it: the oldest stored run is 1."""
    runs = (run for study in studies for run in study.runs)
    return {run.run_id: number for number, run in enumerate(runs, 1)}


def list_runs(studies: Sequence[StudyData], *, as_json: bool, numbers: Mapping[str, int]) -> None:
    """Print every run of the studies with its number, newest study last."""
    labels = {key: label.text for study in studies for key, label in run_labels(study.runs).items()}
    if as_json:
        runs = (run for study in studies for run in study.runs)
        _print_json([{"number": numbers[one.run_id], "label": labels[one.run_id], **run_facts(one)} for one in runs])
        return
    out = console()
    models = {run.fact("model") or MISSING for study in studies for run in study.runs}
    more = {
        "model": len(models) > 1 and out.width >= WIDE,
        "TTFT p50 ms": out.width >= WIDE,
        "folder": out.width >= WIDE,
    }
    table = new_table(narrow=True)
    for name in (
        "#",
        "study",
        "run",
        "when",
        "status",
        "points",
        "best tok/s",
        "at",
        *(key for key in more if more[key]),
    ):
        right = name in (*RIGHT_ALIGNED, "#", "points")
        table.add_column(name, overflow="fold", no_wrap=name != "run", justify="right" if right else "left")
    for study in studies:
        for run in study.runs:
            rows = run.point_rows
            best = best_row(rows) or PointRow()
            extra = {
                "model": (run.fact("model") or MISSING).rsplit("/", 1)[-1],
                "TTFT p50 ms": number(best.ttft_ms_p50),
                "folder": run.run_id,
            }
            table.add_row(
                str(numbers[run.run_id]),
                short_id(study.study_id) if run is study.runs[0] else "",
                labels[run.run_id] + (f" ({run.foreign})" if run.foreign else ""),
                local_time(run.started_s)[5:] or MISSING,
                Text(run.status, style=STATUS_STYLES.get(run.status, "")),
                valid_count(rows),
                with_interval(best, "output_throughput_tok_s"),
                best.level_label,
                *(extra[name] for name in more if more[name]),
            )
    out.print(table)
    if len(models) == 1:
        out.print(f"model: {models.pop()}", style="dim")
    for name, faults in _faults(studies):
        for fault in faults:
            out.print(f"{name}: {fault}")


def _faults(studies: Sequence[StudyData]) -> Iterable[tuple[str, Sequence[str]]]:
    for study in studies:
        yield study.study_id, study.faults
        for run in study.runs:
            yield run.run_id, run.faults


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def show_run(run: RunData, *, as_json: bool, label: str, repeats: RepeatSummary | None = None) -> None:
    """Print a run, by its label in its study: its facts, points, repeats, quality and warnings."""
    rows = run.point_rows
    if as_json:
        plain = [row.as_dict() for row in rows]
        _print_json({"label": label, **run_facts(run), "manifest": dict(run.manifest), "rows": plain})
        return
    out = console()
    out.print(Text(f"{short_id(run.study_id)} {label}", style="bold"))
    _print_facts(_header(run))
    if rows:
        out.print(_points_table(rows))
        print_repeats(repeats, out)
        for code in dict.fromkeys(code for row in rows for code in row.doubts):
            where = ", ".join(dict.fromkeys(row.level_label for row in rows if code in row.doubts))
            out.print(f"{code} (at {where}): {explain(code)}")
    for line in _quality_lines(run.manifest.get("quality")):
        out.print(line)
    for fault in run.faults:
        out.print(f"unreadable: {fault}")


def _header(run: RunData) -> dict[str, str | None]:
    start, restart = mapping(run.manifest.get("cold_start")), mapping(run.manifest.get("warm_restart"))
    shared = " (shared)" if start.get("shared") else ""
    return {
        "folder": str(run.path),
        "command": f"servebench {shlex.join(run.words)}" if run.words else None,
        "status": run.status + (f": {run.error}" if run.error else ""),
        "engine": " ".join(filter(None, (run.fact("engine"), run.fact("engine_version"), f"({run.fact('launch')})"))),
        "model": run.fact("model"),
        "gpu": run.fact("gpu") if run.fact("gpu") != "none" else None,
        "workload": run.fact("workload"),
        "started": local_time(run.started_s),
        "measured by": run.foreign,
        "cold start": None if start.get("seconds") is None else f"{number(start['seconds'])} s{shared}",
        "warm restart": None if restart.get("seconds") is None else f"{number(restart['seconds'])} s",
    }


def _print_facts(facts: dict[str, str | None]) -> None:
    for name, value in facts.items():
        if value:
            console().print(f"{name + ':':<12} {clean_line(value)}")


def _quality_lines(stored: Any) -> list[str]:
    """The quality results in a manifest, a line for each benchmark and load, then each warning once."""
    found = [mapping(one) for one in stored] if isinstance(stored, list) else []
    lines = []
    for one in found:
        value = one.get("score") if one.get("accuracy") is None else one.get("accuracy")
        result = "no answer could be graded"
        if value is not None:
            measure = "mean score" if one.get("accuracy") is None else one.get("means", "right")
            result = f"{percent(value)} {measure} {percent_interval(one.get('low'), one.get('high'))} of {one.get('n')}"
        failed = f", {one['unanswered']} not answered" if one.get("unanswered") else ""
        at = level_label(one.get("concurrency"), one.get("rate"))
        lines.append(f"quality: {one.get('benchmark')} at {at}: {result}{failed}")
    codes = dict.fromkeys(str(doubt.get("code")) for one in found for doubt in one.get("doubts") or ())
    return lines + [f"{code}: {explain(code)}" for code in codes]


def _points_table(rows: Sequence[PointRow]) -> Table:
    table = new_table()
    for name in ("at", *(name for name, _ in POINT_COLUMNS)):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for row in rows:
        cells = (cell_text(row, column) for _, column in POINT_COLUMNS)
        table.add_row(row.level_label, *cells, verdict_text(row.verdict or MISSING))
    table.caption = POINTS_NOTE
    return table


def show_study(
    study: StudyData, *, as_json: bool, numbers: Mapping[str, int], answer: Answer | None = None, verbose: bool = False
) -> None:
    """Print a study: its answer, and its runs where that is not a terminal or `verbose`."""
    if as_json:
        facts = {"study": study.study_id, "path": str(study.path), **study.state}
        _print_json({**facts, "id": short_id(study.study_id), "runs": [run_facts(run) for run in study.runs]})
        return
    console().print(Text(short_id(study.study_id), style="bold"))
    started, ended = study.state.get("started_s"), study.state.get("ended_s")
    _print_facts(
        {
            "folder": str(study.path),
            "status": study.status,
            "command": f"servebench {shlex.join(study.words)}" if study.words else None,
            "took": seconds(ended - started) if started and ended else None,
        }
    )
    complete = verbose or not console().is_terminal
    if complete or answer is None:
        list_runs([study], as_json=False, numbers=numbers)
    if answer is not None:
        print_answer(answer, console(), verbose=complete)
