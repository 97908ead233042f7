"""Standard input, output and error that may be closed, full or gone with their terminal."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from servebench.util.errors import StoreError, reason_of
from servebench.util.safe_text import clean_terminal

FIRST_OTHER = 3
"""The first descriptor after the three standard ones."""


class _WrappedStream:
    """A text stream with its own way to write; everything else is that of the stream it wraps.

    What it writes is cleaned for a terminal unless it is `rendered`: then its writer has done so, and adds colours. What cannot
    be written is dropped, or is an error if the stream is `checked`: StoreError when the system refuses, and BrokenPipeError
    when the reader has closed the pipe.
    """

    def __init__(self, file: TextIO, *, checked: bool, rendered: bool = False) -> None:
        self._file: TextIO = getattr(file, "_file", file)
        self._checked, self._rendered = checked, rendered

    def for_rendered(self) -> TextIO:
        """Return the same stream for text that is cleaned already."""
        return cast("TextIO", _WrappedStream(self._file, checked=self._checked, rendered=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def write(self, text: str) -> int:
        # click writes an empty text to find out what a stream takes, and ignores the error that a full disk gives
        if text != "":
            with self._handle_errors():
                self._file.write(text if self._rendered else clean_terminal(text))
        return len(text)

    def flush(self) -> None:
        with self._handle_errors():
            self._file.flush()

    def isatty(self) -> bool:
        try:
            return self._file.isatty()
        except ValueError:
            return False

    @contextmanager
    def _handle_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            if self._checked and isinstance(error, BrokenPipeError | ValueError):
                raise
            _redirect_to_null(self._file)
            if self._checked and isinstance(error, OSError):
                raise StoreError(f"cannot write to standard output: {reason_of(error)}") from error


def _redirect_to_null(file: TextIO) -> None:
    """Make further writes succeed: Python flushes again when it exits, and would complain and change the exit code. Only a
    standard descriptor is redirected: another one belongs to the code that replaced the stream."""
    with suppress(OSError, ValueError):
        if (descriptor := file.fileno()) < FIRST_OTHER:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)


def best_effort(file: TextIO) -> TextIO:
    """Return a stream that drops what cannot be written: a broken stderr must never abort a study. Raises nothing."""
    return cast("TextIO", _WrappedStream(file, checked=False))


def rendered(file: TextIO) -> TextIO:
    """Return a stream for text that its writer has cleaned: a console that adds colours and moves the cursor."""
    return file.for_rendered() if isinstance(file, _WrappedStream) else file


def prepare_streams() -> None:
    """Make stdin, stdout and stderr safe to use.

    Closed ones become the null device; otherwise the next file or socket would take their numbers and receive what is
    meant for them. Standard error drops what it cannot write; standard output raises StoreError.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < FIRST_OTHER:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8")
    for file in (sys.stdout, sys.stderr):
        if isinstance(file, io.TextIOWrapper):
            # a locale that is not UTF-8 has no lines of tables
            file.reconfigure(errors="replace")
    sys.stdout = cast("TextIO", _WrappedStream(sys.stdout, checked=True))
    sys.stderr = best_effort(sys.stderr)
