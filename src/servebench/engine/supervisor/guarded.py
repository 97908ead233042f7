"""An engine under its guard, as servebench sees it: whether it lives, and how it is ended."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from servebench.contracts.engine import Command
from servebench.engine.supervisor import guard
from servebench.util.errors import EngineError

START_TIMEOUT_S = 10.0
"""The guard reports in some 30 ms; a machine that swaps may need seconds."""

GUARD_MARGIN_S = 10.0
"""What the guard may take beyond the engine's own deadline, for its rounds of SIGKILL."""

EXIT_TIMEOUT_S = 5.0
ENDED = re.compile(r"(\w+ \d+) killed (\S+) left (\S+)")


class Guarded:
    """A started command. `pid` is the engine's and its group's; `ended` is null while it lives, then `exit CODE`,
    `signal NUMBER` or `unknown (why)`; `killed` and `left` are the pids that took a SIGKILL and that survived it."""

    def __init__(self, command: Command, log_path: Path, stop_timeout_s: float, finish: tuple[str, ...] = ()) -> None:
        """Start it; `finish` is run when it has ended, however that was.

        Raises EngineError when it cannot be started; a command that does not exist dies a moment later.
        """
        self.ended: str | None = None
        self.killed: tuple[int, ...] = ()
        self.left: tuple[int, ...] = ()
        self._said = ""
        self._stop_timeout_s = stop_timeout_s
        self._finish_s = guard.FINISH_S if finish else 0.0
        order_read, self._order = os.pipe()
        self._report, report_write = os.pipe()
        arguments = [str(order_read), str(report_write), str(log_path.absolute()), str(stop_timeout_s), *finish, "--"]
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            self.process = subprocess.Popen(
                # -P: the modules beside the guard have names of the standard library's
                [sys.executable, "-S", "-E", "-P", guard.__file__, *arguments, *command.argv],
                pass_fds=(order_read, report_write),
                env={**os.environ, **command.env},
                cwd=command.cwd,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            os.close(self._order)
            os.close(self._report)
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise EngineError(f"cannot start {command.argv[0]}: {reason}") from error
        finally:
            os.close(order_read)
            os.close(report_write)
        pid = self._line("pid", START_TIMEOUT_S)
        if pid is None:
            self.process.kill()
            self._close(f"unknown (its guard did not start within {START_TIMEOUT_S:g} s)")
            raise EngineError(
                f"cannot start {command.argv[0]}: {self.how()}; is this machine out of memory or swapping?"
            )
        self.pid = int(pid)

    def _line(self, word: str, timeout_s: float) -> str | None:
        """What the guard said after this word, waiting for it at most this long."""
        deadline = time.monotonic() + timeout_s
        sleeper = select.poll()
        sleeper.register(self._report, select.POLLIN)
        while True:
            found = re.search(rf"^{word} (.*)\n", self._said, re.MULTILINE)
            if found:
                return found.group(1)
            if not sleeper.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            part = os.read(self._report, 4096)
            if not part:
                return None
            self._said += part.decode()

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether the engine and all its descendants are gone. Waits for that at most `timeout_s`."""
        if self.ended is not None:
            return True
        line = self._line("ended", timeout_s)
        found = ENDED.fullmatch(line) if line is not None else None
        if found is not None:
            self.killed, self.left = (
                tuple(int(pid) for pid in pids.split(",")) if pids != "-" else () for pids in found.groups()[1:]
            )
            self._close(found.group(1))
        elif self.process.poll() is not None:
            self.killed = self._sweep()
            self._close(f"unknown (its guard ended with {self.process.returncode})")
        return self.ended is not None

    def _sweep(self) -> tuple[int, ...]:
        """SIGKILL what is left of the session of a guard that is gone: nobody else reaps it."""
        killed = []
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == self.process.pid and pid != self.process.pid:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
        return tuple(killed)

    def _close(self, ended: str) -> None:
        self.ended = ended
        try:
            self.process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._order)
        os.close(self._report)

    def stop(self) -> None:
        """Have the guard stop the engine; returns when it did, or when it is past all deadlines."""
        if self.has_ended():
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(self._order, b"t")
        if not self.has_ended(self._stop_timeout_s + guard.KILL_ROUNDS_S + self._finish_s + GUARD_MARGIN_S):
            self.process.kill()
            self.process.wait()
            self.killed = self._sweep()
            self._close("unknown (its guard was stuck)")

    def descendants(self) -> list[int]:
        """The pids of the engine and of all that it started; empty where /proc does not tell."""
        return guard.descendants(self.process.pid)

    def how(self) -> str:
        """How it ended, in words."""
        kind, _, rest = (self.ended or "").partition(" ")
        if kind == "signal":
            number = int(rest)
            known = number in set(signal.Signals)
            return f"it was killed by {signal.Signals(number).name if known else f'signal {number}'}"
        if kind == "exit":
            return f"it ended with exit code {rest}"
        return f"it ended: {self.ended}"
