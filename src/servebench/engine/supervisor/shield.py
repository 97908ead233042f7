"""Holds back Ctrl-C while something must be done whole: starting an engine, or stopping it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

HELD_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """While open, a stopping signal that has a Python handler waits; it is delivered, once, at the end.

    Only short or bounded work belongs inside. Outside the main thread nothing changes: handlers do not run there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        del frame
        if number not in came:
            came.append(number)

    before = {number: handler for number in HELD_BACK if callable(handler := signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, keep)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)
