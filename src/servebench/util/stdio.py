"""Standard input, output and error that may be closed, full or gone with their terminal."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO, cast

from servebench.util.errors import StoreError

FIRST_OTHER = 3
"""The first descriptor that is none of the standard three."""


class _Wrapped:
    """A text stream of which only what writes is our own."""

    def __init__(self, file: TextIO) -> None:
        self._file: TextIO = getattr(file, "_file", file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def write(self, text: str) -> int:
        raise NotImplementedError

    def isatty(self) -> bool:
        try:
            return self._file.isatty()
        except ValueError:
            return False


class _BestEffort(_Wrapped):
    """Writes for as long as that works. Nothing that cannot be told any more may end what it tells of."""

    def write(self, text: str) -> int:
        try:
            return self._file.write(text)
        except (OSError, ValueError):
            _to_nowhere(self._file)
            return len(text)

    def flush(self) -> None:
        try:
            self._file.flush()
        except (OSError, ValueError):
            _to_nowhere(self._file)


class _Told(_Wrapped):
    """Raises StoreError, one line, for what the system says against writing; a reader that has enough is BrokenPipeError."""

    def write(self, text: str) -> int:
        try:
            return self._file.write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._refused(error) from error

    def flush(self) -> None:
        try:
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> StoreError:
        _to_nowhere(self._file)
        return StoreError(f"cannot write to standard output: {(error.strerror or str(error)).lower()}")


def _to_nowhere(file: TextIO) -> None:
    """Python tries once more when it ends, complains, and changes the exit code: from now on that succeeds."""
    try:
        own = file.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, own)
        os.close(nowhere)
    except (OSError, ValueError):
        return


def best_effort(file: TextIO) -> TextIO:
    """A stream that drops what cannot be written. Raises nothing."""
    return cast("TextIO", _BestEffort(file))


def prepare_streams() -> None:
    """Make the standard streams such as a command can rely on.

    Closed ones become the null device: a file or socket would take their numbers otherwise, and get what is meant for
    them. Standard error drops what it cannot write; standard output that is full is told in one line.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < FIRST_OTHER:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8")
    sys.stdout = cast("TextIO", _Told(sys.stdout))
    sys.stderr = best_effort(sys.stderr)
