"""The launcher `process`: an engine in a process group of its own, under a guard, with its output in a log file."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from servebench.contracts.engine import (
    Command,
    Engine,
    LaunchContext,
    Launcher,
    Phase,
    RunningEngine,
    Say,
    StopReport,
)
from servebench.contracts.settings import LaunchSettings
from servebench.engine import guard
from servebench.engine.answers import client, generate, reason_of, served_models
from servebench.engine.logs import PhaseTail, hint, tail
from servebench.engine.ports import accepts, listeners, owner, port_is_free
from servebench.errors import EngineError

POLL_S = 0.05
PROOF_TIMEOUT_S = 5.0
REFUSAL_S = 20.0
"""A healthy server that refuses to generate for this long will not change its mind; one that still loads may."""

GUARD_MARGIN_S = 10.0
"""What the guard may take beyond the engine's own deadline, for its rounds of SIGKILL."""


class Guarded:
    """An engine under its guard. Knows whether it lives, and ends it."""

    def __init__(self, command: Command, log_path: Path, stop_timeout_s: float) -> None:
        """Start it. Raises EngineError when even the guard cannot be started."""
        order_read, self._order = os.pipe()
        self._report, report_write = os.pipe()
        self._said = ""
        self._stop_timeout_s = stop_timeout_s
        self.ended: str | None = None
        self.killed: tuple[int, ...] = ()
        self.left: tuple[int, ...] = ()
        log_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-S", "-E", guard.__file__, str(order_read), str(report_write)),
                    *(str(log_path), str(stop_timeout_s), "--", *command.argv),
                ],
                pass_fds=(order_read, report_write),
                env={**os.environ, **command.env},
                cwd=command.cwd,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._order)
            os.close(self._report)
            raise EngineError(f"cannot start {command.argv[0]}: {(error.strerror or str(error)).lower()}") from error
        finally:
            os.close(order_read)
            os.close(report_write)
        self.pid = int(self._line("pid", 10.0) or -1)

    def _line(self, word: str, timeout_s: float) -> str | None:
        """What the guard said after this word, waiting for it at most this long."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = re.search(rf"^{word} (.*)\n", self._said, re.MULTILINE)
            if found:
                return found.group(1)
            ready, _, _ = select.select([self._report], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            part = os.read(self._report, 4096)
            if not part:
                return None
            self._said += part.decode()

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether the engine and all its descendants are gone, as the guard says."""
        if self.ended is not None:
            return True
        line = self._line("ended", timeout_s)
        if line is not None:
            found = re.fullmatch(r"(\w+ \d+) killed (\S+) left (\S+)", line)
            assert found is not None
            self.ended = found.group(1)
            self.killed, self.left = (
                tuple(int(pid) for pid in group.split(",")) if group != "-" else () for group in found.groups()[1:]
            )
            self._close()
        elif self.process.poll() is not None:
            self.ended = f"unknown (its guard ended with {self.process.returncode})"
            self._close()
        return self.ended is not None

    def _close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PROOF_TIMEOUT_S)
        os.close(self._order)
        os.close(self._report)

    def stop(self) -> None:
        """Have the guard stop the engine; returns when it did, or when it is past all deadlines."""
        if self.has_ended():
            return
        with contextlib.suppress(OSError):
            os.write(self._order, b"t")
        if not self.has_ended(self._stop_timeout_s + guard.KILL_ROUNDS_S + GUARD_MARGIN_S):
            # the guard itself is stuck: the engine dies with it (PDEATHSIG)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            self.ended = "unknown (its guard was stuck)"
            self._close()

    def how(self) -> str:
        """How it ended, in words."""
        kind, _, number = (self.ended or "").partition(" ")
        if kind == "signal":
            return f"it was killed by {signal.Signals(int(number)).name}"
        if kind == "exit":
            return f"it ended with exit code {number}"
        return f"it ended: {number or 'unknown'}"


@dataclass(kw_only=True)
class LaunchedEngine:
    """A RunningEngine that we started."""

    engine: Engine
    host: str
    port: int
    guarded: Guarded
    base_url: str
    root_url: str
    model: str
    pid: int | None
    command: Command | None
    log_path: Path | None
    version: str | None
    started_ns: int
    phases: tuple[Phase, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    verify_tls: bool = True
    report: StopReport | None = None

    def died(self) -> str | None:
        """One line once the engine is gone."""
        if not self.guarded.has_ended():
            return None
        return died_message(self.engine, self.guarded, self.log_path)

    def stop(self) -> StopReport:
        """Stop it, then prove that no process and no port is left."""
        if self.report is None:
            began = time.monotonic()
            ended_before = self.guarded.has_ended()
            self.guarded.stop()
            self.report = StopReport(
                stopped=True,
                forced=not ended_before and (bool(self.guarded.killed) or self.guarded.ended == f"signal {signal.SIGKILL:d}"),
                seconds=time.monotonic() - began,
                killed_pids=self.guarded.killed,
                leftover=self._leftover(),
            )
        return self.report

    def _leftover(self) -> tuple[str, ...]:
        left = [f"process {pid}" for pid in self.guarded.left]
        deadline = time.monotonic() + PROOF_TIMEOUT_S
        while not port_is_free(self.host, self.port):
            if time.monotonic() > deadline:
                left.append(f"port {self.host}:{self.port} is held{owner(self.port)}")
                break
            time.sleep(POLL_S)
        return tuple(left)


def died_message(engine: Engine, guarded: Guarded, log_path: Path | None) -> str:
    """One line: how it ended, what that means where the log tells, and its last words."""
    advice = hint(log_path, engine.hints) if log_path else None
    last = tail(log_path, 1) if log_path else ()
    parts = [f"{engine.name} died: {guarded.how()}"]
    if advice is not None:
        parts.append(advice.advice)
    if last:
        parts.append(f"its last words: {last[-1][:300]}")
    if log_path is not None:
        parts.append(f"its log is {log_path}")
    return "; ".join(parts)


class _Waiting:
    """Waits until a started engine truly serves."""

    def __init__(self, running: LaunchedEngine, timeout_s: float) -> None:
        self.running = running
        self.deadline = time.monotonic() + timeout_s
        self.timeout_s = timeout_s
        assert running.log_path is not None
        self.log = PhaseTail(running.log_path, running.engine.phases)
        self.phases: list[Phase] = [Phase(name="spawned", ended_ns=time.time_ns())]
        self.last = "nothing yet"

    def done(self, name: str) -> None:
        """A phase of ours ended now."""
        self.phases.append(Phase(name=name, ended_ns=time.time_ns()))

    def tick(self) -> None:
        """Between tries: read the log, see that it lives and that there is time. Raises EngineError."""
        self.phases += self.log.read()
        running = self.running
        if running.guarded.has_ended():
            found = hint(self.log.path, running.engine.hints)
            raise EngineError(
                died_message(running.engine, running.guarded, running.log_path),
                kind=found.kind if found else "died",
                log_tail=tail(self.log.path),
            )
        if time.monotonic() > self.deadline:
            last = tail(self.log.path, 1)
            raise EngineError(
                f"{running.engine.name} was not ready within {self.timeout_s:g} s (engine.ready_timeout_s): {self.last}"
                + (f"; the last line of its log: {last[-1][:300]}" if last else "")
                + f"; its log is {running.log_path}",
                kind="not_ready",
                log_tail=tail(self.log.path),
            )
        time.sleep(POLL_S)

    def until_listening(self) -> None:
        """Wait for somebody to accept connections, and for that somebody to be ours."""
        running = self.running
        self.last = f"nobody listens on {running.host}:{running.port}"
        while not accepts(running.host, running.port):
            self.tick()
        self.done("listening")
        pids = listeners(running.port)
        ours = set(guard.descendants(running.guarded.process.pid))
        if pids is not None and not pids & ours:
            raise EngineError(
                f"port {running.host}:{running.port} was taken{owner(running.port)} while {running.engine.name} started; "
                "choose another engine.port",
                kind="port_in_use",
            )

    def until_healthy(self, http: httpx.Client) -> None:
        """Wait for the health endpoint to say 200, where there is one."""
        path = self.running.engine.health_path
        if path is None:
            return
        while True:
            try:
                status = http.get(self.running.root_url + path).status_code
                if status == httpx.codes.OK:
                    break
                self.last = f"{path} answers {status}"
            except httpx.HTTPError as error:
                self.last = f"{path}: {reason_of(error)}"
            self.tick()
        self.done("healthy")

    def until_generating(self, http: httpx.Client) -> None:
        """Wait for a real token: a server may be healthy and still be loading."""
        running = self.running
        refused_since: float | None = None
        while True:
            left_s = max(1.0, self.deadline - time.monotonic())
            try:
                models = served_models(http, running.base_url)
                if models is not None and running.engine.dialect.model_checked and running.model not in models:
                    self.last = f"it serves {', '.join(models)}, not {running.model}"
                generate(http, running.base_url, running.engine, running.model, left_s)
                break
            except EngineError as error:
                self.last = str(error)
                refused_since = refused_since or time.monotonic()
                if time.monotonic() - refused_since > REFUSAL_S:
                    raise EngineError(
                        f"{running.engine.name} serves and yet generates nothing: {error}; its log is {running.log_path}",
                        kind="not_ready",
                        log_tail=tail(self.log.path),
                    ) from error
            except httpx.HTTPError as error:
                self.last = f"a first request: {reason_of(error)}"
            self.tick()
        self.done("first_token")

    def ended_phases(self) -> tuple[Phase, ...]:
        """All phases in the order in which they ended."""
        self.phases += self.log.read()
        return tuple(sorted(self.phases, key=lambda phase: phase.ended_ns))


class ProcessLauncher(Launcher):
    """Starts the engine's command on this machine."""

    name = "process"

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """An engine that nobody can start, and a port that is taken."""
        if not engine.launchable:
            return [f"engine={engine.name} cannot be started; measure a running server with launch=attach launch.base_url=..."]
        if context.engine.port and not port_is_free(context.engine.host, context.engine.port):
            return [
                f"port {context.engine.host}:{context.engine.port} (engine.port) is in use{owner(context.engine.port)}; "
                "choose another, or 0 for any free one"
            ]
        return []

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Start it and wait for a first token. Raises EngineError; nothing is left running then."""
        host, port = context.engine.host, context.port
        if not port_is_free(host, port):
            raise EngineError(f"port {host}:{port} is in use{owner(port)}; choose another engine.port", kind="port_in_use")
        command = engine.command(context)
        connect_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
        root_url = f"http://[{connect_host}]:{port}" if ":" in connect_host else f"http://{connect_host}:{port}"
        started_ns = time.time_ns()
        guarded = Guarded(command, log_path, context.engine.stop_timeout_s)
        running = LaunchedEngine(
            engine=engine,
            host=connect_host,
            port=port,
            guarded=guarded,
            base_url=f"{root_url}/v1",
            root_url=root_url,
            model=engine.served_model(context.model),
            pid=guarded.pid,
            command=command,
            log_path=log_path,
            version=None,
            started_ns=started_ns,
        )
        try:
            waiting = _Waiting(running, context.engine.ready_timeout_s)
            with client(()) as http:
                waiting.until_listening()
                waiting.until_healthy(http)
                waiting.until_generating(http)
            running.phases = waiting.ended_phases()
            running.version = engine.version(context)
        except BaseException:
            running.stop()
            raise
        return running
