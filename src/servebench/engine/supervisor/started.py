"""An engine that was started, before and after it is ready."""

from dataclasses import dataclass
from pathlib import Path

from servebench.contracts.engine import Engine, LogHint, RunningEngine
from servebench.engine.supervisor.guarded_process import GuardedProcess
from servebench.engine.supervisor.logs import explain_failure

POLL_S = 0.05


@dataclass(kw_only=True)
class StartedEngine(RunningEngine):
    """An engine that was started, and its addresses. Its own output begins at byte `log_start` of `log`."""

    engine: Engine
    guarded: GuardedProcess
    host: str
    port: int
    log: Path
    log_start: int
    port_is_ours: bool = False
    """Whether the launcher reserved the port for the engine (a container's), so that its owner needs no check."""

    def explain_death(self) -> tuple[str, LogHint | None]:
        """Return one line (the exit code, advice if the log allows any, the last log line), and the hint of the advice."""
        reason = f"{self.engine.name} died: {self.guarded.exit_description()}"
        return explain_failure(reason, self.log, self.engine.hints, since=self.log_start)
