"""Runs the cells, in several processes, and writes the page of their results."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from itertools import chain, repeat
from multiprocessing import get_context

from calibration import chance, comparisons, decisions, gate, limits, slices, tuning, windows
from calibration.cells import CalibrationCell, Line, Outcome, lines_of, repetitions_of
from servebench.util.errors import ConfigError

CELLS_AHEAD = 4
"""Cells that wait for their turn, so that no process is idle at the end of one."""

Progress = Callable[[Sequence[Line]], None]
"""Called after each cell with its lines."""


def all_cells() -> list[CalibrationCell]:
    """Return the cells of all promises."""
    return list(
        chain.from_iterable(
            part.cells() for part in (comparisons, decisions, windows, limits, tuning, slices, gate, chance)
        )
    )


def chosen_cells(patterns: Sequence[str], named: str = "") -> list[CalibrationCell]:
    """Return the cells of the parts in which a promise has a name that matches one of the patterns, and whose own name contains
    `named`; all without patterns.

    Raises ConfigError for a pattern that matches none, and for a name that no cell has.
    """
    cells = all_cells()
    names = list(dict.fromkeys(promise.name for cell in cells for promise in cell.promises))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"--only {pattern} matches no promise; available: {', '.join(names)}")
    # cells are stored by their first promise, all of them at once
    parts = {cell.promises[0].name for cell in cells if not patterns or _matches(cell, patterns)}
    chosen = [cell for cell in cells if cell.promises[0].name in parts]
    found = [cell for cell in chosen if named in cell.name]
    if not found:
        names = [*dict.fromkeys(cell.name.partition(",")[0] for cell in chosen)]
        raise ConfigError(f"--cell {named} is in no name of a cell; they begin with: {'; '.join(names)}")
    return found


def _matches(cell: CalibrationCell, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(promise.name, pattern) for promise in cell.promises for pattern in patterns)


def calibrate(
    cells: Iterable[CalibrationCell],
    *,
    repetitions: int,
    seed: int,
    processes: int = 1,
    progress: Progress | None = None,
) -> list[Line]:
    """Return the lines of all cells. The same cells, repetitions and seed give the same lines, however many `processes`."""
    found: list[Line] = []
    for cell, outcomes in _outcomes(list(cells), repetitions, seed, processes):
        lines = lines_of(cell, outcomes)
        found += lines
        if progress is not None:
            progress(lines)
    return found


def _outcomes(
    cells: Sequence[CalibrationCell], repetitions: int, seed: int, processes: int
) -> Iterator[tuple[CalibrationCell, list[Outcome]]]:
    if processes == 1:
        for cell in cells:
            truth = cell.truth() if cell.truth is not None else None
            yield cell, [cell.trial(one, truth) for one in _seeds(cell, repetitions, seed)]
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        pending: deque[tuple[CalibrationCell, Iterator[Outcome]]] = deque()
        for cell in cells:
            # found here while the processes work on the cells before
            truth = cell.truth() if cell.truth is not None else None
            pending.append((cell, pool.map(cell.trial, _seeds(cell, repetitions, seed), repeat(truth))))
            if len(pending) > CELLS_AHEAD:
                earlier, outcomes = pending.popleft()
                yield earlier, list(outcomes)
        for earlier, outcomes in pending:
            yield earlier, list(outcomes)


def _seeds(cell: CalibrationCell, repetitions: int, seed: int) -> list[int]:
    """Return the seed of each repetition: the cells are independent of each other."""
    rng = random.Random(f"{seed}/{cell.promises[0].name}/{cell.name}")
    return [rng.randrange(1 << 31) for _ in range(repetitions_of(cell, repetitions))]
