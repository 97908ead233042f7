"""`servebench recover`."""

from pathlib import Path

from servebench.cli.command import define, outputs_option, studies_argument


@define(
    "recover",
    examples=[
        ("servebench recover", "recover all killed studies of outputs/"),
        ("servebench recover my_study --outputs /data/outputs", "recover one study"),
    ],
)
@studies_argument
@outputs_option
def command(names: tuple[str, ...], outputs: Path) -> int:
    """Turn what a killed study left on disk into its tables."""
    from servebench.store.studies import named_studies
    from servebench.study.recover import recover_studies

    return recover_studies(named_studies(names, outputs), report_running=bool(names))
