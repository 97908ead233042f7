"""`servebench resume`."""

from pathlib import Path

import click

from servebench.cli.command import define, outputs_option, trust_option
from servebench.cli.completion import complete_studies


@define(
    "resume",
    examples=[
        ("servebench resume", "continue the newest unfinished study"),
        ("servebench resume 2026-01-31_12-00-00 --failed", "continue this one, and try its failed runs again"),
    ],
)
@click.argument("study", metavar="[STUDY]", required=False, shell_complete=complete_studies)
@click.option("--failed", is_flag=True, help="Run failed and damaged runs again, too.")
@click.option("--here", is_flag=True, help="Do a cluster's runs on this machine.")
@trust_option
@outputs_option
def command(study: str | None, failed: bool, here: bool, trusted: bool, outputs: Path) -> int:
    """Continue a study that was interrupted: the one named, or the newest unfinished one.

    Finished runs and points are kept; interrupted ones are measured again. A study of a cluster continues on the cluster.
    A study that you did not make on this machine is shown first, and continued if you trust it.
    """
    from servebench.registry.registry import registry
    from servebench.store.studies import named_studies
    from servebench.study.resume import newest_unfinished
    from servebench.study.study import continue_study

    folder = named_studies([study], outputs)[0] if study else newest_unfinished(outputs)
    return continue_study(folder, registry(), retry_failed=failed, here=here, trusted=trusted)
