"""Keep one engine running for as long as consecutive runs need the same one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servebench.contracts.age import FRESH
from servebench.contracts.engine import Engine, LaunchContext, Launcher, RunningEngine, StopReport
from servebench.contracts.events import Doing, EngineReady, Events, Notice, Said
from servebench.contracts.settings import RunSettings
from servebench.engine.spans import PATH, SpanReceiver
from servebench.engine.supervisor.ports import free_port
from servebench.protocol.kinds.table import kind_named
from servebench.registry.registry import Registry
from servebench.util.errors import EngineError, FailureKind, reason_of
from servebench.util.file_redaction import clean_file, mark_unclean
from servebench.util.units import NS_PER_S

LOG_BUDGET_S = 20.0
"""How long the end of a run cleans a log; a larger one is left to `servebench recover`."""
SHAPING = ("engine", "launch", "model", "gpu")
"""The settings that an engine is started with."""
EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound


@dataclass(frozen=True, kw_only=True)
class EngineLease:
    """A running engine that a run may use. `uses` counts the earlier runs on the same start. Above 0 the cold start belongs to
    them, and prompts must differ from theirs, since a prefix cache would answer otherwise."""

    engine: Engine
    launcher: Launcher
    running: RunningEngine
    context: LaunchContext
    uses: int
    owner_log: Path
    resolved: Mapping[str, Any] | None = None
    """The engine's settings as the engine itself reports them."""
    spans: SpanReceiver | None = None
    """What receives the engine's spans, with `engine.request_timings=spans`."""


def launch_context(settings: RunSettings, cache_dir: Path, port_of: Callable[[str], int] = free_port) -> LaunchContext:
    """Return what the engine's command depends on. Without a configured port, `port_of(host)` chooses one."""
    port = settings.engine.port or port_of(settings.engine.host)
    endpoint = None
    if settings.engine.request_timings == "spans":
        host, spans_port = settings.engine.spans_listener
        reached = "127.0.0.1" if host in EVERY_ADDRESS else f"[{host}]" if ":" in host else host
        endpoint = f"http://{reached}:{spans_port or port_of(host)}{PATH}"
    path = settings.model.path
    return LaunchContext(
        engine=settings.engine,
        # engines expand no ~, which a config file may have
        model=replace(settings.model, path=path and os.path.expanduser(path)),  # noqa: PTH111 - never raises
        gpu=settings.gpu,
        port=port,
        cache_dir=cache_dir,
        spans_endpoint=endpoint,
        adapters=tuple(settings.workload.adapters or ()),
        body=settings.workload.body,
        api=settings.workload.api,
    )


def keeps_files(engine: Engine, context: LaunchContext) -> bool:
    """Return whether the engine writes its request timings to files."""
    return engine.timings_in_files and context.engine.request_timings == "after_load"


def make_kept_folder(context: LaunchContext) -> None:
    """Make the empty folder in which the engine keeps its request timings: with them it may write prompts, which are the user's
    own. What an engine left there that was killed with servebench is removed. Raises EngineError."""
    shutil.rmtree(context.kept_folder, ignore_errors=True)
    try:
        context.kept_folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise EngineError(
            f"{context.kept_folder} cannot be made: {reason_of(error)}; free or change its disk"
        ) from error


Found = Sequence[tuple[RunSettings, RunningEngine]]
"""The servers that were found before the study began, and for which settings."""


def same_server(one: RunSettings, other: RunSettings) -> bool:
    """Return whether two runs measure the same server in the same way."""
    return (one.engine.name, one.launch, one.model) == (other.engine.name, other.launch, other.model)


class EnginePool:
    """Start engines on demand; stop one when the next run needs another, or at the end."""

    def __init__(
        self,
        registry: Registry,
        events: Events,
        cache_dir: Path,
        port_of: Callable[[str], int] = free_port,
        found: Found = (),
    ) -> None:
        """`port_of(host)` chooses the port of an engine without a configured one. A server that was `found` is not asked again
        by the first run."""
        self._found = found
        self._port_of = port_of
        self._registry = registry
        self._events = events
        self._cache_dir = cache_dir
        self._current: tuple[RunSettings, EngineLease] | None = None
        self._logs: list[Path] = []
        self._without_timings: set[tuple[str, str | None]] = set()

    def another(self) -> EnginePool:
        """Return an empty pool of the same kind, for an engine that is alive at the same time."""
        return EnginePool(self._registry, self._events, self._cache_dir, self._port_of, self._found)

    def acquire(self, settings: RunSettings, *, log_path: Path) -> EngineLease:
        """Return the engine for these settings: the running one if it is the same and alive, else a new one. Raises EngineError
        or PreflightError; nothing is left running then."""
        if self._current is not None:
            current, lease = self._current
            if self._is_same(current, settings) and not lease.running.died():
                self._events(Notice("engine_reused", settings.engine.name))
                lease = replace(lease, uses=lease.uses + 1)
                self._current = (current, lease)
                return lease
            self.stop()
        lease = self._start(settings, log_path)
        self._current = (settings, lease)
        return lease

    def _is_same(self, one: RunSettings, other: RunSettings) -> bool:
        """Return whether two runs can share one start: reuse is allowed, and everything that shapes the engine is equal. An
        imitated engine serves the adapters of its first run only."""
        imitated = self._registry.kinds["launch"][one.launch.name].emulated
        generates, also = (kind_named(each.workload.api).answers_text for each in (one, other))
        shared = one.engine.reuse and one.engine.age != FRESH and generates == also
        shared = shared and not (imitated and one.workload.adapters != other.workload.adapters)
        return shared and all(getattr(one, part) == getattr(other, part) for part in SHAPING)

    def _start(self, settings: RunSettings, log_path: Path) -> EngineLease:
        engine = self._registry.engine(settings.engine.name)
        launcher: Launcher = self._registry.launcher(settings.launch.name)
        context = launch_context(settings, self._cache_dir, self._port_of)
        if launcher.needs_executable:
            self._events(Doing("preparing_engine", engine.name))
            engine.prepare(context, lambda text: self._events(Said(text)))
        self._events(Doing("first_token", engine.name))
        # a simulated engine has nothing to say but what servebench has written
        if not launcher.simulated:
            self._mark_unclean(log_path)
        with contextlib.ExitStack() as undo:
            spans = None
            if context.spans_endpoint is not None:
                spans = SpanReceiver(context.engine.spans_listener[0], urlsplit(context.spans_endpoint).port or 0)
                undo.callback(spans.close)
            if keeps_files(engine, context):
                undo.callback(shutil.rmtree, context.kept_folder, ignore_errors=True)
                make_kept_folder(context)
            context, running = self._launch(launcher, engine, context, settings, log_path)
            if running.phases:
                ended = [(phase.name, (phase.ended_ns - running.started_ns) / NS_PER_S) for phase in running.phases]
                self._events(EngineReady(engine.name, ended))
            undo.pop_all()
        resolved = None
        if not launcher.simulated:
            from servebench.engine.supervisor.endpoint import resolved_settings

            resolved = resolved_settings(engine, running)
        return EngineLease(
            engine=engine,
            launcher=launcher,
            running=running,
            context=context,
            uses=0,
            owner_log=log_path,
            resolved=resolved,
            spans=spans,
        )

    def _launch(
        self, launcher: Launcher, engine: Engine, context: LaunchContext, settings: RunSettings, log_path: Path
    ) -> tuple[LaunchContext, RunningEngine]:
        """Start an engine, and once more where another start can do better: without its flag for request timings if it
        rejects its flags, at another port if another process took the one that was chosen. Return the context of the start too.
        """

        def start(context: LaunchContext) -> RunningEngine:
            found, self._found = self._found, ()
            for known, server in found:
                if same_server(known, settings):
                    return server

            def say(text: str) -> None:
                self._events(Said(text, detail=True))

            return launcher.launch(engine, context, settings.launch, log_path=log_path, say=say)

        rejected = (engine.name, context.engine.executable)
        silent = replace(context, engine=replace(context.engine, request_timings=False))
        if rejected in self._without_timings:
            context = silent
        try:
            return context, start(context)
        except EngineError as error:
            if error.kind == FailureKind.UNKNOWN_FLAG and engine.timings_flag and context.engine.request_timings:
                # an older version; if it was another flag, the second start reports that
                self._events(Notice("flag_rejected", engine.name, engine.timings_flag))
                context = silent
            elif error.kind == FailureKind.PORT_IN_USE and not settings.engine.port:
                taken, context = context.port, replace(context, port=self._port_of(settings.engine.host))
                self._events(Notice("port_taken", engine.name, str(taken), str(context.port)))
            else:
                raise
        running = start(context)
        if context is silent:
            self._without_timings.add(rejected)
        return context, running

    def release(self, next_settings: RunSettings | None) -> StopReport | None:
        """End a run: stop the engine unless the next run (None: there is none) needs the same one."""
        if self._current is None or (next_settings is not None and self._is_same(self._current[0], next_settings)):
            return None
        return self.stop()

    def stop(self) -> StopReport | None:
        """Stop the running engine; return None if there is none."""
        if self._current is None:
            return None
        _, lease = self._current
        self._events(Doing("stopping_engine", lease.engine.name))
        report = lease.running.stop()
        self._current = None
        if lease.spans is not None:
            lease.spans.close()
        if keeps_files(lease.engine, lease.context):
            shutil.rmtree(lease.context.kept_folder, ignore_errors=True)
        return report

    def _mark_unclean(self, log_path: Path) -> None:
        try:
            mark_unclean(log_path)
        except OSError as error:
            raise EngineError(f"{log_path.parent} cannot be written: {reason_of(error)}") from error
        if log_path not in self._logs:
            self._logs.append(log_path)

    def clean_logs(self) -> None:
        """Remove secrets from the logs of stopped engines: many engines print their settings, keys included. What is not
        finished, because it takes too long, is interrupted or the disk is full, `servebench recover` finishes."""
        running = self._current[1].owner_log if self._current is not None else None
        for path in [path for path in self._logs if path != running]:
            self._logs.remove(path)
            self._events(Doing("cleaning_log", path.name))
            why = "interrupted"
            try:
                why = "" if clean_file(path, budget_s=LOG_BUDGET_S) else f"not done in {LOG_BUDGET_S:g} s"
            except OSError as error:
                why = reason_of(error)
            finally:
                if why:
                    self._events(Notice("secrets_left", str(path), why))
