"""An engine that was started: whether it lives, and how it is stopped."""

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from servebench.contracts.engine import Engine, LogHint, RunningEngine, StopReport
from servebench.engine.supervisor.gpu_memory import unreleased_memory
from servebench.engine.supervisor.guarded_process import GuardedProcess
from servebench.engine.supervisor.logs import explain_failure
from servebench.engine.supervisor.ports import port_problem
from servebench.util.signals import defer_stop_signals

POLL_S = 0.05
PORT_TIMEOUT_S = 1.0
"""A port becomes free when its process ends; if it is used after this time, another process has it."""


@dataclass(frozen=True, kw_only=True)
class EngineProcess:
    """A process of an engine under its guard, and where it listens.

    `port_is_ours`: whether the launcher reserved the port for it (a container's), so that its owner needs no check.
    """

    guarded: GuardedProcess
    host: str
    port: int
    port_is_ours: bool = False


@dataclass(kw_only=True)
class StartedEngine(RunningEngine):
    """An engine that was started. Its own output begins at byte `log_start` of `log_path`.

    It lives as long as all of its `processes` do, which are as many as its addresses and in the same order.
    """

    engine: Engine
    processes: tuple[EngineProcess, ...]
    log_path: Path
    log_start: int
    image: str | None = None
    """The container image and its id, if it runs in a container."""
    remote: bool = False
    """Whether it runs on another machine, whose processes and ports cannot be seen from here."""
    gpu_bytes_before: tuple[int, ...] | None = None
    report: StopReport | None = None

    @property
    def ended(self) -> EngineProcess | None:
        """The first of its processes that has ended; null while all live. Costs a system call for each."""
        return next((one for one in self.processes if one.guarded.has_ended()), None)

    def explain_death(self, process: EngineProcess) -> tuple[str, LogHint | None]:
        """Return one line (the exit code, advice if the log allows any, the last log line), and the hint of the advice."""
        reason = f"{self.engine.name} died: {process.guarded.exit_description()}"
        return explain_failure(reason, self.log_path, self.engine.hints, since=self.log_start)

    def died(self) -> str | None:
        """Return one line if the engine is gone, None while it is alive. Costs a system call for each process."""
        return None if (ended := self.ended) is None else self.explain_death(ended)[0]

    def stop(self) -> StopReport:
        """Stop the engine and check that no process, port or GPU memory is left.

        Ctrl-C is deferred until then: at most `engine.stop_timeout_s` and the 20 s that the guard and the port may need.
        """
        if self.report is None:
            with defer_stop_signals():
                self.report = self._stop()
        return self.report

    def _stop(self) -> StopReport:
        guards = [one.guarded for one in self.processes]
        began_s = time.monotonic()
        alive = [guarded for guarded in guards if not guarded.has_ended()]
        for guarded in guards:
            guarded.stop()
        return StopReport(
            stopped=not any(guarded.left for guarded in guards),
            forced=any(guarded.killed or guarded.ended == f"signal {signal.SIGKILL:d}" for guarded in alive),
            seconds=time.monotonic() - began_s,
            killed_pids=tuple(pid for guarded in guards for pid in guarded.killed),
            leftover=self._leftover(),
        )

    def _leftover(self) -> tuple[str, ...]:
        if self.remote:
            return ()
        left = [f"process {pid}" for one in self.processes for pid in one.guarded.left]
        deadline_s = time.monotonic() + PORT_TIMEOUT_S
        for one in self.processes:
            while (problem := port_problem(one.host, one.port)) is not None:
                if time.monotonic() > deadline_s:
                    left.append(str(problem).partition(";")[0])
                    break
                time.sleep(POLL_S)
        return (*left, *unreleased_memory(self.gpu_bytes_before))
