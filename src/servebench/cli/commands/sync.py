"""`servebench sync`."""

from pathlib import Path

import click

from servebench.cli.command import define, outputs_option, studies_argument, trust_option


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
def command(names: tuple[str, ...], uri: str | None, trusted: bool, outputs: Path) -> int:
    """Send studies to MLflow that it has not received, for example because the server was down.

    Of studies that you did not make on this machine, the server is shown first, and they are sent if you trust them.
    """
    from servebench.store.studies import named_studies
    from servebench.study.sync import sync_studies

    return sync_studies(named_studies(names, outputs), uri=uri, trusted=trusted)
