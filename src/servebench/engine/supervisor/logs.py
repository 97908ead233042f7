"""Read an engine's log: its last lines, the start phases it reports, and hints about a failure."""

import re
import time
from collections.abc import Sequence
from pathlib import Path

from servebench.contracts.engine import LogHint, PhaseMarker, StartPhase
from servebench.util.bounded_file import open_regular
from servebench.util.redaction import redact_text

TAIL_BYTES = 64_000
TAIL_LINES = 20
HINT_LINES = 400
QUOTE_CHARACTERS = 300
READ_BYTES_MAX = 8 << 20
"""What is read of a log at once; the rest is read the next time."""
LINE_BYTES_MAX = 4096
"""What is searched of a line: markers are near its beginning, and a line may have no end."""
EXCEPTION = re.compile(r"(?:^|[\s\])])((?:\w+\.)*\w*(?:Error|Exception): (?!.*\babove\b).+)")
"""The last line of a traceback, unless it refers to a cause above it."""


def log_size(path: Path) -> int:
    """Return the size of the log in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def last_lines(path: Path, lines: int = TAIL_LINES, *, since: int = 0) -> tuple[str, ...]:
    """Return the last non-blank lines written after byte `since`; none if the log cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(max(since, size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-lines:]


def explain_failure(
    reason: str, log: Path, hints: Sequence[LogHint] = (), *, since: int = 0
) -> tuple[str, LogHint | None]:
    """Return one line (the reason, the advice of the hint, the last exception or else the last line of the log, its path), and
    the first hint that matches near the end of the log, after byte `since`."""
    lines = [line[:LINE_BYTES_MAX] for line in last_lines(log, HINT_LINES, since=since)]
    text = "\n".join(lines)
    hint = next((hint for hint in hints if re.search(hint.pattern, text)), None)
    parts = [reason, *([hint.advice] if hint else [])]
    raised = next((found[1] for line in reversed(lines) if (found := EXCEPTION.search(line))), None)
    quotes = [f"in its log: {raised}"] if raised else [f"last log line: {line}" for line in lines[-1:]]
    parts += [redact_text(quote)[:QUOTE_CHARACTERS] for quote in quotes]
    return "; ".join([*parts, f"log: {log}"]), hint


class PhaseReader:
    """Follow a growing log and stamp each phase marker when its line first appears. Reading begins at byte `since`, because a log
    may still hold the output of an earlier start."""

    def __init__(self, path: Path, markers: Sequence[PhaseMarker], *, since: int = 0) -> None:
        self.path = path
        self._pending = [(marker.phase, re.compile(marker.pattern, re.MULTILINE)) for marker in markers]
        self._position = since
        self._partial_line = b""

    def read(self) -> list[StartPhase]:
        """Return the phases that ended since the last call, stamped with the current time (CLOCK_REALTIME, ns)."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                data = file.read(READ_BYTES_MAX)
        except OSError:
            return []
        self._position += len(data)
        *lines, last = (self._partial_line + data).split(b"\n")
        self._partial_line = last[:LINE_BYTES_MAX]
        text = b"\n".join([line[:LINE_BYTES_MAX] for line in lines]).decode(errors="replace")
        found = [(match.start(), marker) for marker in self._pending if (match := marker[1].search(text))]
        self._pending = [marker for marker in self._pending if marker not in {one for _, one in found}]
        now_ns = time.time_ns()
        return [StartPhase(name=phase, ended_ns=now_ns) for _, (phase, _) in sorted(found, key=lambda one: one[0])]
