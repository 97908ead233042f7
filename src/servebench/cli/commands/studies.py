"""Commands that go on with stored studies: `servebench resume`, `recover`, `sync` and `work`."""

from pathlib import Path

import click

from servebench.cli.command import DURATION, define, outputs_option, session_options, studies_argument, trust_option
from servebench.cli.completion import complete_runs_of_study, complete_studies
from servebench.util.errors import ConfigError


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
@session_options
@outputs_option
def resume_command(
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
    from servebench.report.terminal.display import listeners
    from servebench.store.studies import named_studies
    from servebench.store.tune import is_tune
    from servebench.study.resume import newest_unfinished
    from servebench.study.study import continue_study
    from servebench.util.short_id import short_id

    if better and more_s is not None:
        raise ConfigError("resume: --budget makes more starts and --better longer points; give one of them")
    named = study is not None or better or more_s is not None
    folder = named_studies(["last" if study is None else study], outputs)[0] if named else newest_unfinished(outputs)
    listen = listeners(registry(), verbose=verbose, as_json=as_json)
    if is_tune(folder):
        from servebench.study.tune import continue_tune

        if more_s is not None:
            raise ConfigError(
                f"{folder.name} is a tune; 'servebench tune --continue {short_id(folder.name)} tune.budget=30m' gives it more"
            )
        return continue_tune(folder, registry(), listen=listen, here=here, trusted=trusted)
    return continue_study(
        folder, registry(), retry_failed=failed, here=here, trusted=trusted, better=better, more_s=more_s, listen=listen
    )


@define(
    "recover",
    examples=[
        ("servebench recover", "recover all killed studies of outputs/"),
        ("servebench recover my_study --outputs /data/outputs", "recover one study"),
    ],
)
@studies_argument
@outputs_option
def recover_command(names: tuple[str, ...], outputs: Path) -> int:
    """Turn what a killed study left on disk into its tables."""
    from servebench.store.studies import named_studies
    from servebench.study.resume import recover_studies

    return recover_studies(named_studies(names, outputs), report_running=bool(names))


@define(
    "sync",
    examples=[
        ("servebench sync", "send all studies of outputs/"),
        ("servebench sync my_study --uri http://mlflow:5000", "send one study, to this server"),
    ],
)
@studies_argument
@click.option("--uri", metavar="URI", help="MLflow tracking server (default: the one that the study was run with).")
@trust_option
@outputs_option
def sync_command(names: tuple[str, ...], uri: str | None, trusted: bool, outputs: Path) -> int:
    """Send studies to MLflow that it has not received, for example because the server was down.

    Of studies that you did not make on this machine, the server is shown first, and they are sent if you trust them.
    """
    from servebench.store.studies import named_studies
    from servebench.study.tracking import sync_studies

    return sync_studies(named_studies(names, outputs), uri=uri, trusted=trusted)


@define(
    "work",
    examples=[
        ("servebench work my_study 00_vllm_unique", "do this run on this machine"),
        ("servebench work /shared/outputs/my_study 01_sglang_unique", "a study by its folder"),
    ],
)
@click.argument("study", metavar="STUDY", shell_complete=complete_studies)
@click.argument("run", metavar="RUN", shell_complete=complete_runs_of_study)
@trust_option
@outputs_option
def work_command(study: str, run: str, trusted: bool, outputs: Path) -> int:
    """Do one run of a stored plan on this machine: the command for a job of your own scheduler."""
    from servebench.cluster.agent import execute_order
    from servebench.contracts.cluster import RunOrder
    from servebench.registry.registry import registry
    from servebench.report.terminal.console import say
    from servebench.store.studies import named_studies
    from servebench.study.trust import confirm_study

    folder = named_studies([study], outputs)[0]
    stored = confirm_study(folder, registry(), trusted=trusted, adopt=False)
    planned = next((one for one in stored.plan if one.name == run), None)
    if planned is None:
        raise ConfigError(f"{folder.name} has no run '{run}'; it has {', '.join(one.name for one in stored.plan)}")
    reply = execute_order(
        RunOrder(
            study=str(folder.path),
            run=run,
            title=run,
            ticket=stored.state.ticket,
            overrides=planned.overrides,
            config=planned.config,
            gpus=0,
            runs_per_machine=None,
            cluster_gives_gpus=True,
        )
    )
    if reply.outcome is None:
        raise ConfigError(reply.refused or "refused")
    say(f"{run}: {reply.outcome.status}{f': {reply.outcome.error}' if reply.outcome.error else ''}")
    return reply.outcome.exit_code
