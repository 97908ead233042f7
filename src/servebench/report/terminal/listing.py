"""The tables of `servebench ls` and `servebench show`: what is on disk, in the terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from servebench.analysis.warnings.catalog import explain
from servebench.contracts.point_row import PointRow, level_label
from servebench.contracts.stored import FACTS, RunData, StudyData
from servebench.report.terminal.console import print_repeats
from servebench.util.figures import MISSING, number, seconds, with_interval

STATUS_STYLE = {"finished": "green", "failed": "red", "interrupted": "yellow", "running": "cyan", "missing": "red"}
VERDICT_STYLE = {"valid": "green", "doubtful": "yellow", "void": "red"}
PIPED_WIDTH = 160
VERDICTS = ("valid", "doubtful", "void")


def console() -> Console:
    """Standard output; where that is no terminal, wide enough to cut nothing."""
    terminal = sys.stdout.isatty()
    return Console(highlight=False, soft_wrap=not terminal, width=None if terminal else PIPED_WIDTH)


def best_row(points: Sequence[PointRow]) -> PointRow | None:
    """The point with the highest output throughput, of the best verdict that any has; void ones never win."""
    for verdict in ("valid", "doubtful"):
        fit = [p for p in points if p.verdict == verdict and p.output_throughput_tok_s is not None]
        if fit:
            return max(fit, key=lambda p: p.output_throughput_tok_s or 0.0)
    return None


def when(stamp_s: float | None) -> str:
    """A time of day, local."""
    return MISSING if stamp_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(stamp_s))


def verdict_counts(points: Sequence[PointRow]) -> str:
    """How many points there are of each verdict, those that there are."""
    counts = [(sum(p.verdict == verdict for p in points), verdict) for verdict in VERDICTS]
    return ", ".join(f"{count} {verdict}" for count, verdict in counts if count) or MISSING


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=box.SIMPLE_HEAD)
    table.pad_edge = False
    for column in columns:
        table.add_column(
            column,
            overflow="fold",
            justify="right" if column.startswith(("best", "at", "TTFT", "tok", "fail", "ok", "runs", "n ")) else "left",
        )
    return table


def run_facts(run: RunData) -> dict[str, Any]:
    """A run as `ls --json` tells it."""
    points = run.point_rows
    best = best_row(points) or PointRow()
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
        "points": len(points),
        "verdicts": {verdict: sum(p.verdict == verdict for p in points) for verdict in VERDICTS},
        "best_output_throughput_tok_s": best.output_throughput_tok_s,
        "best_at": best.level_label if best else None,
        "best_ttft_ms_p50": best.ttft_ms_p50,
        "faults": list(run.faults),
    }


def list_runs(studies: Sequence[StudyData], *, as_json: bool) -> None:
    """Write every run of the studies, a row each, newest study last."""
    if as_json:
        sys.stdout.write(json.dumps([run_facts(run) for study in studies for run in study.runs], indent=2) + "\n")
        return
    out = console()
    table = _table("run", "model", "when", "status", "points", "best tok/s", "at", "TTFT p50 ms")
    for study in studies:
        for run in study.runs:
            points = run.point_rows
            best = best_row(points) or PointRow()
            foreign = f" ({run.foreign})" if run.foreign else ""
            table.add_row(
                f"{run.run_id}{foreign}",
                (run.fact("model") or MISSING).rsplit("/", 1)[-1],
                when(run.started_s),
                Text(run.status, style=STATUS_STYLE.get(run.status, "")),
                verdict_counts(points),
                number(best.output_throughput_tok_s),
                best.level_label if best else MISSING,
                number(best.ttft_ms_p50),
            )
    out.print(table)
    for study in studies:
        for fault in study.faults:
            out.print(f"{study.study_id}: {fault}")
        for run in study.runs:
            for fault in run.faults:
                out.print(f"{run.run_id}: {fault}")


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
    ("good req/s", "goodput_req_s"),
)


def show_run(run: RunData, *, as_json: bool, over_repeats: Any = None) -> None:
    """Write what a run was, its points, what its repeats say together (of `score.repeats`), and its doubts."""
    points = run.point_rows
    if as_json:
        told = {**run_facts(run), "manifest": dict(run.manifest), "rows": [row.as_dict() for row in points]}
        sys.stdout.write(json.dumps(told, indent=2, default=str) + "\n")
        return
    out = console()
    out.print(Text(run.title, style="bold"))
    facts = {
        "folder": str(run.path),
        "status": run.status + (f": {run.error}" if run.error else ""),
        "engine": " ".join(filter(None, (run.fact("engine"), run.fact("engine_version"), f"({run.fact('launch')})"))),
        "model": run.fact("model"),
        "gpu": run.fact("gpu"),
        "workload": run.fact("workload"),
        "began": when(run.started_s),
        "measured by": run.foreign,
    }
    start = (run.manifest.get("cold_start") or {}) if isinstance(run.manifest.get("cold_start"), Mapping) else {}
    if start.get("seconds") is not None:
        facts["cold start"] = f"{number(start['seconds'])} s" + (" (shared)" if start.get("shared") else "")
    again = run.manifest.get("warm_restart")
    if isinstance(again, Mapping) and again.get("seconds") is not None:
        facts["warm restart"] = f"{number(again['seconds'])} s"
    for name, value in facts.items():
        if value:
            out.print(f"{name + ':':<12} {value}", markup=False)
    if points:
        out.print(_points(points))
        print_repeats(over_repeats, out)
        codes = dict.fromkeys(code for point in points for code in point.doubts)
        for code in codes:
            where = ", ".join(dict.fromkeys(p.level_label for p in points if code in p.doubts))
            out.print(f"{code} (at {where}): {explain(code)}", markup=False)
    for line in _quality(run.manifest.get("quality")):
        out.print(line, markup=False)
    for fault in run.faults:
        out.print(f"not readable: {fault}", markup=False)


def _quality(found: Any) -> list[str]:
    """What the manifest tells of quality, a line for each benchmark and load, then each doubt once."""
    rows = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
    lines = []
    for one in rows:
        value = one.get("score") if one.get("accuracy") is None else one.get("accuracy")
        if value is None:
            figure = "nothing could be judged"
        else:
            reach = f" [{_percent(one.get('low'))}, {_percent(one.get('high'))}]"
            measure = "mean score" if one.get("accuracy") is None else one.get("means", "right")
            figure = f"{_percent(value)} % {measure}{reach} of {one.get('n')}"
        failed = f", {one['unanswered']} not answered" if one.get("unanswered") else ""
        level = level_label(one.get("concurrency"), one.get("rate"))
        lines.append(f"quality: {one.get('benchmark')} at {level}: {figure}{failed}")
    codes = dict.fromkeys(str(doubt.get("code")) for one in rows for doubt in one.get("doubts") or ())
    return lines + [f"{code}: {explain(code)}" for code in codes]


def _percent(share: Any) -> str:
    return f"{100 * share:.1f}" if isinstance(share, (int, float)) else MISSING


def _points(points: Sequence[PointRow]) -> Table:
    table = _table("at")
    for name, _ in POINT_COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for point in points:
        cells = [
            with_interval(point, column) if column == "output_throughput_tok_s" else _cell(point.get(column))
            for _, column in POINT_COLUMNS
        ]
        verdict = str(point.verdict or MISSING)
        table.add_row(point.level_label, *cells, Text(verdict, style=VERDICT_STYLE.get(verdict, "")))
    table.caption = "times in ms; ± half of a 95 % interval"
    table.caption_justify = "left"
    return table


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else number(value)


def show_study(study: StudyData, *, as_json: bool) -> None:
    """Write what a study was, and its runs."""
    if as_json:
        facts = {"study": study.study_id, "path": str(study.path), **study.state}
        sys.stdout.write(
            json.dumps({**facts, "runs": [run_facts(run) for run in study.runs]}, indent=2, default=str) + "\n"
        )
        return
    out = console()
    out.print(Text(study.study_id, style="bold"))
    out.print(f"folder:      {study.path}", markup=False)
    out.print(f"status:      {study.status}", markup=False)
    if study.words:
        out.print(f"command:     servebench {' '.join(study.words)}", markup=False)
    started, ended = study.state.get("started_s"), study.state.get("ended_s")
    if started and ended:
        out.print(f"took:        {seconds(ended - started)}", markup=False)
    list_runs([study], as_json=False)
