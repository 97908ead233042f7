"""Is a started engine ready? Not when it listens, not when it says that it is healthy: when it generates."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

from servebench.contracts.engine import Engine, Say, StartPhase
from servebench.engine.supervisor.answers import generate, reason_of, served_models
from servebench.engine.supervisor.guarded import Guarded
from servebench.engine.supervisor.logs import PhaseTail, hint, tail
from servebench.engine.supervisor.ports import accepts, held_by, owner
from servebench.util.bounded_http import client
from servebench.util.errors import EngineError

T = TypeVar("T")

POLL_S = 0.05
REFUSAL_S = 20.0
"""A healthy server that says for this long that a request is wrong will not change its mind. One that says that it is
not ready yet (503) is waited for until the deadline."""

QUOTE_CHARACTERS = 300


@dataclass(frozen=True, kw_only=True)
class Started:
    """An engine that was started, and where it is expected. `log_start` is where its own words begin in the log."""

    engine: Engine
    guarded: Guarded
    host: str
    port: int
    root_url: str
    base_url: str
    model: str
    log_path: Path
    log_start: int
    port_is_ours: bool = False
    """Whether the port was reserved for the engine by its launcher (a container's), so that who listens need not be seen."""


def died_message(started: Started) -> str:
    """One line: how it ended, what that means where the log tells, and its last words."""
    advice = hint(started.log_path, started.engine.hints, since=started.log_start)
    last = tail(started.log_path, 1, since=started.log_start)
    parts = [f"{started.engine.name} died: {started.guarded.how()}"]
    if advice is not None:
        parts.append(advice.advice)
    if last:
        parts.append(f"its last words: {last[-1][:QUOTE_CHARACTERS]}")
    return "; ".join([*parts, f"its log is {started.log_path}"])


class Readiness:
    """Waits until a started engine truly serves, and stamps the phases on the way."""

    def __init__(self, started: Started, timeout_s: float, say: Say) -> None:
        self._started = started
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._say = say
        self._log = PhaseTail(started.log_path, started.engine.phases, since=started.log_start)
        self._phases = [StartPhase(name="spawned", ended_ns=time.time_ns())]
        self._last = f"nobody listens on {started.host}:{started.port}"

    def wait(self) -> tuple[StartPhase, ...]:
        """The phases, in the order in which they ended. Raises EngineError when it dies or is not ready in time."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="readiness")
        try:
            with client(()) as http:
                self._until_listening()
                if self._started.engine.health_path is not None:
                    self._last = f"{self._started.engine.health_path} is not answered"
                    self._repeat("healthy", lambda: pool.submit(self._healthy, http))
                self._last = "a first request is not answered"
                self._repeat("first_token", lambda: pool.submit(self._generates, http))
        finally:
            # a request that hangs ends with the engine, which the caller stops
            pool.shutdown(wait=False, cancel_futures=True)
        self._phases += self._log.read()
        return tuple(sorted(self._phases, key=lambda phase: phase.ended_ns))

    def _look(self) -> None:
        """Read the log, see that it lives and that there is time. Raises EngineError."""
        self._phases += self._log.read()
        started = self._started
        if started.guarded.has_ended():
            found = hint(started.log_path, started.engine.hints, since=started.log_start)
            raise EngineError(died_message(started), kind=found.kind if found else "died", log_tail=self._tail())
        if time.monotonic() > self._deadline:
            last = self._tail()
            words = f"; the last line of its log: {last[-1][:QUOTE_CHARACTERS]}" if last else ""
            raise EngineError(
                f"{started.engine.name} was not ready within {self._timeout_s:g} s (engine.ready_timeout_s): "
                f"{self._last}{words}; its log is {started.log_path}",
                kind="not_ready",
                log_tail=last,
            )

    def _tail(self) -> tuple[str, ...]:
        return tail(self._started.log_path, since=self._started.log_start)

    def _until_listening(self) -> None:
        """Wait for somebody to accept connections, and for that somebody to be ours."""
        started = self._started
        self._look()
        while not accepts(started.host, started.port):
            time.sleep(POLL_S)
            self._look()
        ended_ns = time.time_ns()
        ours = started.port_is_ours or held_by(started.guarded.descendants(), started.port)
        if ours is None:
            self._say(
                f"this machine does not tell who listens on port {started.port}; taking it for {started.engine.name}"
            )
        elif not ours:
            # one that just gave up because of this has the better words
            time.sleep(POLL_S)
            self._look()
            raise EngineError(
                f"port {started.host}:{started.port} was taken{owner(started.port)} while {started.engine.name} started; "
                "choose another engine.port",
                kind="port_in_use",
                log_tail=self._tail(),
            )
        self._phases.append(StartPhase(name="listening", ended_ns=ended_ns))

    def _repeat(self, phase: str, ask: Callable[[], Future[int]]) -> None:
        """Ask until it is so. The asking goes on aside, so that a death or the deadline is seen while it hangs."""
        refused_at: float | None = None
        while True:
            answer = ask()
            while not wait([answer], timeout=POLL_S).done:
                self._look()
            try:
                self._phases.append(StartPhase(name=phase, ended_ns=answer.result()))
            except EngineError as error:
                self._last = str(error)
                refused_at = None if error.kind == "not_ready" else refused_at or time.monotonic()
                if refused_at is not None and time.monotonic() - refused_at > REFUSAL_S:
                    raise self._refusal(error) from error
            except httpx.HTTPError as error:
                self._last = f"{phase}: {reason_of(error)}"
            else:
                return
            time.sleep(POLL_S)
            self._look()

    def _refusal(self, error: EngineError) -> EngineError:
        name = self._started.engine.name
        return EngineError(
            f"{name} serves and yet generates nothing: {error}; its log is {self._started.log_path}",
            kind=error.kind if error.kind != "other" else "not_ready",
            log_tail=self._tail(),
        )

    def _healthy(self, http: httpx.Client) -> int:
        """When the health endpoint said 200. Raises EngineError for any other answer."""
        path = self._started.engine.health_path
        status = http.get(f"{self._started.root_url}{path}").status_code
        if status != httpx.codes.OK:
            raise EngineError(f"{path} answers {status}", kind="not_ready")
        return time.time_ns()

    def _generates(self, http: httpx.Client) -> int:
        """When it gave content. Raises EngineError when it does not."""
        started = self._started
        models = served_models(http, started.base_url)
        if models is not None and started.engine.dialect.model_checked and started.model not in models:
            raise EngineError(f"it serves {', '.join(models[:5])}, not {started.model}", kind="wrong_model")
        left_s = max(1.0, self._deadline - time.monotonic())
        generate(http, started.base_url, started.engine, started.model, left_s)
        return time.time_ns()
