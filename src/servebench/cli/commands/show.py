"""`servebench show`."""

from pathlib import Path

from servebench.cli.command import define, json_option, outputs_option, stored_argument


@define(
    "show",
    examples=[
        ("servebench show last", "the latest study"),
        ("servebench show 3 --json", "the run with this number in 'servebench ls', as JSON"),
    ],
)
@stored_argument()
@json_option
@outputs_option
def command(name: str, as_json: bool, outputs: Path) -> int:
    """Show the set-up and the results of a stored run or study."""
    from servebench.analysis.stored_runs import repeats_of
    from servebench.contracts.stored import StudyData
    from servebench.report.terminal.listing import number_runs, show_run, show_study
    from servebench.store.studies import find, load_outputs

    found = find(name, outputs)
    if isinstance(found, StudyData):
        if len(found.runs) != 1:
            show_study(found, as_json=as_json, numbers=number_runs(load_outputs(found.path.parent)))
            return 0
        found = found.runs[0]
    show_run(found, as_json=as_json, repeats=repeats_of(found))
    return 0
