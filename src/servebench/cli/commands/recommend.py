"""`servebench recommend`."""

from pathlib import Path

import click

from servebench.cli.command import (
    define,
    doubtful_option,
    format_option,
    json_option,
    outputs_option,
    rules_option,
    stored_argument,
    varying_option,
    verbose_option,
)


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
@varying_option
@doubtful_option
@verbose_option
@format_option
@json_option
@outputs_option
def command(
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
    from servebench.contracts.emulation import imitated
    from servebench.contracts.labels import run_labels
    from servebench.contracts.stored import StudyData
    from servebench.report.export.conclusions import as_plain
    from servebench.report.output import Output
    from servebench.report.screens.recommendation import recommendation_blocks
    from servebench.store.studies import find, runs_beside, runs_of
    from servebench.util.errors import ConfigError

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
    labels = run_labels(runs)
    if how := imitated(run.fact("launch") for run in runs):
        named = [labels[run.run_id].text for run in runs if run.emulated]
        which = "" if len(named) == len(runs) else f" ({', '.join(named)})"
        click.echo(f"servebench: {how} engines{which}: these numbers do not describe the real ones", err=True)
    complete = verbose if out.form == "markdown" else out.complete
    out.write(recommendation_blocks(concluded.recommendations or (), verbose=complete), as_plain(concluded))
    return 0
