"""A command running under the guard: whether it is alive, and how to stop it."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from servebench.contracts.engine import Command
from servebench.engine.supervisor import guard
from servebench.util.children import HUB_TOKENS, command_environment
from servebench.util.errors import EngineError
from servebench.util.process_privacy import user_umask

START_TIMEOUT_S = 60.0
"""The guard reports in about 30 ms; a machine that is busy or swaps may need many seconds."""

GUARD_MARGIN_S = 10.0
"""How much longer than the engine's own deadline the guard may take, for its rounds of SIGKILL."""

EXIT_TIMEOUT_S = 30.0
ENDED = re.compile(r"(\w+ \d+) killed (\S+) left (\S+)")


class GuardedProcess:
    """A command that was started under a guard.

    `pid` is the command's pid and its process group. `ended` is null while it lives, then `exit CODE`, `signal NUMBER` or
    `unknown (why)`. `killed` and `left` are the pids that received a SIGKILL and those that survived it.
    """

    def __init__(self, command: Command, log_path: Path, stop_timeout_s: float, finish: tuple[str, ...] = ()) -> None:
        """Start the command; the guard runs `finish` after it ended for any reason.

        Raises EngineError if the guard cannot be started. A command that does not exist exits a moment later.
        """
        self.ended: str | None = None
        self.killed: tuple[int, ...] = ()
        self.left: tuple[int, ...] = ()
        self._reported = ""
        self._stop_timeout_s = stop_timeout_s
        self._finish_s = guard.FINISH_S if finish else 0.0
        control_read, self._control = os.pipe()
        self._report, report_write = os.pipe()
        arguments = [str(control_read), str(report_write), str(log_path.absolute()), str(stop_timeout_s), *finish, "--"]
        try:
            log_path.parent.mkdir(exist_ok=True)
            log_path.touch()
            self.process = subprocess.Popen(
                # -P: modules in the guard's folder must not shadow the standard library
                [sys.executable, "-S", "-E", "-P", guard.__file__, *arguments, *command.argv],
                pass_fds=(control_read, report_write),
                env=command_environment(command.argv, command.env, *HUB_TOKENS, *command.pass_env),
                cwd=command.cwd,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                umask=user_umask(),
            )
        except (OSError, ValueError) as error:
            os.close(self._control)
            os.close(self._report)
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise EngineError(f"cannot start {command.argv[0]}: {reason}") from error
        finally:
            os.close(control_read)
            os.close(report_write)
        pid = self._wait_for_report("pid", START_TIMEOUT_S)
        if pid is None:
            self.process.kill()
            self._close(f"unknown (its guard did not start within {START_TIMEOUT_S:g} s)")
            raise EngineError(
                f"cannot start {command.argv[0]}: {self.exit_description()}; is this machine out of memory or swapping?"
            )
        self.pid = int(pid)

    def _wait_for_report(self, keyword: str, timeout_s: float) -> str | None:
        """Wait for the guard's line that starts with this keyword and return the rest of it; None if it does not come."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        while True:
            match = re.search(rf"^{keyword} (.*)\n", self._reported, re.MULTILINE)
            if match:
                return match.group(1)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            data = os.read(self._report, 4096)
            if not data:
                return None
            self._reported += data.decode()

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Return whether the command and all its descendants are gone, waiting for that up to `timeout_s`."""
        if self.ended is not None:
            return True
        line = self._wait_for_report("ended", timeout_s)
        match = ENDED.fullmatch(line) if line is not None else None
        if match is not None:
            self.killed, self.left = (
                tuple(int(pid) for pid in pids.split(",")) if pids != "-" else () for pids in match.groups()[1:]
            )
            self._close(match.group(1))
        elif self.process.poll() is not None:
            self.killed = self._kill_session()
            self._close(f"unknown (its guard exited with code {self.process.returncode})")
        return self.ended is not None

    def _kill_session(self) -> tuple[int, ...]:
        """Kill what is left of the session of a guard that is gone, and return the pids."""
        import psutil

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
        os.close(self._control)
        os.close(self._report)

    def stop(self) -> None:
        """Make the guard stop the command; return when it is gone or all deadlines have passed."""
        if self.has_ended():
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(self._control, b"t")
        if not self.has_ended(self._stop_timeout_s + guard.KILL_ROUNDS_S + self._finish_s + GUARD_MARGIN_S):
            self.process.kill()
            self.process.wait()
            self.killed = self._kill_session()
            self._close("unknown (its guard did not respond)")

    def descendants(self) -> list[int]:
        """Return the pids of the command and of everything it started; empty without /proc."""
        return guard.descendants(self.process.pid)

    def exit_description(self) -> str:
        """Describe how the command ended, such as `exit code 1` or `killed by SIGKILL`."""
        kind, _, value = (self.ended or "").partition(" ")
        if kind == "signal":
            number = int(value)
            known = number in set(signal.Signals)
            return f"killed by {signal.Signals(number).name if known else f'signal {number}'}"
        if kind == "exit":
            return f"exit code {value}" + ("; a server must stay in the foreground" if value == "0" else "")
        return self.ended or "still running"
