"""`servebench show` and `ls`."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from servebench.cli.command import conditions_argument, data_options, define, shown_options, stored_argument
from servebench.util.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from servebench.analysis.limits.model import LimitFinding
    from servebench.contracts.stored import RunData, StudyData
    from servebench.report.terminal.console import Output
    from servebench.store.layout import StudyFolder


@define(
    "show",
    examples=[
        ("servebench show last", "the latest study"),
        ("servebench show 3 --request c8-r0-00012", "where the time of one of its requests went"),
        ("servebench show 3 --json", "the run with this number in 'servebench ls', as JSON"),
    ],
)
@stored_argument()
@click.option("--request", "request_id", metavar="ID", help="Show where the time of one request of the run went.")
@shown_options
def show_command(
    *, name: str, request_id: str | None, verbose: bool, form: str | None, as_json: bool, outputs: Path
) -> int:
    """Show the set-up and the results of a stored run, or the answer of a stored study."""
    from servebench.contracts.stored import StudyData
    from servebench.report.blocks import Line
    from servebench.report.screens.times import request_lines
    from servebench.report.terminal.console import Output
    from servebench.store.layout import StudyFolder
    from servebench.store.studies import find, runs_of
    from servebench.store.tune import is_tune

    out = Output(form, as_json=as_json, verbose=verbose)
    found = find(name, outputs)
    if request_id is not None:
        if out.form == "markdown":
            raise ConfigError("--request has no Markdown: leave out --format markdown")
        if len(runs := runs_of(found)) != 1:
            raise ConfigError(f"--request needs one run, and {found.path.name} has {len(runs)}; name one: STUDY/RUN")
        Output().write(map(Line.of, request_lines(runs[0], request_id)))
    elif isinstance(found, StudyData) and is_tune(StudyFolder(found.path)):
        _show_tune(StudyFolder(found.path), out)
    elif isinstance(found, StudyData) and (len(found.runs) != 1 or out.form == "markdown"):
        _show_study(found, out)
    else:
        _show_run(found.runs[0] if isinstance(found, StudyData) else found, out)
    return 0


def _show_run(found: RunData, out: Output) -> None:
    """Print a run: its set-up, results, where its time goes and what limits it; as Markdown its answer."""
    from servebench.analysis.answer.next_steps import UNFINISHED, long_command
    from servebench.analysis.conclude import Options, conclude
    from servebench.analysis.limits import findings
    from servebench.analysis.slow_starts import own_slow_starts
    from servebench.contracts.labels import run_labels
    from servebench.report.blocks import Block, Line, NextCommand
    from servebench.report.screens.answer import answer_blocks
    from servebench.report.screens.stored import limit_blocks, run_blocks, run_data
    from servebench.report.screens.times import times_blocks, times_of
    from servebench.report.terminal.console import say
    from servebench.report.wording.noise import LONG_POINT, long_point_helps, prior_line
    from servebench.store.noise import all_noise
    from servebench.store.studies import command_words, load_study, runs_beside
    from servebench.util.short_id import short_id

    if out.form == "markdown":
        options = Options(limits=True, name=command_words(found.path.parent))
        answer = conclude([found], [], options, earlier=runs_beside(found)).answer
        out.write(answer_blocks(answer, width=out.width, complete=out.verbose))
        return
    label = run_labels(load_study(found.path.parent).runs)[found.run_id].text
    limits: list[LimitFinding] = []
    slow = own_slow_starts(found, runs_beside(found))
    noise = list(all_noise(found.path.parent.parent))
    prior = prior_line(found, noise, time.time())
    complete = out.complete
    blocks: list[Block] = list(run_blocks(found, label, slow, prior, complete=complete))
    try:
        times = times_of(found, found.name)
        data, limits = times.as_dict(), findings(found)
        blocks += times_blocks([times], "where the time goes (mean ms)", complete=complete)
    except StoreError as error:
        data = {"unreadable": str(error)}
        if not out.as_json:
            say(f"where the time goes: {error}")
    blocks += limit_blocks(limits, complete=complete, verbose=out.verbose)
    if not complete:
        blocks.append(Line.of("more with -v: remedies, evidence, TTFT and the slowest requests in parts", tone="dim"))
    if found.status in UNFINISHED | {"failed"}:
        failed = " --failed" if found.status == "failed" else ""
        blocks.append(NextCommand("next", f"servebench resume {short_id(found.study_id)}{failed}"))
    if long_point_helps(found, noise, time.time()):
        blocks.append(NextCommand("next", long_command(found), LONG_POINT))
    out.write(blocks, run_data(found, label, data, limits, slow))


def _show_study(found: StudyData, out: Output) -> None:
    """Print a study: its answer, and its runs where all is asked for; as Markdown its answer."""
    from servebench.report.screens.answer import answer_blocks
    from servebench.report.screens.listing import list_blocks
    from servebench.report.screens.stored import study_blocks, study_data
    from servebench.store.studies import load_outputs, number_runs
    from servebench.study.outlook import study_conclusions

    concluded = None
    try:
        concluded = study_conclusions(found.path)
    except StoreError:
        # what can be read is data, too
        if not out.as_json:
            raise
    markdown = out.form == "markdown"
    blocks = [] if markdown else list(study_blocks(found))
    if out.complete and not markdown:
        blocks += list_blocks([found], number_runs(load_outputs(found.path.parent)), width=out.room)
    if concluded is not None:
        complete, verbose = (out.verbose, False) if markdown else (out.complete, out.verbose)
        blocks += answer_blocks(concluded.answer, width=out.width, complete=complete, verbose=verbose)
    out.write(blocks, study_data(found, concluded) if out.as_json else None)


def _show_tune(folder: StudyFolder, out: Output) -> None:
    from servebench.registry.registry import registry
    from servebench.report.screens.tuning import tune_blocks
    from servebench.study.stored_tune import stored_answer

    answer = stored_answer(folder, registry())
    complete = out.verbose if out.form == "markdown" else out.complete
    out.write(tune_blocks(answer, complete=complete), asdict(answer))


NEWEST = 100


@define(
    "ls",
    examples=[
        ("servebench ls", "the newest runs"),
        ("servebench ls engine=vllm,sglang status=finished", "runs that meet both conditions"),
        ("servebench ls 'model=*llama*' engine.dtype=float16 --json", "by pattern and config key, as JSON"),
    ],
)
@conditions_argument
@click.option(
    "--all",
    "every",
    is_flag=True,
    help=f"Show all runs: the candidates of tunes, and more than about {NEWEST} of the newest.",
)
@data_options
def ls_command(*, conditions: tuple[str, ...], every: bool, as_json: bool, outputs: Path) -> int:
    """List stored runs, the newest last: about a hundred, or all that meet the conditions.

    Other commands take a run by its number: servebench compare 1 2.
    """
    from servebench.report.screens.listing import LIST_COLUMNS, list_blocks, run_list
    from servebench.report.terminal.console import Output
    from servebench.store.overview import listed_rows
    from servebench.store.studies import load_newest, number_runs, select

    wanted = parse_conditions(conditions)
    out, read = Output(as_json=as_json), partial(listed_rows, columns=LIST_COLUMNS)
    most = None if every or wanted or as_json else NEWEST
    stored, older = load_newest(outputs, most, read)
    studies, numbers = select(stored, wanted), number_runs(stored, older)
    if as_json:
        out.write((), run_list(studies, numbers))
    elif studies:
        candidates = every or not {"study", "run"}.isdisjoint(wanted)
        out.write(
            list_blocks(
                studies, numbers, width=out.room, most=None if every else NEWEST, candidates=candidates, older=older
            )
        )
    else:
        click.echo(" ".join(("there are no runs in", str(outputs), *(("with", *conditions) if conditions else ()))))
    return 0


def parse_conditions(words: tuple[str, ...]) -> dict[str, str]:
    """Return the conditions in `key=value` words. Raises ConfigError."""
    from servebench.store.studies import CONDITION_KEYS

    conditions = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not (key in CONDITION_KEYS or "." in key):
            raise ConfigError(
                f"ls: '{word}' is not a condition; use KEY=VALUE with one of {', '.join(CONDITION_KEYS)}, or a config key "
                "such as engine.dtype"
            )
        conditions[key] = value
    return conditions
