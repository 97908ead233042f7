"""An engine that was started, and its command under the guard: whether they live, and how they are stopped."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servebench.contracts.engine import Command, Engine, LogHint, RunningEngine, StopReport
from servebench.engine.supervisor import guard
from servebench.engine.supervisor.logs import explain_failure
from servebench.engine.supervisor.ports import port_problem
from servebench.util.children import HUB_TOKENS, command_environment
from servebench.util.errors import EngineError
from servebench.util.process_privacy import user_umask
from servebench.util.signals import defer_stop_signals

POLL_S = 0.05
PORT_TIMEOUT_S = 1.0
"""A port becomes free when its process ends; if it is used after this time, another process has it."""
SETTLE_S = 5.0
"""The driver reclaims a process's memory only some time after its end."""
MARGIN_BYTES = 256 << 20
"""Changes of a GPU's memory up to this size are attributed to other processes."""
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
        """Start the command; the guard runs `finish` after it ended for any reason. Raises EngineError if the guard cannot be
        started. A command that does not exist exits a moment later."""
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

    def stop(self, *, ready: bool = True) -> None:
        """Make the guard stop the command, soon if it is not `ready`; return when it is gone or all deadlines have passed."""
        if self.has_ended():
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(self._control, b"t" if ready else guard.UNREADY)
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


@dataclass(kw_only=True)
class StartedEngine(RunningEngine):
    """An engine that was started. Its own output begins at byte `log_start` of `log_path`. `port_is_ours`: whether the launcher
    reserved the port for it (a container's), so that its owner needs no check."""

    engine: Engine
    guarded: GuardedProcess
    host: str
    port: int
    port_is_ours: bool = False
    log_path: Path
    log_start: int
    image: str | None = None
    """The container image and its id, if it runs in a container."""
    remote: bool = False
    """Whether it runs on another machine, whose processes and ports cannot be seen from here."""
    gpu_bytes_before: tuple[int, ...] | None = None
    report: StopReport | None = None

    def explain_death(self) -> tuple[str, LogHint | None]:
        """Return one line (the exit code, advice if the log allows any, the last log line), and the hint of the advice."""
        reason = f"{self.engine.name} died: {self.guarded.exit_description()}"
        return explain_failure(reason, self.log_path, self.engine.hints, since=self.log_start)

    def died(self) -> str | None:
        """Return one line if the engine is gone, None while it is alive. Costs a system call."""
        return self.explain_death()[0] if self.guarded.has_ended() else None

    def stop(self, *, ready: bool = True) -> StopReport:
        """Stop the engine and check that no process, port or GPU memory is left. Ctrl-C is deferred until then: at most
        `engine.stop_timeout_s` (5 s for one that is not `ready`) and the 20 s that the guard and the port may need."""
        if self.report is None:
            with defer_stop_signals():
                self.report = self._stop(ready)
        return self.report

    def _stop(self, ready: bool) -> StopReport:
        guarded, began_s = self.guarded, time.monotonic()
        alive = not guarded.has_ended()
        guarded.stop(ready=ready)
        return StopReport(
            stopped=not guarded.left,
            forced=alive and (bool(guarded.killed) or guarded.ended == f"signal {signal.SIGKILL:d}"),
            seconds=time.monotonic() - began_s,
            killed_pids=guarded.killed,
            leftover=self._leftover(),
        )

    def _leftover(self) -> tuple[str, ...]:
        if self.remote:
            return ()
        left = [f"process {pid}" for pid in self.guarded.left]
        deadline_s = time.monotonic() + PORT_TIMEOUT_S
        while (problem := port_problem(self.host, self.port)) is not None:
            if time.monotonic() > deadline_s:
                left.append(str(problem).partition(";")[0])
                break
            time.sleep(POLL_S)
        return (*left, *unreleased_memory(self.gpu_bytes_before))


def used_bytes() -> tuple[int, ...] | None:
    """Return the memory in use on each GPU, by any process; None without a driver or `nvidia-ml-py`."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - a broken driver must not prevent an engine's stop
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def unreleased_memory(before: Sequence[int] | None) -> tuple[str, ...]:
    """Wait for the driver, then return one line for each GPU that uses more memory than `before`; empty if none does."""
    if before is None:
        return ()
    deadline = time.monotonic() + SETTLE_S
    while lines := memory_increase(before, used_bytes()):
        if time.monotonic() > deadline:
            return lines
        time.sleep(POLL_S)
    return ()


def memory_increase(before: Sequence[int], after: Sequence[int] | None) -> tuple[str, ...]:
    """Return one line for each GPU on which `after` exceeds `before` by more than the margin. Pure."""
    return tuple(
        f"{(now - then) / 1e9:.1f} GB of memory on GPU {index}"
        for index, (then, now) in enumerate(zip(before, after or (), strict=False))
        if now - then > MARGIN_BYTES
    )
