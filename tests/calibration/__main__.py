"""Measure how often the conclusions of servebench are right: `make calibrate`, or `PYTHONPATH=tests python -m calibration`."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import click

from calibration.cells import CalibrationCell, Line
from calibration.page import CalibrationPart, measured_text, page, read_parts, rows_csv
from calibration.price import price_page
from calibration.run import calibrate, chosen_cells
from calibration.steady import steady_page
from calibration.tuning import tune_page
from servebench.store.files import write_file
from servebench.util.errors import ServebenchError

ROOT = Path(__file__).parents[2]
CODE = ("src", "tests", "conf", "plugins")
REPETITIONS = 200
Table = Callable[[int, int, Callable[[str], None]], str]


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
    help="The page, such as docs/calibration.md: parts are stored in a folder of its name, rows in a CSV beside it.",
)
def main(*, repetitions: int, seed: int, only: tuple[str, ...], cell: str, processes: int, output: Path | None) -> int:
    """Measure how often the conclusions of servebench are right, on simulated engines whose truth is known.

    Nothing is started and no engine is needed. Promises: aa, answer, chance, power5, power10, gate, recommend of comparisons;
    decided_aa, decided_equal, decided_found, decided_time of `study.until=decided`; coverage, width, until, open_loop,
    stationary, shift_found, drift_found of points; slices_coverage, slices_width, slices_aa, slices_power10, slices_decided_aa,
    slices_decided_equal, slices_decided_soon, slices_decided_found of engines that take turns; gate_aa, gate_loss,
    gate_faster of the gate's rule; search_near, search_above, search_bracket; limit_named, limit_acted, limit_part of what
    limits an engine; tune, tune_gain, tune_again, tune_aa, tune_parts of `servebench tune`.
    Three tables of their own:
    `--only tune_table` compares it with a grid and with successive halving; `--only price` has the engine time to a stated
    precision, of `load.until`, fixed numbers of requests and the rules of AIPerf and perf_analyzer; `--only steady` compares
    `not_stationary` with the detector of MLPerf Endpoints. The exit code is 1 if a promise is broken beyond doubt.
    """
    if only in (("price",), ("tune_table",), ("steady",)):
        steady = partial(steady_page, cell=cell)
        tables: dict[str, Table] = {"price": price_page, "tune_table": tune_page, "steady": steady}
        text = tables[only[0]](repetitions, seed, lambda line: click.echo(line, err=True))
        if output is None:
            click.echo(text, nl=False)
        else:
            write_file(output, text)
        return 0
    commit, broken = _commit(), False
    folder = None if output is None or cell else output.with_suffix("")
    stored = {part.name: part for part in read_parts(folder)} if folder is not None else {}
    groups: dict[str, list[CalibrationCell]] = {}
    for one in chosen_cells(only, cell):
        groups.setdefault(one.promises[0].name, []).append(one)
    measured = []
    for name, cells in groups.items():
        part = CalibrationPart(
            name=name,
            commit=commit,
            date=f"{date.today()}",
            seed=seed,
            repetitions=repetitions,
            lines=(),
            complete=False,
        )
        if (known := stored.get(name)) is not None and replace(known, lines=(), date=part.date) == replace(
            part, complete=True
        ):
            click.echo(f"{name}: stored with this commit, seed and number of repetitions", err=True)
            measured.append(known)
            continue
        found: list[Line] = []

        def keep(lines: Sequence[Line], part: CalibrationPart = part, found: list[Line] = found) -> None:
            _show(lines)
            found.extend(lines)
            if folder is not None:
                # cells take minutes: a run that is stopped keeps those that have ended
                replace(part, lines=tuple(found)).write(folder)

        calibrate(cells, repetitions=repetitions, seed=seed, processes=processes, progress=keep)
        measured.append(replace(part, lines=tuple(found), complete=True))
        broken = broken or any(line.verdict == "not met" for line in found)
        if folder is not None:
            measured[-1].write(folder)
    if output is None or folder is None:
        click.echo(page(measured) + "\n" + rows_csv(measured), nl=False)
    else:
        parts = read_parts(folder)
        write_file(output, page(parts, output.with_suffix(".csv").name))
        write_file(output.with_suffix(".csv"), rows_csv(parts))
    return 1 if broken else 0


def _commit() -> str:
    """Return the commit of this checkout, with a + where its code differs (parts are stored in its docs); unknown without git."""
    git = ["git", "-C", str(ROOT)]
    try:
        found = subprocess.run([*git, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", *CODE], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip() + "+" * bool(changed.stdout)


def _show(lines: Sequence[Line]) -> None:
    for line in lines:
        text = f"{line.promise.name}: {line.cell}: {measured_text(line)}, {line.trials} repetitions: {line.verdict}"
        click.echo(text, err=True)


if __name__ == "__main__":
    try:
        sys.exit(main(standalone_mode=False))
    except (ServebenchError, click.ClickException) as error:
        sys.exit(f"calibration: {error}")
