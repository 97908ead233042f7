"""The output of `servebench show`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from servebench.analysis.conclude import Conclusions
from servebench.analysis.limits import LimitFinding
from servebench.analysis.repeats import RepeatSummary
from servebench.analysis.warnings.catalog import explain
from servebench.contracts.level import Level
from servebench.contracts.stored import RunData, StudyData, mapping
from servebench.report.export.conclusions import as_plain, finding_as_plain
from servebench.report.screens.answer import answer_blocks
from servebench.report.screens.points import points_blocks, repeats_blocks
from servebench.report.terminal.blocks import print_blocks
from servebench.report.terminal.listing import list_runs, print_json, run_facts
from servebench.report.terminal.tables import console
from servebench.util.figures import local_time, number, percent, percent_interval, seconds
from servebench.util.safe_text import clean_line
from servebench.util.short_id import short_id


def show_run(
    run: RunData,
    *,
    as_json: bool,
    label: str,
    repeats: RepeatSummary | None = None,
    times: Mapping[str, Any] | None = None,
    limits: Sequence[LimitFinding] = (),
) -> None:
    """Print a run, by its label in its study: its facts, points, repeats, quality and warnings; as JSON with `times`, where the
    time of its requests goes, and what limits it."""
    rows = run.point_rows
    if as_json:
        plain = [row.as_dict() for row in rows]
        found = {"times": times, "limits": [finding_as_plain(one) for one in limits]}
        print_json({"label": label, **run_facts(run), "manifest": dict(run.manifest), "rows": plain, **found})
        return
    out = console()
    out.print(Text(f"{short_id(run.study_id)} {label}", style="bold"))
    _print_facts(_header(run))
    if rows:
        print_blocks(points_blocks([("", row) for row in rows], "show"), out)
        print_blocks(repeats_blocks([("", repeats)], "over repeats") if repeats is not None else (), out)
        for code in dict.fromkeys(code for row in rows for code in row.doubts):
            where = ", ".join(dict.fromkeys(str(row.level) for row in rows if code in row.doubts))
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
        "command": run.command or None,
        "status": run.standing + (f": {run.error}" if run.error else ""),
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
        at = Level(one.get("concurrency"), one.get("rate"))
        lines.append(f"quality: {one.get('benchmark')} at {at}: {result}{failed}")
    codes = dict.fromkeys(str(doubt.get("code")) for one in found for doubt in one.get("doubts") or ())
    return lines + [f"{code}: {explain(code)}" for code in codes]


def show_study(
    study: StudyData,
    *,
    as_json: bool,
    numbers: Mapping[str, int],
    concluded: Conclusions | None = None,
    verbose: bool = False,
) -> None:
    """Print a study: its answer, and its runs where that is not a terminal or `verbose`."""
    if as_json:
        state = {key: value for key, value in study.state.items() if key not in ("seal", "pid", "process", "ticket")}
        facts = {"study": study.study_id, "path": str(study.path), **state, "id": short_id(study.study_id)}
        runs = [run_facts(run) for run in study.runs]
        print_json({**facts, "runs": runs, **as_plain(concluded)})
        return
    console().print(Text(short_id(study.study_id), style="bold"))
    started, ended = study.state.get("started_s"), study.state.get("ended_s")
    _print_facts(
        {
            "folder": str(study.path),
            "status": study.status,
            "command": study.command or None,
            "took": seconds(ended - started) if started and ended else None,
        }
    )
    complete = verbose or not console().is_terminal
    if complete or concluded is None:
        list_runs([study], as_json=False, numbers=numbers)
    if concluded is not None:
        out = console()
        print_blocks(answer_blocks(concluded.answer, width=out.width, complete=complete, verbose=verbose), out)
