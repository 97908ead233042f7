"""Defer Ctrl-C while an engine is being started or stopped, so that neither is left half done."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def defer_stop_signals() -> Iterator[None]:
    """Defer stop signals that have a Python handler until the block ends; each is then delivered once.

    Keep the block short or bounded. Outside the main thread this does nothing: handlers do not run there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        del frame
        if number not in received:
            received.append(number)

    previous = {number: handler for number in STOP_SIGNALS if callable(handler := signal.getsignal(number))}
    try:
        for number in previous:
            signal.signal(number, remember)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for late in received:
            signal.raise_signal(late)
