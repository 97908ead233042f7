"""An engine's log: its last lines, the phases that it tells of, and what its failure means."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from servebench.contracts.engine import LogHint, PhaseMarker, StartPhase

TAIL_BYTES = 64_000
TAIL_LINES = 20
HINT_LINES = 400


def size_of(path: Path) -> int:
    """How long the log is now, in bytes; 0 when there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def tail(path: Path, lines: int = TAIL_LINES, *, since: int = 0) -> tuple[str, ...]:
    """The last lines that say something, of what stands after byte `since`; none when there is no log."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(since, size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-lines:]


def hint(path: Path, hints: Sequence[LogHint], *, since: int = 0) -> LogHint | None:
    """The first hint whose pattern is found near the end of the log, after byte `since`."""
    text = "\n".join(tail(path, HINT_LINES, since=since))
    for candidate in hints:
        if re.search(candidate.pattern, text):
            return candidate
    return None


class PhaseTail:
    """Follows a growing log from byte `since` and stamps each marker when its line is first seen.

    A log may hold the words of an earlier start; they tell nothing of this one.
    """

    def __init__(self, path: Path, markers: Sequence[PhaseMarker], *, since: int = 0) -> None:
        self.path = path
        self._open = [(marker.phase, re.compile(marker.pattern)) for marker in markers]
        self._position = since
        self._rest = b""

    def read(self) -> list[StartPhase]:
        """The phases that ended since the last call, stamped now (CLOCK_REALTIME nanoseconds)."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except OSError:
            return []
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            text = line.decode(errors="replace")
            for marker in [marker for marker in self._open if marker[1].search(text)]:
                self._open.remove(marker)
                found.append(StartPhase(name=marker[0], ended_ns=time.time_ns()))
        return found
