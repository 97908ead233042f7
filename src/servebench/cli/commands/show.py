"""`servebench show`."""

from pathlib import Path

from servebench.cli.command import define, json_option, outputs_option, stored_argument, verbose_option


@define(
    "show",
    examples=[
        ("servebench show last", "the latest study"),
        ("servebench show 3 --json", "the run with this number in 'servebench ls', as JSON"),
    ],
)
@stored_argument()
@verbose_option
@json_option
@outputs_option
def command(*, name: str, verbose: bool, as_json: bool, outputs: Path) -> int:
    """Show the set-up and the results of a stored run, or the answer of a stored study."""
    from servebench.analysis.stored_runs import repeats_of
    from servebench.contracts.labels import run_labels
    from servebench.contracts.stored import StudyData
    from servebench.report.terminal.stored import show_run, show_study
    from servebench.store.studies import find, load_study, number_runs
    from servebench.study.outlook import study_answer

    found = find(name, outputs)
    if isinstance(found, StudyData):
        if len(found.runs) != 1:
            answer = None if as_json else study_answer(found.path)
            numbers = number_runs(found.path.parent)
            show_study(found, as_json=as_json, numbers=numbers, answer=answer, verbose=verbose)
            return 0
        found = found.runs[0]
    label = run_labels(load_study(found.path.parent).runs)[found.run_id].text
    show_run(found, as_json=as_json, label=label, repeats=repeats_of(found))
    return 0
