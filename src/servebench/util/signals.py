"""Ctrl-C, a closed terminal and SIGTERM end a study in the same way, and only once."""

import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def leave_stopping_to_the_parent() -> None:
    """Ignore the stopping signals in a process that its parent stops. A terminal sends these signals to both, as does a kill of
    the whole process group, and the parent decides what they mean."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def end_by_closing(process: subprocess.Popen[Any], within_s: float) -> None:
    """Close the pipes of a child, which ends by that, and wait for it; one that lives longer than `within_s` is killed."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        # only a kernel that hangs keeps it alive now
        with suppress(subprocess.TimeoutExpired):
            process.wait(within_s)


@contextmanager
def interrupts(*, also: Sequence[signal.Signals] = ()) -> Iterator[None]:
    """Turn the first stopping signal, or one of `also`, into a KeyboardInterrupt, and ignore all further ones.

    Ignoring them keeps the clean-up from being cut short; it is bounded by deadlines of its own. Outside the main thread
    nothing changes, and a closed terminal is ignored under nohup.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise KeyboardInterrupt

    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
    before = {number: signal.signal(number, interrupt) for number in {*STOPPING, *also} - ignored}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def defer_stop_signals() -> Iterator[None]:
    """Defer stop signals that have a Python handler until the block ends; each is then delivered once. Keep the block short or
    bounded. Outside the main thread this does nothing: handlers do not run there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        del frame
        if number not in received:
            received.append(number)

    previous = {number: handler for number in STOPPING if callable(handler := signal.getsignal(number))}
    try:
        for number in previous:
            signal.signal(number, remember)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for late in received:
            signal.raise_signal(late)
