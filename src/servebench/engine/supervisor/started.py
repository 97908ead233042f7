"""An engine that was started: whether it lives, and how it is stopped."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servebench.contracts.engine import Engine, LogHint, RunningEngine, StopReport
from servebench.engine.supervisor.guarded_process import GuardedProcess
from servebench.engine.supervisor.logs import explain_failure
from servebench.engine.supervisor.ports import port_problem
from servebench.util.signals import defer_stop_signals

POLL_S = 0.05
PORT_TIMEOUT_S = 1.0
"""A port becomes free when its process ends; if it is used after this time, another process has it."""
SETTLE_S = 5.0
"""The driver reclaims a process's memory only some time after its end."""
MARGIN_BYTES = 256 << 20
"""Changes of a GPU's memory up to this size are attributed to other processes."""


@dataclass(kw_only=True)
class StartedEngine(RunningEngine):
    """An engine that was started. Its own output begins at byte `log_start` of `log_path`.

    `port_is_ours`: whether the launcher reserved the port for it (a container's), so that its owner needs no check.
    """

    engine: Engine
    guarded: GuardedProcess
    host: str
    port: int
    port_is_ours: bool = False
    log_path: Path
    log_start: int
    image: str | None = None
    """The container image and its id, if it runs in a container."""
    remote: bool = False
    """Whether it runs on another machine, whose processes and ports cannot be seen from here."""
    gpu_bytes_before: tuple[int, ...] | None = None
    report: StopReport | None = None

    def explain_death(self) -> tuple[str, LogHint | None]:
        """Return one line (the exit code, advice if the log allows any, the last log line), and the hint of the advice."""
        reason = f"{self.engine.name} died: {self.guarded.exit_description()}"
        return explain_failure(reason, self.log_path, self.engine.hints, since=self.log_start)

    def died(self) -> str | None:
        """Return one line if the engine is gone, None while it is alive. Costs a system call."""
        return self.explain_death()[0] if self.guarded.has_ended() else None

    def stop(self) -> StopReport:
        """Stop the engine and check that no process, port or GPU memory is left.

        Ctrl-C is deferred until then: at most `engine.stop_timeout_s` and the 20 s that the guard and the port may need.
        """
        if self.report is None:
            with defer_stop_signals():
                self.report = self._stop()
        return self.report

    def _stop(self) -> StopReport:
        guarded, began_s = self.guarded, time.monotonic()
        alive = not guarded.has_ended()
        guarded.stop()
        return StopReport(
            stopped=not guarded.left,
            forced=alive and (bool(guarded.killed) or guarded.ended == f"signal {signal.SIGKILL:d}"),
            seconds=time.monotonic() - began_s,
            killed_pids=guarded.killed,
            leftover=self._leftover(),
        )

    def _leftover(self) -> tuple[str, ...]:
        if self.remote:
            return ()
        left = [f"process {pid}" for pid in self.guarded.left]
        deadline_s = time.monotonic() + PORT_TIMEOUT_S
        while (problem := port_problem(self.host, self.port)) is not None:
            if time.monotonic() > deadline_s:
                left.append(str(problem).partition(";")[0])
                break
            time.sleep(POLL_S)
        return (*left, *unreleased_memory(self.gpu_bytes_before))


def used_bytes() -> tuple[int, ...] | None:
    """Return the memory in use on each GPU, by any process; None without a driver or `nvidia-ml-py`."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - a broken driver must not prevent an engine's stop
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def unreleased_memory(before: Sequence[int] | None) -> tuple[str, ...]:
    """Wait for the driver, then return one line for each GPU that uses more memory than `before`; empty if none does."""
    if before is None:
        return ()
    deadline = time.monotonic() + SETTLE_S
    while lines := memory_increase(before, used_bytes()):
        if time.monotonic() > deadline:
            return lines
        time.sleep(POLL_S)
    return ()


def memory_increase(before: Sequence[int], after: Sequence[int] | None) -> tuple[str, ...]:
    """Return one line for each GPU on which `after` exceeds `before` by more than the margin. Pure."""
    return tuple(
        f"{(now - then) / 1e9:.1f} GB of memory on GPU {index}"
        for index, (then, now) in enumerate(zip(before, after or (), strict=False))
        if now - then > MARGIN_BYTES
    )
