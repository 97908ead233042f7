"""The launcher `process`: run an engine in a process group of its own, under a guard, with its output in a log file."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from servebench.contracts.engine import Command, Engine, LaunchContext, Launcher, RunningEngine, Say
from servebench.contracts.settings import LaunchSettings
from servebench.engine.supervisor.logs import log_size
from servebench.engine.supervisor.ports import port_problem
from servebench.engine.supervisor.started import GuardedProcess, StartedEngine, used_bytes
from servebench.util.signals import defer_stop_signals

ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the user's choice; we connect to this machine
"""The address to connect to for a server that listens on all addresses."""


def start_and_wait(
    engine: Engine,
    context: LaunchContext,
    command: Command,
    *,
    log_path: Path,
    say: Say,
    when_ready: Callable[[StartedEngine], None],
    container_host: str | None = None,
    remote: bool = False,
    finish: tuple[str, ...] = (),
) -> StartedEngine:
    """Start an engine's command under its guard and wait for a first token; record its start phases and its version, then call
    `when_ready`. A container is reached at `container_host`, which may be `remote`; its processes are unknown, and the command
    `finish` removes it. Raises EngineError; nothing is left running then, nor after Ctrl-C."""
    from servebench.engine.supervisor.endpoint import version_of
    from servebench.engine.supervisor.readiness import ReadinessWatcher
    from servebench.util.bounded_http import client

    host = container_host or ANY_HOST.get(context.engine.host, context.engine.host)
    root_url = f"http://[{host}]:{context.port}" if ":" in host else f"http://{host}:{context.port}"
    running: StartedEngine | None = None
    try:
        # a Ctrl-C between the start and the assignment would leave an engine that nothing can stop
        with defer_stop_signals():
            gpu_bytes_before, started_ns, log_start = used_bytes(), time.time_ns(), log_size(log_path)
            guarded = GuardedProcess(command, log_path, context.engine.stop_timeout_s, finish)
            running = StartedEngine(
                engine=engine,
                guarded=guarded,
                host=host,
                port=context.port,
                port_is_ours=container_host is not None,
                base_urls=(f"{root_url}/v1",),
                model=engine.served_model(context.model),
                log_start=log_start,
                pids=() if container_host else (guarded.pid,),
                remote=remote,
                command=command,
                log_path=log_path,
                started_ns=started_ns,
                gpu_bytes_before=gpu_bytes_before,
            )
        running.phases = ReadinessWatcher(running, context.engine.ready_timeout_s, say, context.api).wait()
        with client(()) as http:
            running.version = version_of(http, running.root_url, running.engine)
        when_ready(running)
    except BaseException:
        if running is not None:
            running.stop(ready=bool(running.phases))
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
) -> StartedEngine:
    """Run a command on this machine and wait for a first token. `version` is called if the server reports none. Raises
    EngineError; nothing is left running then."""
    problem = port_problem(context.engine.host, context.port)
    if problem is not None:
        raise problem

    def set_version(running: StartedEngine) -> None:
        running.version = running.version or version()

    return start_and_wait(engine, context, command, log_path=log_path, say=say, when_ready=set_version)


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(LaunchSettings):
    """`pass_env` names variables of servebench's environment that the engine gets besides the usual ones."""

    pass_env: tuple[str, ...] = ()


class ProcessLauncher(Launcher):
    """Run the engine's command on this machine."""

    name = "process"
    settings_type: ClassVar[type[LaunchSettings]] = ProcessSettings

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """Report a port in use."""
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
