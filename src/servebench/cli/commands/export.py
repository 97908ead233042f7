"""`servebench export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servebench.cli.command import FILE, OneOf, define, outputs_option, stored_argument

if TYPE_CHECKING:
    from servebench.contracts.stored import RunData

FORMATS = ("csv", "json", "llm-d")


@define(
    "export",
    examples=[
        ("servebench export last --format csv", "all points, to standard output"),
        ("servebench export my_study --format llm-d --out reports", "one llm-d report per point, in a folder"),
    ],
)
@stored_argument(several=True)
@click.option("--format", "form", type=OneOf(FORMATS), required=True, help="Format of the export.")
@click.option("--out", metavar="PATH", type=FILE, help="File or folder to write (default: standard output).")
@outputs_option
def command(names: tuple[str, ...], form: str, out: Path | None, outputs: Path) -> int:
    """Export runs for other programs."""
    from servebench.report.export.export import llm_d_reports, to_csv, to_json
    from servebench.report.files import write_file
    from servebench.store.studies import find, runs_of

    runs = [run for name in names for run in runs_of(find(name, outputs))]
    if form == "llm-d":
        return _export_llm_d([(run, report) for run in runs for report in llm_d_reports(run)], out)
    text = to_csv(runs) if form == "csv" else to_json(runs)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_file(out, text)
    return 0


def _export_llm_d(reports: Sequence[tuple[RunData, dict[str, Any]]], out: Path | None) -> int:
    """Write reports as YAML: as documents to standard output, or one file each. Raises ConfigError, StoreError."""
    import yaml

    from servebench.report.files import write_file
    from servebench.util.errors import ConfigError

    if not reports:
        raise ConfigError("export: there are no measured points to export")
    texts = [(run, report, yaml.safe_dump(report, sort_keys=False, allow_unicode=True)) for run, report in reports]
    if out is None:
        click.echo("---\n".join(text for *_, text in texts), nl=False)
    elif len(texts) == 1 and out.suffix in (".yaml", ".yml"):
        write_file(out, texts[0][2])
    else:
        for run, report, text in texts:
            stage = report["scenario"]["load"]["standardized"]["stage"]
            write_file(out / f"{run.study_id}_{run.name}_{stage:02d}.yaml", text)
        click.echo(f"{len(texts)} reports in {out}")
    return 0
