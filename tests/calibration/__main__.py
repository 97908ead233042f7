"""Measure how often the conclusions of servebench are right: `make calibrate`, or `PYTHONPATH=tests python -m calibration`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from calibration.cells import Line
from calibration.page import measured_text, page
from calibration.price import price_page
from calibration.run import calibrate, chosen_cells
from calibration.tuning import tune_page
from servebench.report.files import write_file
from servebench.util.errors import ServebenchError

REPETITIONS = 200


@click.command()
@click.option("--repetitions", metavar="N", type=click.IntRange(2), default=REPETITIONS, show_default=True,
              help="Repetitions of a cheap cell; costly cells make a stated part of them.")  # fmt: skip
@click.option("--seed", metavar="N", type=int, default=0, show_default=True, help="Seeds everything random.")
@click.option("--only", metavar="PROMISE", multiple=True, help="Only promises of this name (pattern); repeatable.")
@click.option("--cell", metavar="TEXT", default="", help="Only cells with this in their name, as `512 users`.")
@click.option(
    "--processes", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="Processes to use."
)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page here, after each cell, instead of to standard output.",
)
def main(*, repetitions: int, seed: int, only: tuple[str, ...], cell: str, processes: int, output: Path | None) -> int:
    """Measure how often the conclusions of servebench are right, on simulated engines whose truth is known.

    Nothing is started and no engine is needed. Promises: aa, answer, power5, power10, gate, recommend of comparisons;
    decided_aa, decided_equal, decided_found, decided_time of `study.until=decided`; coverage, width, until, open_loop,
    stationary, shift_found, drift_found of points; search_near, search_above, search_bracket; limit_named, limit_acted,
    limit_part of what limits an engine; tune, tune_gain, tune_aa, tune_parts of `servebench tune`. Two tables of their own:
    `--only tune_table` compares it with a grid and with successive halving; `--only price` has the engine time to a stated
    precision, of `load.until`, fixed numbers of requests and the rules of AIPerf and perf_analyzer. The exit code is 1 if a
    promise is broken beyond doubt.
    """
    if only in (("price",), ("tune_table",)):
        table = price_page if only == ("price",) else tune_page
        text = table(repetitions, seed, lambda line: click.echo(line, err=True))
        if output is None:
            click.echo(text, nl=False)
        else:
            write_file(output, text)
        return 0
    found: list[Line] = []

    def keep(lines: Sequence[Line]) -> None:
        _show(lines)
        found.extend(lines)
        if output is not None:
            # cells take minutes: a run that is stopped keeps those that have ended
            write_file(output, page(found, repetitions=repetitions, seed=seed, only=only, cell=cell))

    calibrate(chosen_cells(only, cell), repetitions=repetitions, seed=seed, processes=processes, progress=keep)
    if output is None:
        click.echo(page(found, repetitions=repetitions, seed=seed, only=only, cell=cell), nl=False)
    return 1 if any(line.verdict == "not met" for line in found) else 0


def _show(lines: Sequence[Line]) -> None:
    for line in lines:
        text = f"{line.promise.name}: {line.cell}: {measured_text(line)}, {line.trials} repetitions: {line.verdict}"
        click.echo(text, err=True)


if __name__ == "__main__":
    try:
        sys.exit(main(standalone_mode=False))
    except (ServebenchError, click.ClickException) as error:
        sys.exit(f"calibration: {error}")
