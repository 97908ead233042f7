"""Ctrl-C, a closed terminal and SIGTERM all end a study the same way: once, in order, and only once."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns the first signal into a KeyboardInterrupt and swallows the rest, so that cleaning up is not cut short.

    Cleaning up is bounded by the deadlines of the rooms that do it.
    """

    def __init__(self) -> None:
        self.asked = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del number, frame
        if not self.asked:
            self.asked = True
            raise KeyboardInterrupt


def _let_be(number: signal.Signals) -> bool:
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN


def leave_stopping_to_the_parent() -> None:
    """For a process that ends when its parent does or says so: a terminal, or whoever ends a whole group, sends these
    signals to both, and the parent decides what they mean."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def interrupts(*, also: Sequence[signal.Signals] = ()) -> Iterator[Interrupts]:
    """While open, the stopping signals are handled, and these too. Outside the main thread nothing changes.

    A closed terminal is none of our business where somebody said so (nohup).
    """
    state = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return
    asked = [number for number in (*STOPPING, *also) if not _let_be(number)]
    before = {number: signal.signal(number, state.handle) for number in asked}
    try:
        yield state
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
