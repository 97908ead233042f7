"""Decide when a started engine is ready, and wait for it.

An engine is ready when its port accepts connections, its health endpoint returns 200 (or does not exist) and a real request has
generated a token, in this order. `Readiness` makes the decision and does no I/O; `ReadinessWatcher` makes the observations.
"""

import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Literal

import httpx

from servebench.contracts.engine import Say, StartPhase
from servebench.engine.supervisor.endpoint import generate_token, http_error_reason, served_models
from servebench.engine.supervisor.logs import PhaseReader, explain_failure
from servebench.engine.supervisor.ports import accepts_connections, describe_owner, is_held_by
from servebench.engine.supervisor.started import POLL_S, StartedEngine
from servebench.util.bounded_http import client
from servebench.util.errors import EngineError, FailureKind

REFUSAL_S = 20.0
"""A server that rejects the first request for this long will not change its mind. A server that says that it is not ready
yet (503, say) is waited for until the deadline."""

Step = Literal["listening", "healthy", "first_token"]


class Readiness:
    """Decide from observations which step a started engine must pass next, and whether it has failed. Does no I/O."""

    def __init__(self, *, has_health: bool, deadline_s: float) -> None:
        """`deadline_s` is on the clock of the `now_s` of the other methods."""
        self._steps: list[Step] = (
            ["listening", "healthy", "first_token"] if has_health else ["listening", "first_token"]
        )
        self._deadline_s = deadline_s
        self._refusing_since_s: float | None = None
        self.problem = "its port accepts no connections"
        """Why the current step is not done yet."""

    @property
    def step(self) -> Step | None:
        """The step that the engine must pass next; null when it is ready."""
        return self._steps[0] if self._steps else None

    def step_passed(self) -> None:
        """The current step is done."""
        self._steps.pop(0)
        self._refusing_since_s = None
        self.problem = f"no answer yet ({self.step})"

    def step_failed(self, problem: str, now_s: float, answer: Literal["refused", "not_yet", "none"]) -> None:
        """An attempt at the current step failed. `answer` is what the server said: nothing, "not yet" or "no"."""
        self.problem = problem
        if answer == "not_yet":
            self._refusing_since_s = None
        elif answer == "refused" and self._refusing_since_s is None:
            self._refusing_since_s = now_s

    def failure(self, now_s: float) -> Literal["refusing", "late"] | None:
        """Return why the start has failed; None while the engine may still become ready."""
        if self._refusing_since_s is not None and now_s - self._refusing_since_s > REFUSAL_S:
            return "refusing"
        return "late" if self.step is not None and now_s > self._deadline_s else None


class ReadinessWatcher:
    """Observe a started engine until it is ready or has failed, and stamp the phases of its start."""

    def __init__(self, started: StartedEngine, timeout_s: float, say: Say, api: str = "chat") -> None:
        """`api` is the kind of request that the engine must answer."""
        self._started = started
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._readiness = Readiness(has_health=started.engine.health_path is not None, deadline_s=self._deadline_s)
        self._say = say
        self._api = api
        self._log = PhaseReader(started.log_path, started.engine.phases, since=started.log_start)
        self._phases = [StartPhase(name="spawned", ended_ns=time.time_ns())]
        self._refusal_kind = FailureKind.NOT_READY

    def wait(self) -> tuple[StartPhase, ...]:
        """Return the phases, in the order in which they ended. Raises EngineError if it dies or is not ready in time."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="readiness")
        try:
            with client(()) as http:
                while (step := self._readiness.step) is not None:
                    self._attempt(step, pool, http)
        finally:
            # a request that hangs ends with the engine, which the caller stops
            pool.shutdown(wait=False, cancel_futures=True)
        self._phases += self._log.read()
        return tuple(sorted(self._phases, key=lambda phase: phase.ended_ns))

    def _attempt(self, step: Step, pool: ThreadPoolExecutor, http: httpx.Client) -> None:
        try:
            ended_ns = self._listening() if step == "listening" else self._request(step, pool, http)
        except EngineError as error:
            self._refusal_kind = FailureKind.NOT_READY if error.kind == FailureKind.OTHER else error.kind
            answer: Literal["refused", "not_yet"] = "not_yet" if error.kind == FailureKind.NOT_READY else "refused"
            self._readiness.step_failed(str(error), time.monotonic(), answer)
        except httpx.HTTPError as error:
            self._readiness.step_failed(f"{step}: {http_error_reason(error)}", time.monotonic(), "none")
        else:
            if step == "listening":
                self._check_port_owner()
            self._phases.append(StartPhase(name=step, ended_ns=ended_ns))
            self._readiness.step_passed()
            return
        time.sleep(POLL_S)
        self._check()

    def _request(self, step: Step, pool: ThreadPoolExecutor, http: httpx.Client) -> int:
        """Run a request in a thread, so that a death or the deadline is noticed while it hangs."""
        result = pool.submit(self._healthy if step == "healthy" else self._first_token, http)
        while not wait([result], timeout=POLL_S).done:
            self._check()
        return result.result()

    def _check(self) -> None:
        """Read the log and raise EngineError if the start has failed."""
        self._phases += self._log.read()
        started, problem = self._started, self._readiness.problem
        # a death explains the rest
        if started.guarded.has_ended():
            message, hint = started.explain_death()
            raise EngineError(message, kind=hint.kind if hint else FailureKind.DIED)
        failure = self._readiness.failure(time.monotonic())
        if failure == "late":
            late = (
                f"{started.engine.name} was not ready within {self._timeout_s:g} s (engine.ready_timeout_s): {problem}"
            )
            message, _ = explain_failure(late, started.log_path, since=started.log_start)
            raise EngineError(message, kind=FailureKind.NOT_READY)
        if failure == "refusing":
            raise EngineError(
                f"{started.engine.name} is running but does not serve this load: {problem}; log: {started.log_path}",
                kind=self._refusal_kind,
            )

    def _check_port_owner(self) -> None:
        """Make sure that the engine itself listens. Raises EngineError if another process has its port."""
        one, name = self._started, self._started.engine.name
        ours = one.port_is_ours or is_held_by(one.guarded.descendants(), one.port)
        if ours is None:
            self._say(f"cannot see which process listens on port {one.port}; assuming that it is {name}")
        elif not ours:
            # if the engine just died because of this, its own message is better
            time.sleep(POLL_S)
            self._check()
            raise EngineError(
                f"engine.port={one.port}: {one.host}:{one.port} was taken{describe_owner(one.port)} "
                f"while {name} started; choose another engine.port",
                kind=FailureKind.PORT_IN_USE,
            )

    def _listening(self) -> int:
        """Return when the port accepted a connection. Raises EngineError if it does not."""
        one = self._started
        if not accepts_connections(one.host, one.port):
            raise EngineError(f"nothing listens on {one.host}:{one.port} (engine.port)", kind=FailureKind.NOT_READY)
        # on a busy machine polls come late, and what the log says by now came before
        self._phases += self._log.read()
        return time.time_ns()

    def _healthy(self, http: httpx.Client) -> int:
        path = self._started.engine.health_path
        status = http.get(f"{self._started.root_url}{path}").status_code
        if status == httpx.codes.NOT_FOUND:
            # a version without this path: it is healthy if it generates
            with suppress(EngineError):
                return self._first_token(http)
        if status != httpx.codes.OK:
            raise EngineError(f"{path} returned {status}", kind=FailureKind.NOT_READY)
        return time.time_ns()

    def _first_token(self, http: httpx.Client) -> int:
        """Return when a real request generated content. Raises EngineError if it does not."""
        started = self._started
        models = served_models(http, started.base_url)
        if models is not None and started.engine.dialect.model_checked and started.model not in models:
            raise EngineError(f"it serves {', '.join(models[:5])}, not {started.model}", kind=FailureKind.WRONG_MODEL)
        left_s = max(1.0, self._deadline_s - time.monotonic())
        generate_token(http, started.base_url, started.engine, started.model, left_s, api=self._api, own=True)
        return time.time_ns()
