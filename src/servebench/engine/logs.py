"""An engine's log: its last lines, the phases that it tells of, and what its failure means."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from servebench.contracts.engine import LogHint, Phase, PhaseMarker

TAIL_BYTES = 64_000
TAIL_LINES = 20


def tail(path: Path, lines: int = TAIL_LINES) -> tuple[str, ...]:
    """The last lines that say something; none when there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-lines:]


def hint(path: Path, hints: Sequence[LogHint]) -> LogHint | None:
    """The first hint whose pattern is found near the end of the log."""
    text = "\n".join(tail(path, lines=400))
    for candidate in hints:
        if re.search(candidate.pattern, text):
            return candidate
    return None


class PhaseTail:
    """Follows a growing log and stamps each marker when its line is first seen."""

    def __init__(self, path: Path, markers: Sequence[PhaseMarker]) -> None:
        self.path = path
        self._open = [(marker.phase, re.compile(marker.pattern)) for marker in markers]
        self._position = 0
        self._rest = ""
        self.phases: list[Phase] = []

    def read(self) -> list[Phase]:
        """The phases that ended since the last call, stamped now (CLOCK_REALTIME nanoseconds)."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except OSError:
            return []
        self._position += len(data)
        *lines, self._rest = (self._rest + data.decode(errors="replace")).split("\n")
        found = []
        for line in lines:
            for marker in [marker for marker in self._open if marker[1].search(line)]:
                self._open.remove(marker)
                found.append(Phase(name=marker[0], ended_ns=time.time_ns()))
        self.phases += found
        return found
