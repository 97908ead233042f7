"""Remove secrets from files that other programs write: the logs of engines.

A marker file next to such a file says that it may contain secrets. It is created before the first byte and removed when the
file is clean, so that a later process can finish the work of a killed one. It has a trace of each known secret (its length
and a salted hash), by which a later process finds the secret in the file without knowing it.
"""

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from servebench.util.bounded_file import STATE_BYTES_MAX, parse_json, read_bytes
from servebench.util.redaction import known_secrets, redact_text, remember
from servebench.util.secret_patterns import find_secrets

PIECE = 1 << 20
"""How many characters of a line are searched at once: a log may have a line without end."""
OVERLAP = 1 << 16
"""How many characters at the end of a piece are searched again with the next one."""
HASHES = 1 << 64
TRACES_MAX = 1000
UNCLEAN = ".unclean"

Traces = dict[str, Any]
"""A document: `base`, the salt, and `traces`, a length and a hash each."""


def mark_of(path: Path) -> Path:
    """Return the marker of a file, which exists until the file is clean."""
    return path.with_name(f".{path.name}{UNCLEAN}")


def is_clean(path: Path) -> bool:
    """Return whether a file is clean: it has no marker."""
    return not mark_of(path).exists()


def unclean_files(folder: Path) -> list[Path]:
    """Return the files with a mark in the folders of a folder, by name."""
    marks = sorted(folder.glob(f"*/.*{UNCLEAN}"))
    return [mark.with_name(mark.name.removeprefix(".").removesuffix(UNCLEAN)) for mark in marks]


def mark_unclean(path: Path) -> None:
    """Mark a file that another program is about to write. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(mark_of(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as mark:
        # a file that is written by several starts has the traces of all
        mark.write(json.dumps(traces_of(known_secrets())) + "\n")
        mark.flush()
        os.fsync(mark.fileno())


def clean_file(path: Path, *, budget_s: float | None = None) -> bool:
    """Remove the secrets from a text file, then its marker. A file without secrets is not rewritten. Return False, and change
    nothing, if that takes longer than the budget. Raises OSError."""
    deadline = None if budget_s is None else time.monotonic() + budget_s
    mark = mark_of(path)
    if path.is_file():
        if mark.exists():
            for line in read_bytes(mark, STATE_BYTES_MAX).splitlines():
                with path.open("rb") as file, contextlib.suppress(ValueError):
                    remember_traced(file, parse_json(line), deadline)
        if not _redact_file(path, deadline):
            return False
    mark.unlink(missing_ok=True)
    return True


def _redact_file(path: Path, deadline: float | None) -> bool:
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    found = False
    # of processes that were killed
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        left.unlink(missing_ok=True)
    try:
        with (
            path.open(encoding="utf-8", errors="surrogateescape", newline="") as lines,
            beside.open("w", encoding="utf-8", errors="surrogateescape", newline="") as copy,
        ):
            for clean, changed in _redacted(lines):
                if _is_over(deadline):
                    return False
                found = found or changed
                copy.write(clean)
            copy.flush()
            os.fsync(copy.fileno())
        if found:
            beside.replace(path)
        return True
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def redact_copy(path: Path, copy: TextIO) -> None:
    """Write a text file without secrets to another. Raises OSError."""
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        for clean, _ in _redacted(lines):
            copy.write(clean)


def _redacted(lines: TextIO) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a text without its secrets, and whether they had any. A piece is a line, or a part of a long one that
    cuts no secret in two."""
    known = known_secrets()
    rest = ""
    while line := lines.readline(PIECE):
        text = rest + line
        end = len(text) if len(line) < PIECE or line.endswith(("\n", "\r")) else _cut(text, known)
        clean = redact_text(text[:end], known)
        yield clean, clean != text[:end]
        rest = text[end:]
    if rest:
        clean = redact_text(rest, known)
        yield clean, clean != rest


def _cut(text: str, known: Sequence[str]) -> int:
    """Return where the beginning of a line that goes on can be cut: before what may be the beginning of a secret."""
    cut = len(text) - OVERLAP
    found = find_secrets(text, known)
    # one may begin within another
    for _, end, begin in sorted(found, key=lambda one: one[2], reverse=True):
        if begin < cut < end:
            cut = begin
    return cut if cut > 0 else len(text)


def traces_of(values: Sequence[str]) -> Traces:
    """Return what finds these texts without containing them: the length and a hash of each."""
    base = secrets.randbits(64) | 1
    coded = {value.encode("utf-8", "surrogateescape") for value in values}
    return {"base": base, "traces": sorted([len(value), _hash(value, base)] for value in coded)}


def _hash(value: bytes, base: int) -> int:
    result = 0
    for byte in reversed(value):
        result = (result * base + byte + 1) % HASHES
    return result


def remember_traced(file: BinaryIO, traces: object, deadline: float | None = None) -> bool:
    """Remember as secrets what matches these traces in a file, until the deadline; return whether anything does."""
    wanted, base = _wanted(traces)
    longest = max((length for length, _ in wanted), default=0)
    found: set[bytes] = set()
    rest = b""
    while wanted and (data := file.read(PIECE)) and not _is_over(deadline):
        found |= _traced(rest + data, wanted, base)
        rest = (rest + data)[-longest:]
    remember(*(one.decode("utf-8", "surrogateescape") for one in found))
    return bool(found)


def _wanted(traces: object) -> tuple[list[tuple[int, int]], int]:
    """Return lengths and hashes, and their base; no lengths for an invalid document."""
    try:
        document: Any = traces
        pairs = [(int(length), int(hashed) % HASHES) for length, hashed in document["traces"][:TRACES_MAX]]
        return [(length, hashed) for length, hashed in pairs if 0 < length <= PIECE], int(document["base"]) % HASHES
    except (TypeError, ValueError, KeyError, OverflowError):
        return [], 1


def _traced(data: bytes, wanted: Sequence[tuple[int, int]], base: int) -> set[bytes]:
    """Return the texts in the data that have these lengths and hashes. The hash of a window is a difference of two sums, divided
    by the power at its place."""
    import numpy as np

    codes = np.frombuffer(data, dtype=np.uint8).astype(np.uint64) + np.uint64(1)
    powers = np.cumprod(np.concatenate([np.ones(1, np.uint64), np.full(len(data), base, np.uint64)]))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(codes * powers[:-1])])
    found: set[bytes] = set()
    for length, hashed in wanted:
        windows = sums[length:] - sums[:-length]
        places = np.flatnonzero(windows == powers[: len(windows)] * np.uint64(hashed))
        found |= {data[place : place + length] for place in places.tolist()}
    return found


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline
