"""`servebench resume`."""

from pathlib import Path

import click

from servebench.cli.command import DURATION, define, json_option, outputs_option, trust_option, verbose_option
from servebench.cli.completion import complete_studies


@define(
    "resume",
    examples=[
        ("servebench resume", "continue the newest unfinished study"),
        ("servebench resume 0131-k7x --failed", "continue this one, and try its failed runs again"),
        ("servebench resume last --better", "measure the doubtful points again, twice as long"),
        (
            "servebench resume last --budget 30m",
            "go on with what study.until=decided left open, for 30 more engine minutes",
        ),
    ],
)
@click.argument("study", metavar="[STUDY]", required=False, shell_complete=complete_studies)
@click.option("--failed", is_flag=True, help="Run failed and damaged runs again, too.")
@click.option("--here", is_flag=True, help="Do a cluster's runs on this machine.")
@click.option("--better", is_flag=True, help="Measure doubtful points again, twice as long.")
@click.option(
    "--budget", "more_s", metavar="TIME", type=DURATION, help="Go on with open decisions for so much more engine time."
)
@trust_option
@verbose_option
@json_option
@outputs_option
def command(
    *,
    study: str | None,
    failed: bool,
    here: bool,
    better: bool,
    more_s: float | None,
    trusted: bool,
    verbose: bool,
    as_json: bool,
    outputs: Path,
) -> int:
    """Continue a study that was interrupted: the one named, or the newest unfinished one.

    Finished runs and points are kept; interrupted ones are measured again. A study of a cluster continues on the cluster.
    With --better, points whose warnings a longer measurement may settle are measured again, too.
    With --budget, a study with study.until=decided that has ended goes on with what it has left open.
    A study that you did not make on this machine is shown first, and continued if you trust it.
    """
    from servebench.registry.registry import registry
    from servebench.report.listeners import listeners
    from servebench.report.terminal.display import Detail
    from servebench.store.studies import named_studies
    from servebench.store.tune import is_tune
    from servebench.study.resume import newest_unfinished
    from servebench.study.study import continue_study
    from servebench.util.errors import ConfigError
    from servebench.util.short_id import short_id

    if better and more_s is not None:
        raise ConfigError("resume: --budget makes more starts and --better longer points; give one of them")
    named = study or better or more_s is not None
    folder = named_studies([study or "last"], outputs)[0] if named else newest_unfinished(outputs)
    listen = listeners(registry(), Detail(verbose=verbose, as_json=as_json))
    if is_tune(folder):
        from servebench.study.tune import continue_tune

        if more_s is not None:
            raise ConfigError(
                f"{folder.name} is a tune; 'servebench tune --continue {short_id(folder.name)} tune.budget=30m' gives it more"
            )
        return continue_tune(folder, registry(), listen=listen, here=here, trusted=trusted)
    return continue_study(
        folder,
        registry(),
        retry_failed=failed,
        here=here,
        trusted=trusted,
        better=better,
        more_s=more_s,
        listen=listen,
    )
