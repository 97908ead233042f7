"""The launcher `process`: an engine in a process group of its own, under a guard, with its output in a log file."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from servebench.contracts.engine import (
    Command,
    Engine,
    LaunchContext,
    Launcher,
    RunningEngine,
    Say,
    StartPhase,
    StopReport,
)
from servebench.contracts.request import Tokenizer
from servebench.contracts.settings import LaunchSettings
from servebench.engine.supervisor.answers import version_of
from servebench.engine.supervisor.gpu_memory import kept, used_bytes
from servebench.engine.supervisor.guarded import Guarded
from servebench.engine.supervisor.logs import size_of
from servebench.engine.supervisor.ports import port_fault
from servebench.engine.supervisor.readiness import POLL_S, Readiness, Started, died_message
from servebench.engine.supervisor.shield import shielded
from servebench.util.bounded_http import client

PORT_TIMEOUT_S = 1.0
"""A port comes free with the end of its process; what still has it after this is somebody else's."""

ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the user's choice; we connect to this machine
"""Where to connect to a server that listens everywhere."""


@dataclass(kw_only=True)
class LaunchedEngine:
    """A RunningEngine that we started."""

    started: Started
    base_url: str
    root_url: str
    model: str
    pid: int | None
    command: Command | None
    log_path: Path | None
    version: str | None
    started_ns: int
    phases: tuple[StartPhase, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    verify_tls: bool = True
    image: str | None = None
    """The container image and its id, where it runs in one."""
    remote: bool = False
    """Whether it runs on another machine, whose processes and ports cannot be seen from here."""
    gpu_bytes_before: tuple[int, ...] | None = None
    report: StopReport | None = None
    tokenizer: Tokenizer | None = None
    """Where it is known how the server counts, without asking it."""

    def died(self) -> str | None:
        """One line once the engine is gone, null while it lives. One system call."""
        return died_message(self.started) if self.started.guarded.has_ended() else None

    def stop(self) -> StopReport:
        """Stop it, then prove that no process and no port is left. Ctrl-C waits until that is done; it takes no longer
        than `engine.stop_timeout_s` and the 20 s that the guard and the port may need."""
        if self.report is None:
            with shielded():
                self.report = self._stop()
        return self.report

    def _stop(self) -> StopReport:
        guarded = self.started.guarded
        began = time.monotonic()
        ended_before = guarded.has_ended()
        guarded.stop()
        return StopReport(
            stopped=not guarded.left,
            forced=not ended_before and (bool(guarded.killed) or guarded.ended == f"signal {signal.SIGKILL:d}"),
            seconds=time.monotonic() - began,
            killed_pids=guarded.killed,
            leftover=self._leftover(),
        )

    def _leftover(self) -> tuple[str, ...]:
        if self.remote:
            return ()
        left = [f"process {pid}" for pid in self.started.guarded.left]
        deadline = time.monotonic() + PORT_TIMEOUT_S
        while (fault := port_fault(self.started.host, self.started.port)) is not None:
            if time.monotonic() > deadline:
                left.append(str(fault).partition(";")[0])
                break
            time.sleep(POLL_S)
        return (*left, *kept(self.gpu_bytes_before))


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container instead of a plain process: the address at which it is reached, and the command that removes it."""

    host: str
    finish: tuple[str, ...]


def start(
    engine: Engine, context: LaunchContext, command: Command, log_path: Path, container: Container | None = None
) -> LaunchedEngine:
    """Start a command for an engine under its guard, and say where the engine will be. Raises EngineError."""
    host = container.host if container else ANY_HOST.get(context.engine.host, context.engine.host)
    root_url = f"http://[{host}]:{context.port}" if ":" in host else f"http://{host}:{context.port}"
    gpu_bytes_before = used_bytes()
    started_ns = time.time_ns()
    started = Started(
        engine=engine,
        log_start=size_of(log_path),
        guarded=Guarded(command, log_path, context.engine.stop_timeout_s, container.finish if container else ()),
        host=host,
        port=context.port,
        root_url=root_url,
        base_url=f"{root_url}/v1",
        model=engine.served_model(context.model),
        log_path=log_path,
        port_is_ours=container is not None,
    )
    return LaunchedEngine(
        started=started,
        base_url=started.base_url,
        root_url=started.root_url,
        model=started.model,
        pid=started.guarded.pid,
        command=command,
        log_path=log_path,
        version=None,
        started_ns=started_ns,
        gpu_bytes_before=gpu_bytes_before,
    )


def wait_until_ready(running: LaunchedEngine, context: LaunchContext, say: Say) -> None:
    """Wait for a first token; note the phases and what the server says of its version. Raises EngineError."""
    running.phases = Readiness(running.started, context.engine.ready_timeout_s, say).wait()
    with client(()) as http:
        running.version = version_of(http, running.root_url, running.started.engine)


class ProcessLauncher(Launcher):
    """Starts the engine's command on this machine."""

    name = "process"

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """An engine that nobody can start, and a port that is taken."""
        if not engine.launchable:
            return [
                f"engine={engine.name} cannot be started; measure a running server with launch=attach launch.base_url=..."
            ]
        fault = port_fault(context.engine.host, context.engine.port)
        return [str(fault)] if fault is not None else []

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Start it and wait for a first token. Raises EngineError; nothing is left running then."""
        fault = port_fault(context.engine.host, context.port)
        if fault is not None:
            raise fault
        running: LaunchedEngine | None = None
        try:
            # a Ctrl-C between the start and the assignment would leave an engine that nobody can stop
            with shielded():
                running = start(engine, context, engine.command(context), log_path)
            wait_until_ready(running, context, say)
            running.version = running.version or engine.version(context)
        except BaseException:
            if running is not None:
                running.stop()
            raise
        return running
