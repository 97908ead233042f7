"""`servebench report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servebench.cli.command import (
    FILE,
    OneOf,
    define,
    doubtful_option,
    json_option,
    outputs_option,
    rules_option,
    stored_argument,
    varying_option,
)

if TYPE_CHECKING:
    from servebench.report.output import Output
    from servebench.report.screens.page import Page

MLPERF = "mlperf"
TOOLS = ("vllm", "sglang", "aiperf", "guidellm", MLPERF)


@define(
    "report",
    examples=[
        ("servebench report last", "write report.html into the folder of the latest study"),
        ("servebench report my_study/00_vllm_unique --out page.html", "one run, to a file of your own"),
        ("servebench report last --json", "the page, and its answers as JSON for a script"),
        ("servebench report last --as vllm", "the numbers by the definitions of 'vllm bench serve'"),
        ("servebench report last --as mlperf", "by MLPerf Endpoints' rules, and which are broken (unofficial)"),
    ],
)
@stored_argument()
@click.option("--out", metavar="FILE", type=FILE, help="File to write (default: report.html in the run or study).")
@click.option("--as", "tool", type=OneOf(TOOLS), help="Print the numbers by this tool's definitions; write no page.")
@click.option(
    "--data-set", metavar="N", type=click.IntRange(1), help="With --as mlperf: the number of samples of the data set."
)
@click.option("--open", "opened", is_flag=True, help="Show the page in your browser.")
@json_option
@rules_option
@varying_option
@doubtful_option
@outputs_option
def report_command(
    *,
    name: str,
    out: Path | None,
    tool: str | None,
    data_set: int | None,
    opened: bool,
    as_json: bool,
    rules_path: Path | None,
    varying: str | None,
    with_doubtful: bool,
    outputs: Path,
) -> int:
    """Write one self-contained HTML page about a run or study; with --json, print what its first screen says, too.

    With --as, print its numbers by the definitions of another tool instead.
    """
    from servebench.analysis.recommendation.rules import load_rules
    from servebench.report.html.page import page
    from servebench.report.output import Output
    from servebench.report.screens.page import page_of
    from servebench.store.files import write_file
    from servebench.store.studies import find
    from servebench.util.errors import ConfigError

    to = Output(as_json=as_json)
    if data_set is not None and tool != MLPERF:
        raise ConfigError(f"--data-set is for --as {MLPERF}: leave it out")
    if tool is not None:
        for option, given in (("--out", out), ("--open", opened), ("--varying", varying), ("--rules", rules_path)):
            if given:
                raise ConfigError(f"{option} is for the page, and --as {tool} prints numbers: leave one of the two out")
        return _print_as(tool, name, to, data_set, outputs=outputs)
    found = find(name, outputs)
    data = page_of(found, load_rules(rules_path), with_doubtful=with_doubtful, varying=varying)
    target = out or found.path / "report.html"
    write_file(target, page(data))
    if to.as_json:
        to.write((), _plain(data, target))
    else:
        click.echo(target)
    if opened:
        click.launch(str(target))
    return 0


def _plain(data: Page, target: Path) -> dict[str, Any]:
    from servebench.report.export.conclusions import as_plain

    found = {"report": str(target), "id": data.title, "folder": data.folder, "words": list(data.found.words)}
    return {**found, **as_plain(data.conclusions)}


def _print_as(tool: str, name: str, to: Output, data_set: int | None, *, outputs: Path) -> int:
    """Print a run as another tool would. Raises ConfigError, StoreError."""
    from servebench.measure.dialects import DIALECTS
    from servebench.report.screens.as_mlperf import as_document, as_mlperf_blocks, curves_of
    from servebench.report.screens.as_tool import as_tool_blocks, points_as_tool
    from servebench.store.studies import find, runs_of
    from servebench.util.errors import ConfigError

    runs, dialect = runs_of(find(name, outputs)), DIALECTS.get(tool)
    if dialect is not None and (points := points_as_tool(runs, dialect)):
        data = {"as": tool, "notes": list(dialect.notes), "points": [point.as_dict() for point in points]}
        to.write(as_tool_blocks(points, dialect), data)
    elif dialect is None and (curves := curves_of(runs, data_set)):
        to.write(as_mlperf_blocks(curves, data_set), as_document(curves, data_set))
    else:
        raise ConfigError(f"'{name}' has no successful requests to recompute from: all failed, or it was imported")
    return 0
