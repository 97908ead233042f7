"""The launcher `simulated`: no server at all. The load client and the emulated engine are computed on a virtual clock.

The launcher only describes the engine and names its start; `run.simulated` computes what a client would have measured.
"""

import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from servebench.contracts.emulation import EmulationSpec, Variation
from servebench.contracts.engine import Engine, LaunchContext, Launcher, RunningEngine, Say, StartPhase, StopReport
from servebench.contracts.settings import LaunchSettings
from servebench.engine.launchers.emulated import EmulatedSettings, spec_of
from servebench.engine.tokenize import EmulatedTokenizer
from servebench.util.errors import EngineError, reason_of
from servebench.util.units import NS_PER_S

ADDRESS = "http://simulated.invalid"
START_LINE = "servebench: simulated start "


@dataclass(frozen=True, kw_only=True)
class SimulatedSettings(Variation, LaunchSettings):
    """`seed` fixes everything that is random; the other keys are those of `Variation`."""

    seed: int = 0


@dataclass(kw_only=True)
class SimulatedEngine(RunningEngine):
    """A RunningEngine without a server: what is simulated, the deviations, and the key that seeds this start.

    `started_ns` is second 0 of its clock; it is ready after `ready_s` seconds. `machine` is the virtual engine, made and kept
    by `run.simulated`; `ended_ns` is how far its clock has come.
    """

    spec: EmulationSpec
    variation: Variation
    key: str
    ready_s: float
    machine: object | None = None
    ended_ns: int = 0

    def died(self) -> str | None:
        """Return None: a simulated engine does not die."""
        return None

    def stop(self) -> StopReport:
        """Forget the virtual engine. The next start begins after the virtual time that this one has used."""
        SimulatedLauncher.clock_ns = max(SimulatedLauncher.clock_ns, self.ended_ns)
        self.machine = None
        return StopReport(stopped=True, forced=False, seconds=0.0)


class SimulatedLauncher(Launcher):
    """Compute any engine, a plugin's included, hundreds of times faster than real time."""

    name = "simulated"
    settings_type = SimulatedSettings
    emulated = True
    simulated = True
    needs_executable = False
    clock_ns: ClassVar[int] = 0
    """How far the virtual time of earlier starts in this process has come: starts never overlap."""

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Describe the engine and count this start in the log. Raises EngineError if the log cannot be written."""
        say(f"simulated {engine.name}: computed on a virtual clock; these numbers do not describe the real engine")
        running = self.describe(engine, context, settings)
        number = _log_start(log_path, [line for _, line in running.spec.cold_start()])
        return replace(running, log_path=log_path, key=f"{running.key}/{log_path.parent.name}/{number}")

    def describe(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> SimulatedEngine:
        """Return the engine without a log; its key is the seed."""
        assert isinstance(settings, SimulatedSettings)
        spec = spec_of(engine, context, EmulatedSettings(name=self.name, seed=settings.seed))
        started_ns = max(time.time_ns(), self.clock_ns)
        phases, ready_s = _cold_start(engine, spec, started_ns)
        return SimulatedEngine(
            spec=spec,
            variation=settings,
            base_urls=(f"{ADDRESS}/v1",),
            version="simulated",
            key=str(settings.seed),
            model=engine.served_model(context.model),
            started_ns=started_ns,
            ready_s=ready_s,
            log_path=None,
            phases=phases,
            tokenizer=EmulatedTokenizer(),
        )


def _cold_start(engine: Engine, spec: EmulationSpec, started_ns: int) -> tuple[tuple[StartPhase, ...], float]:
    """Return the phases that the lines of the engine's log end, by the markers of its class, and the seconds in all."""
    phases, seconds = [], 0.0
    for phase_s, line in spec.cold_start():
        seconds += phase_s
        ended_ns = started_ns + round(seconds * NS_PER_S)
        names = [marker.phase for marker in engine.phases if re.search(marker.pattern, line)]
        phases += [StartPhase(name=name, ended_ns=ended_ns) for name in names]
    ready = StartPhase(name="first_token", ended_ns=started_ns + round(seconds * NS_PER_S))
    return (*phases, ready), seconds


def _log_start(log_path: Path, lines: list[str]) -> int:
    """Append a start to the log and return its number: 1 for the first one of the run. Raises EngineError."""
    try:
        before = log_path.read_text(encoding="utf-8", errors="replace") if log_path.exists() else ""
        number = before.count(START_LINE) + 1
        with log_path.open("a", encoding="utf-8") as log:
            log.write("\n".join([f"{START_LINE}{number}", *lines, ""]))
    except OSError as error:
        raise EngineError(f"{log_path} cannot be written: {reason_of(error)}") from error
    return number
