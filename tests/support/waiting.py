"""Wait for a condition instead of for a time. The limits only catch hangs: no machine is so slow as to reach them."""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import psutil

Seen = TypeVar("Seen")

LIMIT_S = 300.0


def wait_until(
    condition: Callable[[], Seen], *, process: subprocess.Popen[Any] | None = None, limit_s: float = LIMIT_S
) -> Seen:
    """Return the first true value of `condition`. Fails when `process` ends before that, or after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not (seen := condition()):
        if process is not None and process.poll() is not None:
            said = process.stderr.read() if process.stderr else ""
            raise AssertionError(f"the process exited with {process.returncode} before the condition held: {said!r}")
        assert time.monotonic() < deadline, f"the condition did not hold within {limit_s:g} s"
        time.sleep(0.01)
    return seen


def words_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty if it has ended meanwhile."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def has_ended(pid: int) -> bool:
    """Whether a process is gone or a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_ended(*pids: int, limit_s: float = LIMIT_S) -> None:
    wait_until(lambda: all(has_ended(pid) for pid in pids), limit_s=limit_s)


def caught(pid: int, condition: Callable[[], Seen]) -> Seen | None:
    """Stop a process if `condition` holds, and return what that gave, if it still holds then: until the process is continued or
    killed nothing can end meanwhile. Else let it go on and return None."""
    if condition():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.suspend()
            if seen := condition():
                return seen
            process.resume()
    return None
