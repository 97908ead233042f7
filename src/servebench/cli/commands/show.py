"""`servebench show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from servebench.cli.command import (
    chosen_format,
    define,
    format_option,
    json_option,
    outputs_option,
    stored_argument,
    verbose_option,
)
from servebench.util.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from servebench.analysis.conclude import Conclusions
    from servebench.analysis.limits import LimitFinding
    from servebench.contracts.stored import RunData, StudyData
    from servebench.store.layout import StudyFolder


PAGE_WIDTH = 120
"""Tables of more columns than fit have a row for each point."""


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
@verbose_option
@format_option
@json_option
@outputs_option
def command(*, name: str, request_id: str | None, verbose: bool, form: str | None, as_json: bool, outputs: Path) -> int:
    """Show the set-up and the results of a stored run, or the answer of a stored study."""
    from servebench.contracts.stored import StudyData
    from servebench.report.terminal.stored import show_study
    from servebench.report.terminal.timings import show_request
    from servebench.store.layout import StudyFolder
    from servebench.store.studies import find, number_runs
    from servebench.store.tune import is_tune
    from servebench.study.outlook import study_conclusions

    form = chosen_format(form, as_json=as_json)
    as_json = form == "json"
    found = find(name, outputs)
    if request_id is not None:
        if form == "markdown":
            raise ConfigError("--request has no Markdown: leave out --format markdown")
        show_request(one_run(found), request_id)
        return 0
    if form == "markdown":
        return _print_markdown(found, verbose=verbose)
    if not isinstance(found, StudyData):
        return _show_run(found, as_json=as_json, verbose=verbose)
    if is_tune(StudyFolder(found.path)):
        return _show_tune(StudyFolder(found.path), as_json=as_json, verbose=verbose)
    if len(found.runs) == 1:
        return _show_run(found.runs[0], as_json=as_json, verbose=verbose)
    numbers, concluded = number_runs(found.path.parent), None
    try:
        concluded = study_conclusions(found.path)
    except StoreError:
        # what can be read is data, too
        if not as_json:
            raise
    show_study(found, as_json=as_json, numbers=numbers, concluded=concluded, verbose=verbose)
    return 0


def _show_run(found: RunData, *, as_json: bool, verbose: bool) -> int:
    """Print a run: its set-up, results, where its time goes and what limits it."""
    from servebench.analysis.answer.next_steps import UNFINISHED
    from servebench.analysis.limits import findings
    from servebench.analysis.repeats import summarize_repeats
    from servebench.contracts.labels import run_labels
    from servebench.report.screens.limits import limit_blocks
    from servebench.report.terminal.blocks import print_blocks
    from servebench.report.terminal.stored import show_run
    from servebench.report.terminal.tables import console
    from servebench.report.terminal.timings import parts_json, show_time_parts
    from servebench.store.studies import load_study
    from servebench.util.short_id import short_id

    label = run_labels(load_study(found.path.parent).runs)[found.run_id].text
    limits: list[LimitFinding] = []
    try:
        times, limits = parts_json(found) if as_json else None, findings(found)
    except StoreError as error:
        times = {"unreadable": str(error)}
    show_run(
        found, as_json=as_json, label=label, repeats=summarize_repeats(found.point_rows), times=times, limits=limits
    )
    if not as_json:
        try:
            show_time_parts(found, verbose=verbose)
        except StoreError as error:
            click.echo(f"where the time goes: {error}", err=True)
        print_blocks(limit_blocks(limits, verbose=verbose), console())
        if found.status in UNFINISHED | {"failed"}:
            failed = " --failed" if found.status == "failed" else ""
            click.echo(f"next: servebench resume {short_id(found.study_id)}{failed}")
    return 0


def _print_markdown(found: RunData | StudyData, *, verbose: bool) -> int:
    """Print the answer of a study or tune, or that of a run alone, as Markdown."""
    from servebench.contracts.stored import StudyData
    from servebench.registry.registry import registry
    from servebench.report.export.markdown import to_markdown
    from servebench.report.screens.answer import answer_blocks
    from servebench.report.screens.tuning import tune_blocks
    from servebench.store.layout import StudyFolder
    from servebench.store.tune import is_tune
    from servebench.study.tune_answer import stored_answer

    if isinstance(found, StudyData) and is_tune(StudyFolder(found.path)):
        answer = stored_answer(StudyFolder(found.path), registry())
        blocks = tune_blocks(answer, width=PAGE_WIDTH, complete=verbose)
    else:
        blocks = answer_blocks(_conclusions(found).answer, width=PAGE_WIDTH, complete=verbose)
    click.echo(to_markdown(blocks), nl=False)
    return 0


def _conclusions(found: RunData | StudyData) -> Conclusions:
    from servebench.analysis.conclude import Options, conclude
    from servebench.contracts.stored import StudyData
    from servebench.store.studies import command_words
    from servebench.study.outlook import study_conclusions

    if isinstance(found, StudyData):
        return study_conclusions(found.path)
    return conclude([found], [], Options(limits=True, name=command_words(found.path.parent)))


def _show_tune(folder: StudyFolder, *, as_json: bool, verbose: bool) -> int:
    """Print the answer of a tune."""
    from servebench.analysis.events import TuneAnswered
    from servebench.registry.registry import registry
    from servebench.report.terminal.display import Detail, Display
    from servebench.study.tune_answer import stored_answer

    show = Display(detail=Detail(verbose=verbose, as_json=as_json))
    show(TuneAnswered(stored_answer(folder, registry())))
    return 0


def one_run(found: RunData | StudyData) -> RunData:
    """Return a run, or the only one of a study. Raises ConfigError for a study of several."""
    from servebench.store.studies import runs_of

    runs = runs_of(found)
    if len(runs) != 1:
        raise ConfigError(f"--request needs one run, and {found.path.name} has {len(runs)}; name one: STUDY/RUN")
    return runs[0]
