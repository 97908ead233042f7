"""`servebench work`."""

from pathlib import Path

import click

from servebench.cli.command import define, outputs_option, trust_option
from servebench.cli.completion import complete_runs_of_study, complete_studies


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
def command(study: str, run: str, trusted: bool, outputs: Path) -> int:
    """Do one run of a stored plan on this machine: the command for a job of your own scheduler."""
    from servebench.cluster.agent import execute_order
    from servebench.contracts.cluster import RunOrder
    from servebench.registry.registry import registry
    from servebench.store.studies import named_studies
    from servebench.study.trust import confirm_study
    from servebench.util.errors import ConfigError

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
    click.echo(f"{run}: {reply.outcome.status}{f': {reply.outcome.error}' if reply.outcome.error else ''}", err=True)
    return reply.outcome.exit_code
