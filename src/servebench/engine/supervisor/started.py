"""An engine that was started, before and after it is ready."""

from dataclasses import dataclass
from pathlib import Path

from servebench.contracts.engine import Engine, LogHint, RunningEngine
from servebench.engine.supervisor.guarded_process import GuardedProcess
from servebench.engine.supervisor.logs import explain_failure

POLL_S = 0.05


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
    """An engine that was started. Its own output begins at byte `log_start` of `log`.

    It lives as long as all of its `processes` do, which are as many as its addresses and in the same order.
    """

    engine: Engine
    processes: tuple[EngineProcess, ...]
    log: Path
    log_start: int

    @property
    def ended(self) -> EngineProcess | None:
        """The first of its processes that has ended; null while all live. Costs a system call for each."""
        return next((one for one in self.processes if one.guarded.has_ended()), None)

    def explain_death(self, process: EngineProcess) -> tuple[str, LogHint | None]:
        """Return one line (the exit code, advice if the log allows any, the last log line), and the hint of the advice."""
        reason = f"{self.engine.name} died: {process.guarded.exit_description()}"
        return explain_failure(reason, self.log, self.engine.hints, since=self.log_start)
