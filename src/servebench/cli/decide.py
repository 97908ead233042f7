"""From stored numbers to a decision: the verbs that read outputs and need no engine.

Each verb parses its words, has `read` load what they name, `score` judge it and `report` show it. Returns an exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servebench.analysis.advice import advise
from servebench.analysis.compare import Comparison, ComparisonRow
from servebench.analysis.compare import told as row_told
from servebench.analysis.fairness import differences
from servebench.analysis.rightness import Agreement
from servebench.analysis.stored_runs import (
    quality_agreements,
    quality_parities,
    repeats_of,
    side_of,
)
from servebench.cli.words import no_options, parse_conditions, take_flag, take_option, take_outputs
from servebench.contracts.stored import RunData, StudyData
from servebench.report.html.build import page_of
from servebench.store import studies as read
from servebench.util.errors import ConfigError


def ls(words: Sequence[str]) -> int:
    """`ls [key=value ...] [--json]`: the runs that are on disk. Raises ConfigError."""
    from servebench.report.terminal.listing import list_runs

    outputs, rest = take_outputs(words)
    as_json, rest = take_flag(rest, "--json")
    no_options("ls", rest, ("--json", "--outputs DIR"))
    studies = read.select(outputs, parse_conditions(rest))
    if not studies and not as_json:
        asked = f" that meet {' '.join(rest)}" if rest else ""
        sys.stdout.write(f"there are no runs{asked} in {outputs}\n")
        return 0
    list_runs(studies, as_json=as_json)
    return 0


def show(words: Sequence[str]) -> int:
    """`show RUN|STUDY [--json]`: what it was and what came of it. Raises ConfigError."""
    from servebench.report.terminal.listing import show_run, show_study

    outputs, rest = take_outputs(words)
    as_json, rest = take_flag(rest, "--json")
    no_options("show", rest, ("--json", "--outputs DIR"))
    if len(rest) != 1:
        raise ConfigError(f"show takes one run or study, not {len(rest)}; 'servebench ls' lists them")
    found = read.find(rest[0], outputs)
    if isinstance(found, StudyData):
        if len(found.runs) != 1:
            show_study(found, as_json=as_json)
            return 0
        found = found.runs[0]
    show_run(found, as_json=as_json, over_repeats=repeats_of(found))
    return 0


def _share(text: str, option: str) -> float:
    """`5%` or `0.05` as a share. Raises ConfigError."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise ConfigError(f"{option}={text} is no share between 0 and 1; give a percentage such as 5%")
    return value


def _compared(words: Sequence[str], baseline: str | None, outputs: Path) -> list[tuple[RunData, RunData]]:
    """(baseline, candidate) for each comparison that the words ask for. Raises ConfigError."""
    found = [read.find(word, outputs) for word in words]
    base = read.find(baseline, outputs) if baseline is not None else None
    if base is None and len(found) == 2 and all(isinstance(one, StudyData) and len(one.runs) > 1 for one in found):
        base, found = found[0], found[1:]
    if isinstance(base, StudyData) and len(base.runs) > 1:
        return [pair for one in found for pair in _by_name(base, one)]
    runs = [run for one in found for run in read.runs_of(one)]
    first = read.runs_of(base)[0] if base is not None else (runs[0] if runs else None)
    rest = [run for run in runs if first is not None and run.run_id != first.run_id]
    if first is None or not rest:
        raise ConfigError("compare takes two runs or more, or a study of several: 'servebench ls' lists them")
    return [(first, run) for run in rest]


def _by_name(base: StudyData, other: RunData | StudyData) -> list[tuple[RunData, RunData]]:
    """Runs of two studies that are the same but for the study: by what stands behind their number."""
    known = {run.name.partition("_")[2]: run for run in base.runs}
    if len(known) < len(base.runs):
        known = {run.name: run for run in base.runs}
    pairs = []
    for run in read.runs_of(other):
        twin = known.get(run.name.partition("_")[2]) or known.get(run.name)
        if twin is not None:
            pairs.append((twin, run))
    if not pairs:
        raise ConfigError(
            f"no run of {other.study_id} has a counterpart in the baseline {base.study_id}; name two runs"
        )
    return pairs


COMPARE_OPTIONS = (
    "--baseline RUN",
    "--max-regression 5%",
    "--margin 5%",
    "--varying KEY,...",
    "--with-doubtful",
    "--junit FILE",
    "--markdown FILE",
    "--json",
    "--outputs DIR",
)
EXIT_REGRESSION = 1
EXIT_NOT_JUDGED = 7


def compare(words: Sequence[str]) -> int:
    """`compare A B ...`: verdicts with intervals. Raises ConfigError, StoreError.

    With `--max-regression` it is a gate: 0 when no competing row is worse by more than that, 1 when one is, and 7 when
    nothing could be judged (unequal settings, no valid points, too little data).
    """
    from servebench.analysis.compare import MARGIN
    from servebench.analysis.compare import compare as judge
    from servebench.report.terminal import verdicts
    from servebench.report.terminal.listing import console

    outputs, rest = take_outputs(words)
    baseline, rest = take_option(rest, "--baseline")
    limit_text, rest = take_option(rest, "--max-regression")
    margin_text, rest = take_option(rest, "--margin")
    varying, rest = take_option(rest, "--varying")
    junit, rest = take_option(rest, "--junit")
    markdown, rest = take_option(rest, "--markdown")
    as_json, rest = take_flag(rest, "--json")
    with_doubtful, rest = take_flag(rest, "--with-doubtful")
    no_options("compare", rest, COMPARE_OPTIONS)
    limit = _share(limit_text, "--max-regression") if limit_text else None
    margin = _share(margin_text, "--margin") if margin_text else limit or MARGIN
    pairs = _compared(rest, baseline, outputs)
    sides = {run.run_id: side_of(run) for pair in pairs for run in pair}
    comparisons = judge(
        [(sides[a.run_id], sides[b.run_id], differences(a, b, varying)) for a, b in pairs],
        margin=margin,
        with_doubtful=with_doubtful,
    )
    graded = [quality_agreements(a, b) for a, b in pairs]
    same = [quality_parities(a, b) for a, b in pairs]
    failing = _beyond(comparisons, limit)
    told = [f"{name}: {row_told(row)}" for name, row in failing] + _less_right(comparisons, graded, limit)
    if markdown:
        verdicts.write_page(Path(markdown), verdicts.to_markdown(comparisons, told, limit, graded, same))
    if junit:
        verdicts.write_page(Path(junit), verdicts.to_junit(comparisons, failing, limit, graded))
    if as_json:
        sys.stdout.write(verdicts.to_json(comparisons, graded, same))
    else:
        out = console()
        for one, answers, parities in zip(comparisons, graded, same, strict=True):
            verdicts.print_comparison(one, out)
            verdicts.print_agreements(answers, out)
            verdicts.print_parities(parities, out)
    return 0 if limit is None else _gate(comparisons, told, limit)


def _beyond(comparisons: Sequence[Comparison], limit: float | None) -> list[tuple[str, ComparisonRow]]:
    """The regressions that are larger than the limit, with the candidate's name."""
    if limit is None:
        return []
    return [(one.candidate, row) for one in comparisons for row in one.regressions if abs(row.effect or 0) > limit]


def _less_right(
    comparisons: Sequence[Comparison], graded: Sequence[Sequence[Agreement]], limit: float | None
) -> list[str]:
    """The benchmarks in which a candidate is less right by more than the limit, as a share of the baseline's."""
    if limit is None:
        return []
    return [
        f"{one.candidate}: {answer.turned().sentence}"
        for one, answers in zip(comparisons, graded, strict=True)
        for answer in answers
        if answer.lost > limit
    ]


def _gate(comparisons: Sequence[Comparison], told: Sequence[str], limit: float) -> int:
    for line in told:
        sys.stderr.write(f"servebench: regression beyond {100 * limit:g} %: {line}\n")
    if told:
        return EXIT_REGRESSION
    unjudged = [one for one in comparisons if one.result in ("not enough data", "unequal_settings")]
    for one in unjudged:
        sys.stderr.write(f"servebench: {one.candidate} cannot be judged: {one.summary}\n")
    return EXIT_NOT_JUDGED if unjudged else 0


def recommend(words: Sequence[str]) -> int:
    """`recommend STUDY|RUN ...`: which run for which use, and how sure that is. Raises ConfigError."""
    from servebench.analysis.recommend import load_rules, rules_text
    from servebench.report.terminal.advice import print_answers, to_json
    from servebench.report.terminal.listing import console

    outputs, rest = take_outputs(words)
    rules_path, rest = take_option(rest, "--rules")
    varying, rest = take_option(rest, "--varying")
    show_rules, rest = take_flag(rest, "--show-rules")
    as_json, rest = take_flag(rest, "--json")
    with_doubtful, rest = take_flag(rest, "--with-doubtful")
    options = ("--rules FILE", "--show-rules", "--varying KEY,...", "--with-doubtful", "--json", "--outputs DIR")
    no_options("recommend", rest, options)
    if show_rules:
        sys.stdout.write(rules_text())
        return 0
    rules = load_rules(Path(rules_path) if rules_path else None)
    if not rest:
        raise ConfigError(
            "recommend takes a study, or runs to choose among; 'servebench ls' lists them, 'last' is the latest"
        )
    runs = [run for word in rest for run in read.runs_of(read.find(word, outputs))]
    answers = advise(runs, rules, with_doubtful=with_doubtful, varying=varying)
    emulated = [run.run_id for run in runs if run.emulated]
    if emulated:
        sys.stderr.write(f"servebench: emulated, so nothing is said of real engines: {', '.join(emulated)}\n")
    if as_json:
        sys.stdout.write(to_json(answers))
    else:
        print_answers(answers, console())
    return 0


def report(words: Sequence[str]) -> int:
    """`report RUN|STUDY [--out FILE]`: one self-contained page; `--as TOOL`: the numbers by that tool's definitions.

    Raises ConfigError, StoreError.
    """
    from servebench.analysis.recommend import load_rules
    from servebench.report.html.page import page
    from servebench.report.terminal.verdicts import write_page

    outputs, rest = take_outputs(words)
    tool, rest = take_option(rest, "--as")
    if tool is not None:
        return _report_as(tool, rest, outputs)
    out, rest = take_option(rest, "--out")
    rules_path, rest = take_option(rest, "--rules")
    varying, rest = take_option(rest, "--varying")
    with_doubtful, rest = take_flag(rest, "--with-doubtful")
    no_options("report", rest, ("--out FILE", "--rules FILE", "--varying KEY,...", "--with-doubtful", "--outputs DIR"))
    if len(rest) != 1:
        raise ConfigError(f"report takes one run or study, not {len(rest)}; 'servebench ls' lists them")
    found = read.find(rest[0], outputs)
    rules = load_rules(Path(rules_path) if rules_path else None)
    target = Path(out) if out else found.path / "report.html"
    write_page(target, page(page_of(found, rules, with_doubtful=with_doubtful, varying=varying)))
    sys.stdout.write(f"{target}\n")
    return 0


def _report_as(tool: str, words: Sequence[str], outputs: Path) -> int:
    """The same run as another tool would print it. Raises ConfigError, StoreError."""
    from servebench.measure.dialects import DIALECTS, retell
    from servebench.report.terminal.as_tool import RetoldPoint, print_retold, write_json
    from servebench.report.terminal.listing import console

    as_json, rest = take_flag(words, "--json")
    no_options("report --as", rest, ("--json", "--outputs DIR"))
    if tool not in DIALECTS:
        raise ConfigError(f"--as {tool} is none of {', '.join(DIALECTS)}")
    if len(rest) != 1:
        raise ConfigError(f"report takes one run or study, not {len(rest)}; 'servebench ls' lists them")
    points = []
    for run in read.runs_of(read.find(rest[0], outputs)):
        requests = run.requests
        for row in run.point_rows:
            retold = retell(requests[requests["point"] == row.point], row, DIALECTS[tool]) if len(requests) else []
            if retold:
                points.append(RetoldPoint(run=run.run_id, level=row.level_label, rows=retold))
    if not points:
        raise ConfigError(f"'{rest[0]}' has no requests to tell again: it was imported, or nothing succeeded")
    dialect = DIALECTS[tool]
    if as_json:
        write_json(points, tool, dialect.notes)
    else:
        print_retold(points, dialect.title, dialect.notes, console())
    return 0


FORMATS = ("csv", "json", "llm-d")


def export(words: Sequence[str]) -> int:
    """`export RUN|STUDY ... --format csv|json|llm-d [--out FILE|FOLDER]`. Raises ConfigError, StoreError.

    Without `--out` it goes to standard output; llm-d has a report a point, so that several want a folder.
    """
    from servebench.report.export.export import llm_d_reports, to_csv, to_json
    from servebench.report.terminal.verdicts import write_page

    outputs, rest = take_outputs(words)
    kind, rest = take_option(rest, "--format")
    out, rest = take_option(rest, "--out")
    no_options("export", rest, ("--format csv|json|llm-d", "--out PATH", "--outputs DIR"))
    if kind not in FORMATS:
        raise ConfigError(f"export: --format {kind or '(none given)'} is none of {', '.join(FORMATS)}")
    if not rest:
        raise ConfigError("export takes a run or study; 'servebench ls' lists them")
    runs = [run for word in rest for run in read.runs_of(read.find(word, outputs))]
    if kind != "llm-d":
        text = to_csv(runs) if kind == "csv" else to_json(runs)
        if out is None:
            sys.stdout.write(text)
        else:
            write_page(Path(out), text)
        return 0
    return _export_llm_d([(run, report) for run in runs for report in llm_d_reports(run)], out)


def _export_llm_d(reports: Sequence[tuple[RunData, dict[str, Any]]], out: str | None) -> int:
    """Reports as YAML: to standard output as documents, or each to a file of its own. Raises ConfigError, StoreError."""
    import yaml

    from servebench.report.terminal.verdicts import write_page

    if not reports:
        raise ConfigError("export: no point was measured, so there is nothing to export")
    texts = [(run, report, yaml.safe_dump(report, sort_keys=False, allow_unicode=True)) for run, report in reports]
    if out is None:
        sys.stdout.write("---\n".join(text for *_, text in texts))
    elif len(texts) == 1 and Path(out).suffix in (".yaml", ".yml"):
        write_page(Path(out), texts[0][2])
    else:
        for run, report, text in texts:
            stage = report["scenario"]["load"]["standardized"]["stage"]
            write_page(Path(out) / f"{run.study_id}_{run.name}_{stage:02d}.yaml", text)
        sys.stdout.write(f"{len(texts)} reports in {out}\n")
    return 0


IMPORT_OPTIONS = ("--tool", "--engine", "--model", "--gpu", "--workload", "--name")


def import_files(words: Sequence[str]) -> int:
    """`import FILE ...`: result files of other tools as runs of a new study, marked foreign. Raises ConfigError, StoreError.

    Files of one tool, engine and model are the load levels of one run.
    """
    from servebench.foreign.readers import read_foreign
    from servebench.foreign.study import store_foreign

    outputs, rest = take_outputs(words)
    asked: dict[str, str | None] = {}
    for option in IMPORT_OPTIONS:
        asked[option.removeprefix("--")], rest = take_option(rest, option)
    no_options("import", rest, (*(f"{option} NAME" for option in IMPORT_OPTIONS), "--outputs DIR"))
    if not rest:
        raise ConfigError("import takes result files of vllm bench, sglang, guidellm, aiperf or genai-bench")
    found = [(Path(word), read_foreign(Path(word), asked["tool"])) for word in rest]
    study = store_foreign(outputs, found, {name: value for name, value in asked.items() if value is not None})
    sys.stdout.write(f"{study}\n")
    return 0


def dashboard(words: Sequence[str]) -> int:
    """`dashboard [--port N]`: serves the pages on this machine until it is stopped. Raises ConfigError, PreflightError."""
    from servebench.report.dashboard.launch import PORT, serve_dashboard

    outputs, rest = take_outputs(words)
    port, rest = take_option(rest, "--port")
    no_options("dashboard", rest, ("--port N", "--outputs DIR"))
    if rest:
        raise ConfigError(f"dashboard: unknown word '{rest[0]}'; it takes --port N and --outputs DIR")
    if port is not None and not (port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"dashboard: --port {port} is no port; give a number from 1 to 65535")
    serve_dashboard(outputs, int(port) if port else PORT)
