"""The launcher `process`: run an engine in a process group of its own, under a guard, with its output in a log file."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from servebench.contracts.engine import Command, Engine, LaunchContext, Launcher, RunningEngine, Say, StopReport
from servebench.contracts.settings import LaunchSettings
from servebench.engine.supervisor.gpu_memory import unreleased_memory, used_bytes
from servebench.engine.supervisor.guarded_process import GuardedProcess
from servebench.engine.supervisor.logs import log_size
from servebench.engine.supervisor.ports import port_problem
from servebench.engine.supervisor.started import POLL_S, EngineProcess, StartedEngine
from servebench.util.signals import defer_stop_signals

PORT_TIMEOUT_S = 1.0
"""A port becomes free when its process ends; if it is used after this time, another process has it."""

ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the user's choice; we connect to this machine
"""The address to connect to for a server that listens on all addresses."""


@dataclass(kw_only=True)
class LaunchedEngine(StartedEngine):
    """A RunningEngine that servebench started."""

    image: str | None = None
    """The container image and its id, if it runs in a container."""
    remote: bool = False
    """Whether it runs on another machine, whose processes and ports cannot be seen from here."""
    gpu_bytes_before: tuple[int, ...] | None = None
    report: StopReport | None = None

    def died(self) -> str | None:
        """Return one line if the engine is gone, None while it is alive. Costs a system call for each process."""
        ended = self.ended
        return None if ended is None else self.explain_death(ended)[0]

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


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container instead of a plain process: the host at which it is reached, and the command that removes it."""

    host: str
    finish: tuple[str, ...]


def start(
    engine: Engine, context: LaunchContext, command: Command, log_path: Path, container: Container | None = None
) -> LaunchedEngine:
    """Start an engine's command under its guard, without waiting until it is ready. Raises EngineError."""
    host = container.host if container else ANY_HOST.get(context.engine.host, context.engine.host)
    root_url = f"http://[{host}]:{context.port}" if ":" in host else f"http://{host}:{context.port}"
    gpu_bytes_before = used_bytes()
    started_ns = time.time_ns()
    log_start = log_size(log_path)
    finish = container.finish if container else ()
    guarded = GuardedProcess(command, log_path, context.engine.stop_timeout_s, finish)
    return LaunchedEngine(
        engine=engine,
        processes=(EngineProcess(guarded=guarded, host=host, port=context.port, port_is_ours=container is not None),),
        base_urls=(f"{root_url}/v1",),
        model=engine.served_model(context.model),
        log=log_path,
        log_start=log_start,
        pids=(guarded.pid,),
        command=command,
        log_path=log_path,
        started_ns=started_ns,
        gpu_bytes_before=gpu_bytes_before,
    )


def start_and_wait(
    start_engine: Callable[[], LaunchedEngine],
    context: LaunchContext,
    say: Say,
    when_ready: Callable[[LaunchedEngine], None],
) -> LaunchedEngine:
    """Start an engine and wait for a first token; record its start phases and its version, then call `when_ready`.

    Raises EngineError; nothing is left running then, nor after Ctrl-C.
    """
    from servebench.engine.supervisor.probe import version_of
    from servebench.engine.supervisor.readiness import ReadinessWatcher
    from servebench.util.bounded_http import client

    running: LaunchedEngine | None = None
    try:
        # a Ctrl-C between the start and the assignment would leave an engine that nothing can stop
        with defer_stop_signals():
            running = start_engine()
        running.phases = ReadinessWatcher(running, context.engine.ready_timeout_s, say).wait()
        with client(()) as http:
            running.version = version_of(http, running.root_url, running.engine)
        when_ready(running)
    except BaseException:
        if running is not None:
            running.stop()
        raise
    return running


def launch_command(
    engine: Engine,
    context: LaunchContext,
    command: Command,
    *,
    log_path: Path,
    say: Say,
    version: Callable[[], str | None],
) -> LaunchedEngine:
    """Run a command on this machine and wait for a first token. `version` is called if the server reports none.

    Raises EngineError; nothing is left running then.
    """
    problem = port_problem(context.engine.host, context.port)
    if problem is not None:
        raise problem

    def set_version(running: LaunchedEngine) -> None:
        running.version = running.version or version()

    return start_and_wait(lambda: start(engine, context, command, log_path), context, say, set_version)


def unlaunchable(engine: Engine) -> list[str]:
    """Return an error line if the engine is an endpoint that cannot be started."""
    if engine.launchable:
        return []
    return [f"engine={engine.name} cannot be started; measure a running server with launch=attach launch.base_url=..."]


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(LaunchSettings):
    """`pass_env` names variables of servebench's environment that the engine gets besides the usual ones."""

    pass_env: tuple[str, ...] = ()


class ProcessLauncher(Launcher):
    """Run the engine's command on this machine."""

    name = "process"
    settings_type = ProcessSettings

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """Report an engine that cannot be started, or a port in use."""
        if not engine.launchable:
            return unlaunchable(engine)
        problem = port_problem(context.engine.host, context.engine.port)
        return [str(problem)] if problem is not None else []

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Start the engine and wait for a first token. Raises EngineError; nothing is left running then."""
        command = replace(engine.command(context), pass_env=getattr(settings, "pass_env", ()))
        return launch_command(
            engine, context, command, log_path=log_path, say=say, version=lambda: engine.version(context)
        )
