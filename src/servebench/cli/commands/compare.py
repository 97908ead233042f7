"""`servebench compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from servebench.cli.command import (
    FILE,
    SHARE,
    define,
    doubtful_option,
    json_option,
    outputs_option,
    stored_argument,
    varying_option,
)
from servebench.cli.completion import complete_stored

if TYPE_CHECKING:
    from servebench.analysis.compare import Comparison

EXIT_REGRESSION = 1
EXIT_NOT_JUDGED = 7


@define(
    "compare",
    examples=[
        ("servebench compare last", "all runs of the latest study with its first"),
        ("servebench compare before after --max-regression 5%", "fail if 'after' is slower by more than 5%"),
        ("servebench compare my_study --baseline main/00_vllm_unique --markdown pr.md", "a comment for a pull request"),
    ],
)
@stored_argument(several=True)
@click.option("--baseline", metavar="RUN", shell_complete=complete_stored, help="Compare with this run or study.")
@click.option("--max-regression", metavar="5%", type=SHARE, help="Fail if a competing metric is worse by more.")
@click.option("--margin", metavar="5%", type=SHARE, help="Differences below this share do not matter.")
@varying_option()
@doubtful_option()
@click.option("--junit", metavar="FILE", type=FILE, help="Write the result of the gate as JUnit XML.")
@click.option("--markdown", metavar="FILE", type=FILE, help="Write the comparison as Markdown.")
@json_option()
@outputs_option()
def command(
    *,
    names: tuple[str, ...],
    baseline: str | None,
    max_regression: float | None,
    margin: float | None,
    varying: str | None,
    with_doubtful: bool,
    junit: Path | None,
    markdown: Path | None,
    as_json: bool,
    outputs: Path,
) -> int:
    """Compare runs with the first one or a baseline: which is faster, and how sure that is.

    With --max-regression the exit code is 0 if nothing is worse by more than that, 1 if something is, and 7 if nothing can be
    judged: unequal settings, no valid points, too little data.
    """
    from servebench.analysis.compare import MARGIN, compare, told
    from servebench.analysis.fairness import differences
    from servebench.analysis.gate import quality_regressions, speed_regressions
    from servebench.analysis.pairing import pair_runs
    from servebench.analysis.stored_runs import quality_agreements, quality_parities, side_of
    from servebench.report.terminal import verdicts
    from servebench.report.terminal.listing import console
    from servebench.store.studies import find

    pairs = pair_runs([find(name, outputs) for name in names], find(baseline, outputs) if baseline else None)
    sides = {run.run_id: side_of(run) for pair in pairs for run in pair}
    comparisons = compare(
        [(sides[a.run_id], sides[b.run_id], differences(a, b, varying)) for a, b in pairs],
        margin=margin or max_regression or MARGIN,
        with_doubtful=with_doubtful,
    )
    graded = [quality_agreements(a, b) for a, b in pairs]
    parities = [quality_parities(a, b) for a, b in pairs]
    slower = [] if max_regression is None else speed_regressions(comparisons, max_regression)
    failures = [f"{name}: {told(row)}" for name, row in slower]
    failures += [] if max_regression is None else quality_regressions(comparisons, graded, max_regression)
    if markdown:
        verdicts.write_page(markdown, verdicts.to_markdown(comparisons, failures, max_regression, graded, parities))
    if junit:
        verdicts.write_page(junit, verdicts.to_junit(comparisons, slower, max_regression, graded))
    if as_json:
        click.echo(verdicts.to_json(comparisons, graded, parities), nl=False)
    else:
        out = console()
        for one, answers, same in zip(comparisons, graded, parities, strict=True):
            verdicts.print_comparison(one, out)
            verdicts.print_agreements(answers, out)
            verdicts.print_parities(same, out)
    return 0 if max_regression is None else _gate_code(comparisons, failures, max_regression)


def _gate_code(comparisons: Sequence[Comparison], failures: Sequence[str], limit: float) -> int:
    """Print why the gate does not pass, and return the exit code."""
    from servebench.analysis.gate import unjudged

    for line in failures:
        click.echo(f"servebench: regression beyond {100 * limit:g}%: {line}", err=True)
    if failures:
        return EXIT_REGRESSION
    without_verdict = unjudged(comparisons)
    for one in without_verdict:
        click.echo(f"servebench: {one.candidate} cannot be judged: {one.summary}", err=True)
    return EXIT_NOT_JUDGED if without_verdict else 0
