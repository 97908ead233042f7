"""`servebench compare`, `recommend` and `report`."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from servebench.cli.command import (
    FILE,
    SHARE,
    OneOf,
    define,
    json_option,
    judged_options,
    outputs_option,
    rules_option,
    shown_options,
    stored_argument,
)
from servebench.cli.completion import complete_stored
from servebench.util.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from servebench.analysis.conclude import Conclusions
    from servebench.analysis.verdict.gate import Gate
    from servebench.analysis.verdict.model import Comparison
    from servebench.contracts.stored import RunData
    from servebench.report.blocks import Block
    from servebench.report.terminal.console import Output

EXIT_REGRESSION = 1
EXIT_NOT_JUDGED = 7
LOOKED = "The study added starts by what it found; the verdicts above are its own."
MLPERF = "mlperf"
TOOLS = ("vllm", "sglang", "aiperf", "guidellm", MLPERF)


@define(
    "compare",
    examples=[
        ("servebench compare last", "all runs of the latest study, within each workload"),
        ("servebench compare before after --max-regression 5%", "fail if 'after' is slower by more than 5%"),
        ("servebench compare my_study --baseline main/00_vllm_unique --markdown pr.md", "a comment for a pull request"),
    ],
)
@stored_argument(several=True)
@click.option("--baseline", metavar="RUN", shell_complete=complete_stored, help="Compare with this run or study.")
@click.option("--max-regression", metavar="5%", type=SHARE, help="Fail if a competing metric is worse by more.")
@click.option("--metric", metavar="NAME,...", help="Metrics that have to be within --max-regression.")
@click.option("--margin", metavar="5%", type=SHARE, help="Differences below this share do not matter.")
@judged_options
@click.option("--junit", metavar="FILE", type=FILE, help="Write the result of the gate as JUnit XML.")
@click.option("--markdown", metavar="FILE", type=FILE, help="Write the comparison as Markdown.")
@shown_options
def compare_command(
    *,
    names: tuple[str, ...],
    baseline: str | None,
    max_regression: float | None,
    metric: str | None,
    margin: float | None,
    varying: str | None,
    with_doubtful: bool,
    junit: Path | None,
    markdown: Path | None,
    verbose: bool,
    form: str | None,
    as_json: bool,
    outputs: Path,
) -> int:
    """Compare runs with each other or with a baseline: which is faster, and how sure that is.

    With --max-regression the exit code is 0 if each metric that is judged is shown to be worse by no more than that, 1 if one is
    worse by more, and 7 if that cannot be judged: one start of each engine, unequal settings, no valid points, too few starts.
    Judged are those of --metric or study.metrics; else throughput, TPOT p50, E2E p50 and failed requests. See docs/gate.md.
    """
    from servebench.analysis.conclude import Options, conclude
    from servebench.analysis.fairness import check_varying
    from servebench.analysis.pairing import pair_runs
    from servebench.analysis.verdict.gate import GateQuestion, check_metrics, evaluate_gate
    from servebench.report.export.conclusions import as_plain
    from servebench.report.export.junit import to_junit
    from servebench.report.export.markdown import to_markdown
    from servebench.report.screens.answer import slow_starts_blocks
    from servebench.report.screens.comparison import gate_blocks, pairs_blocks
    from servebench.report.terminal.console import Output
    from servebench.store.files import write_file
    from servebench.store.studies import find, load_outputs, load_study

    out = Output(form, as_json=as_json, verbose=verbose)
    if metric is not None and max_regression is None:
        raise ConfigError("--metric has no effect without --max-regression; set that, or leave it out")
    metrics = None if metric is None else check_metrics("--metric", metric.split(","))
    named = [find(name, outputs) for name in names]
    pairs = pair_runs(named, find(baseline, outputs) if baseline else None, to_first=max_regression is not None)
    check_varying(varying, [run for pair in pairs for run in pair])
    earlier = [run for study in load_outputs(outputs) for run in study.runs]
    paths = dict.fromkeys(a.path.parent for a, b in pairs if a.study_id == b.study_id)
    runs = list({run.run_id: run for pair in pairs for run in pair}.values())
    options = Options(margin=margin or max_regression, varying=varying, with_doubtful=with_doubtful, answers=True)
    concluded = conclude(runs, [load_study(path) for path in paths], options, pairs=pairs, earlier=earlier)
    found = concluded.comparisons
    _say_unreadable(concluded)
    gate = None
    if max_regression is not None:
        asked = metrics or next((one.settings.metrics for one in concluded.decisions), None)
        gate = evaluate_gate(found, GateQuestion(max_regression, asked))
    slow = slow_starts_blocks(concluded.answer)
    decided = _decided(concluded, {path.name: path for path in paths})
    if markdown:
        write_file(markdown, to_markdown([*_compared(found, gate), *slow, *decided]))
    if junit:
        write_file(junit, to_junit(found, gate))
    judged = [] if gate is None or out.form == "markdown" else gate_blocks(gate, reasons=False)
    if not out.complete and baseline is None and len(found) > 1:
        blocks = pairs_blocks(concluded.answer, width=out.width)
    else:
        blocks = chain(_compared(found, gate if out.form == "markdown" else None), slow)
    out.write([*blocks, *decided, *judged], as_plain(concluded))
    return 0 if gate is None else _gate_code(gate)


def _say_unreadable(concluded: Conclusions) -> None:
    """Print which runs have a file that cannot be read."""
    from servebench.report.terminal.console import say
    from servebench.report.wording.answer import failure_text

    for one in concluded.answer.failures:
        if one.standing == "unreadable":
            say(f"servebench: {failure_text(one)}")


def _compared(found: Sequence[Comparison], gate: Gate | None) -> Iterator[Block]:
    from servebench.report.screens.comparison import comparison_blocks, gate_blocks

    if gate is not None:
        yield from gate_blocks(gate)
    for one in found:
        yield from comparison_blocks(one)


def _decided(concluded: Conclusions, folders: Mapping[str, Path]) -> list[Block]:
    """Return what studies with `study.until=decided` have decided, and the command that goes on."""
    from servebench.analysis.answer.next_steps import decide_step
    from servebench.report.blocks import Line
    from servebench.report.screens.answer import step_block
    from servebench.report.screens.comparison import decision_blocks
    from servebench.store.studies import command_words

    blocks: list[Block] = []
    for one in concluded.decisions:
        blocks += [Line.of(LOOKED), *decision_blocks(one)]
        if (step := decide_step(one, command_words(folders[one.study_id]))) is not None:
            blocks.append(step_block(step))
    return blocks


def _gate_code(gate: Gate) -> int:
    """Print why the gate does not pass, and return the exit code."""
    from servebench.report.terminal.console import say
    from servebench.report.wording.comparison import gate_failures, gate_undecided

    for line in gate_failures(gate):
        say(f"servebench: regression larger than {100 * gate.question.limit:g}%: {line}")
    if gate.failed:
        return EXIT_REGRESSION
    for candidate, why in gate_undecided(gate):
        say(f"servebench: {candidate} cannot be judged: {why}")
    return EXIT_NOT_JUDGED if gate.undecided else 0


@define(
    "recommend",
    examples=[
        ("servebench recommend last", "choose among the runs of the latest study"),
        ("servebench recommend study_a study_b --rules my_rules.yaml", "by your own use cases and weights"),
        ("servebench recommend --show-rules", "print the rules, to start from"),
    ],
)
@stored_argument(several=True, required=False)
@rules_option
@click.option("--show-rules", is_flag=True, help="Print the built-in rules.")
@judged_options
@shown_options
def recommend_command(
    *,
    names: tuple[str, ...],
    rules_path: Path | None,
    show_rules: bool,
    varying: str | None,
    with_doubtful: bool,
    verbose: bool,
    form: str | None,
    as_json: bool,
    outputs: Path,
) -> int:
    """Recommend a run for each use case: how sure the choice is, and what would change it."""
    from servebench.analysis.conclude import Options, conclude
    from servebench.analysis.fairness import check_varying
    from servebench.analysis.recommendation.rules import load_rules, rules_text
    from servebench.contracts.stored import StudyData
    from servebench.report.export.conclusions import as_plain
    from servebench.report.screens.recommendation import recommendation_blocks
    from servebench.report.terminal.console import Output, say
    from servebench.store.studies import find, runs_beside, runs_of

    if show_rules:
        click.echo(rules_text(), nl=False)
        return 0
    out = Output(form, as_json=as_json, verbose=verbose)
    rules = load_rules(rules_path)
    if not names:
        raise ConfigError(
            "recommend needs a study, or runs to choose among; 'servebench ls' lists them, 'last' is the latest"
        )
    found = [find(name, outputs) for name in names]
    runs = [run for one in found for run in runs_of(one)]
    check_varying(varying, runs)
    earlier = runs_beside(found[0]) if len(found) == 1 else ()
    # a study that has decided has done so with its own starts
    studies = [one for one in found if isinstance(one, StudyData)] if len(found) == 1 else []
    concluded = conclude(
        runs, studies, Options(varying=varying, with_doubtful=with_doubtful, rules=rules), earlier=earlier
    )
    _say_unreadable(concluded)
    if not concluded.recommendations:
        say("servebench: nothing to recommend: no run has a point; 'servebench ls' shows how each ended")
    _say_imitated(runs)
    complete = verbose if out.form == "markdown" else out.complete
    out.write(recommendation_blocks(concluded.recommendations or (), verbose=complete), as_plain(concluded))
    return 0


@define(
    "report",
    examples=[
        ("servebench report last", "write report.html into the folder of the latest study"),
        ("servebench report my_study/00_vllm_unique --out page.html", "one run, to a file of your own"),
        ("servebench report last --json", "the page, and its answers as JSON for a script"),
        ("servebench report last --as vllm", "the numbers by the definitions of 'vllm bench serve'"),
        ("servebench report last --as mlperf", "by MLPerf Endpoints' rules, and which are broken (unofficial)"),
    ],
)
@stored_argument()
@click.option("--out", metavar="FILE", type=FILE, help="File to write (default: report.html in the run or study).")
@click.option("--as", "tool", type=OneOf(TOOLS), help="Print the numbers by this tool's definitions; write no page.")
@click.option(
    "--data-set", metavar="N", type=click.IntRange(1), help="With --as mlperf: the number of samples of the data set."
)
@click.option("--open", "opened", is_flag=True, help="Show the page in your browser.")
@json_option
@rules_option
@judged_options
@outputs_option
def report_command(
    *,
    name: str,
    out: Path | None,
    tool: str | None,
    data_set: int | None,
    opened: bool,
    as_json: bool,
    rules_path: Path | None,
    varying: str | None,
    with_doubtful: bool,
    outputs: Path,
) -> int:
    """Write one self-contained HTML page about a run or study; with --json, print what its first screen says, too.

    With --as, print its numbers by the definitions of another tool instead.
    """
    from servebench.analysis.recommendation.rules import load_rules
    from servebench.report.export.conclusions import as_plain
    from servebench.report.html.page import page
    from servebench.report.screens.page import page_of
    from servebench.report.terminal.console import Output
    from servebench.store.files import write_file
    from servebench.store.studies import find

    to = Output(as_json=as_json)
    if data_set is not None and tool != MLPERF:
        raise ConfigError(f"--data-set is for --as {MLPERF}: leave it out")
    if tool is not None:
        for option, given in (("--out", out), ("--open", opened), ("--varying", varying), ("--rules", rules_path)):
            if given:
                raise ConfigError(f"{option} is for the page, and --as {tool} prints numbers: leave one of the two out")
        return _print_as(tool, name, to, data_set, outputs=outputs)
    found = find(name, outputs)
    data = page_of(found, load_rules(rules_path), with_doubtful=with_doubtful, varying=varying)
    target = out or found.path / "report.html"
    write_file(target, page(data))
    if to.as_json:
        about = {"report": str(target), "id": data.title, "folder": data.folder, "words": list(data.found.words)}
        to.write((), {**about, **as_plain(data.conclusions)})
    else:
        click.echo(target)
    if opened:
        click.launch(str(target))
    return 0


def _say_imitated(runs: Sequence[RunData]) -> str:
    """Say which engines were imitated, on the standard error, and return how: nothing for none."""
    from servebench.contracts.emulation import imitated
    from servebench.contracts.labels import run_labels
    from servebench.report.terminal.console import say

    how, labels = imitated(run.fact("launch") for run in runs), run_labels(runs)
    if how:
        named = [labels[run.run_id].text for run in runs if run.emulated]
        which = "" if len(named) == len(runs) else f" ({', '.join(named)})"
        say(f"servebench: {how} engines{which}: these numbers do not describe the real ones")
    return how


def _print_as(tool: str, name: str, to: Output, data_set: int | None, *, outputs: Path) -> int:
    """Print a run as another tool would. Raises ConfigError, StoreError."""
    from servebench.measure.dialects import DIALECTS
    from servebench.report.screens import as_tool
    from servebench.store.studies import find, runs_of

    runs, dialect = runs_of(find(name, outputs)), DIALECTS.get(tool)
    facts = {"imitated": _say_imitated(runs)}
    if dialect is not None and (points := as_tool.points_as_tool(runs, dialect)):
        data = {"as": tool, "notes": list(dialect.notes), "points": [point.as_dict() for point in points]}
        to.write(as_tool.as_tool_blocks(points, dialect), data | facts)
    elif dialect is None and (curves := as_tool.curves_of(runs, data_set)):
        to.write(as_tool.as_mlperf_blocks(curves, data_set), as_tool.as_document(curves, data_set) | facts)
    else:
        raise ConfigError(f"'{name}' has no successful requests to recompute from: all failed, or it was imported")
    return 0
