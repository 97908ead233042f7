"""`servebench report`."""

from pathlib import Path

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

TOOLS = ("vllm", "sglang", "aiperf", "guidellm", "genai-bench")


@define(
    "report",
    examples=[
        ("servebench report last", "write report.html into the folder of the latest study"),
        ("servebench report my_study/00_vllm_unique --out page.html", "one run, to a file of your own"),
        ("servebench report last --as vllm", "the numbers by the definitions of 'vllm bench serve'"),
    ],
)
@stored_argument()
@click.option("--out", metavar="FILE", type=FILE, help="File to write (default: report.html in the run or study).")
@click.option("--as", "tool", type=OneOf(TOOLS), help="Print the numbers by this tool's definitions; write no page.")
@click.option("--open", "opened", is_flag=True, help="Show the page in your browser.")
@json_option
@rules_option
@varying_option
@doubtful_option
@outputs_option
def command(
    *,
    name: str,
    out: Path | None,
    tool: str | None,
    opened: bool,
    as_json: bool,
    rules_path: Path | None,
    varying: str | None,
    with_doubtful: bool,
    outputs: Path,
) -> int:
    """Write one self-contained HTML page about a run or study.

    With --as, print its numbers by the definitions of another tool instead; --json goes with it.
    """
    from servebench.analysis.recommendation.rules import load_rules
    from servebench.report.files import write_file
    from servebench.report.html.build import page_of
    from servebench.report.html.page import page
    from servebench.store.studies import find

    if tool is not None:
        return _print_as(tool, name, as_json=as_json, outputs=outputs)
    if as_json:
        raise click.UsageError("--json needs --as TOOL")
    found = find(name, outputs)
    rules = load_rules(rules_path)
    target = out or found.path / "report.html"
    write_file(target, page(page_of(found, rules, with_doubtful=with_doubtful, varying=varying)))
    click.echo(target)
    if opened:
        click.launch(str(target))
    return 0


def _print_as(tool: str, name: str, *, as_json: bool, outputs: Path) -> int:
    """Print a run as another tool would. Raises ConfigError, StoreError."""
    from servebench.measure.dialects import DIALECTS
    from servebench.report.terminal.as_tool import points_as_tool, print_as_tool, write_json
    from servebench.report.terminal.tables import console
    from servebench.store.studies import find, runs_of
    from servebench.util.errors import ConfigError

    dialect = DIALECTS[tool]
    points = points_as_tool(runs_of(find(name, outputs)), dialect)
    if not points:
        raise ConfigError(f"'{name}' has no successful requests to recompute from: all failed, or it was imported")
    if as_json:
        write_json(points, tool, dialect.notes)
    else:
        print_as_tool(points, dialect.title, dialect.notes, console())
    return 0
