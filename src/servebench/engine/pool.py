"""Keeps one engine running for as long as consecutive runs ask for the same one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servebench.contracts.engine import Engine, LaunchContext, Launcher, RunningEngine, StartPhase, StopReport
from servebench.contracts.progress import Progress
from servebench.contracts.settings import RunSettings
from servebench.engine.supervisor.ports import free_port
from servebench.engine.upkeep import resolved_settings
from servebench.registry.registry import Registry
from servebench.util.errors import EngineError
from servebench.util.redaction import redact_file
from servebench.util.units import NS_PER_S


@dataclass(frozen=True, kw_only=True)
class FirstStart:
    """A start that was stopped again, so that the next one is a warm restart."""

    started_ns: int
    phases: tuple[StartPhase, ...]
    stopped: StopReport


@dataclass(frozen=True, kw_only=True)
class Lease:
    """An engine that a run may use. `uses` counts the earlier runs on the same start: above 0 the cold start is theirs,
    and prompts must differ from theirs or a prefix cache would answer."""

    engine: Engine
    launcher: Launcher
    running: RunningEngine
    context: LaunchContext
    uses: int
    owner_log: Path
    resolved: Mapping[str, Any] | None = None
    """What the engine says of its settings."""
    first_start: FirstStart | None = None
    """With `engine.measure_restart`: the start before the one that is used, which `running` tells of."""


def launch_context(settings: RunSettings, cache_dir: Path, port_of: Callable[[str], int] = free_port) -> LaunchContext:
    """What the command depends on, with a free port (`port_of` a host) where none was asked for."""
    port = settings.engine.port or port_of(settings.engine.host)
    return LaunchContext(engine=settings.engine, model=settings.model, gpu=settings.gpu, port=port, cache_dir=cache_dir)


def same_engine(one: RunSettings, other: RunSettings) -> bool:
    """Whether two runs can share one start: everything that shapes the engine is equal, and sharing is allowed."""
    return (
        one.engine.reuse
        and one.engine == other.engine
        and one.launch == other.launch
        and one.model == other.model
        and one.gpu == other.gpu
    )


def clean_log(path: Path) -> None:
    """Take the secrets out of the log of an engine that is gone: many print their settings, keys included."""
    # a disk that is full or read-only has been told already, or will be
    with contextlib.suppress(OSError):
        redact_file(path)


class EngineKeeper:
    """Starts engines on demand and stops them when the next run needs another, or at the end."""

    def __init__(
        self, registry: Registry, display: Progress, cache_dir: Path, port_of: Callable[[str], int] = free_port
    ) -> None:
        """`port_of` gives a port of a host to an engine for which none is named."""
        self._port_of = port_of
        self._registry = registry
        self._display = display
        self._cache_dir = cache_dir
        self._held: tuple[RunSettings, Lease] | None = None

    def acquire(self, settings: RunSettings, *, log_path: Path) -> Lease:
        """The engine that these settings ask for: the one that runs, if it is the same and alive, else a new one.

        Raises EngineError or PreflightError; nothing runs then.
        """
        if self._held is not None:
            held, lease = self._held
            if same_engine(held, settings) and not lease.running.died():
                self._display.say(f"sharing the running {settings.engine.name} with the run before")
                lease = replace(lease, uses=lease.uses + 1)
                self._held = (held, lease)
                return lease
            self.stop()
        lease = self._start(settings, log_path)
        self._held = (settings, lease)
        return lease

    def _start(self, settings: RunSettings, log_path: Path) -> Lease:
        engine = self._registry.engine(settings.engine.name)
        launcher: Launcher = self._registry.launcher(settings.launch.name)
        context = launch_context(settings, self._cache_dir, self._port_of)
        if launcher.needs_executable:
            self._display.status(f"preparing {engine.name}")
            engine.prepare(context, self._display.say)
        self._display.status(f"waiting for {engine.name} to generate a first token")
        try:
            running = launcher.launch(engine, context, settings.launch, log_path=log_path, say=self._display.say)
        except BaseException:
            clean_log(log_path)
            raise
        self._tell_start(engine, "start", running)
        first = None
        if settings.engine.measure_restart and running.phases:
            first = self._stopped_again(engine, running)
            self._display.status(f"waiting for the warm restart of {engine.name}")
            running = launcher.launch(engine, context, settings.launch, log_path=log_path, say=self._display.say)
            self._tell_start(engine, "warm restart", running)
        return Lease(
            engine=engine,
            launcher=launcher,
            running=running,
            context=context,
            uses=0,
            owner_log=log_path,
            resolved=resolved_settings(engine, running),
            first_start=first,
        )

    def _tell_start(self, engine: Engine, what: str, running: RunningEngine) -> None:
        if running.phases:
            ended = [(phase.name, (phase.ended_ns - running.started_ns) / NS_PER_S) for phase in running.phases]
            steps = ", ".join(f"{name.replace('_', ' ')} {seconds:.2f}" for name, seconds in ended)
            self._display.say(f"{engine.name}: {what} took {ended[-1][1]:.1f} s ({steps})")

    def _stopped_again(self, engine: Engine, running: RunningEngine) -> FirstStart:
        """Stop an engine that has just started. Raises EngineError when it leaves something behind."""
        self._display.status(f"stopping {engine.name} for its warm restart")
        stopped = running.stop()
        if stopped.leftover:
            raise EngineError(f"{engine.name} cannot be restarted: it left {'; '.join(stopped.leftover)}")
        return FirstStart(started_ns=running.started_ns, phases=running.phases, stopped=stopped)

    def keep_for(self, settings: RunSettings | None) -> StopReport | None:
        """After a run: stop the engine unless the next run (None: there is none) asks for the same one."""
        if self._held is None or (settings is not None and same_engine(self._held[0], settings)):
            return None
        return self.stop()

    def stop(self) -> StopReport | None:
        """Stop what runs; None when nothing does."""
        if self._held is None:
            return None
        _, lease = self._held
        self._display.status(f"stopping {lease.engine.name}")
        report = lease.running.stop()
        self._held = None
        clean_log(lease.owner_log)
        return report
