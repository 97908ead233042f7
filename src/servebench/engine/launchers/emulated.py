"""The launchers that imitate an engine: `emulated` runs a server that behaves like it, `simulated` has no server at all.

Log file, phases, readiness and stop of an emulated engine are those of `process`: only the command differs. A simulated one and
the load client are computed on a virtual clock: the launcher only describes the engine and names its start, and
`run.simulated` computes what a client would have measured.
"""

import re
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from servebench.contracts.emulation import EmulatedFaults, EmulationSpec, Variation, to_json
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
from servebench.contracts.settings import LaunchSettings, PositiveFloat
from servebench.engine.launchers.process import ProcessLauncher, launch_command
from servebench.engine.tokenize import EmulatedTokenizer
from servebench.util.errors import EngineError, reason_of
from servebench.util.units import NS_PER_S

EAGER_FLAGS = ("enforce-eager", "enforce_eager", "disable-cuda-graph", "eager-mode")
SPECULATIVE_WORDS = ("specul", "spec-")
SPECULATIVE_TOKENS = 2.4
"""Mean tokens per step with a draft model: the order of magnitude reported for EAGLE-like drafts in chats."""
METRIC_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
"""A plain Prometheus name: an adapter may also read sums of several names, or paths in JSON."""
MODEL_KEYS = (
    *("name", "parameters_b", "active_parameters_b", "layers", "hidden_size", "heads", "kv_heads", "head_dim"),
    "context_length",
)
SAME_IN_ENGINE = ("health_path", "metrics_path", "version_path", "reset_path", "tokenize_path")
SAME_IN_DIALECT = ("sends_done", "model_checked")
SAME_IN_SETTINGS = ("max_model_len", "max_num_seqs", "gpu_memory_fraction", "prefix_caching")
"""What the specification takes over under the same names."""
GPU_KEYS = ("name", "memory_gb", "bandwidth_gb_s", "bf16_tflops", "fp8_tflops")
ADDRESS = "http://simulated.invalid"
START_LINE = "servebench: simulated start "


@dataclass(frozen=True, kw_only=True)
class EmulatedSettings(LaunchSettings):
    """`seed` fixes answers and random choices; `time_scale` multiplies the duration of the cold start; `faults` are failures
    to imitate."""

    seed: int = 0
    time_scale: PositiveFloat = 0.02
    faults: EmulatedFaults = field(default_factory=EmulatedFaults)


def spec_of(engine: Engine, context: LaunchContext, settings: EmulatedSettings) -> EmulationSpec:
    """Return the server's specification: the engine's emulation, and the settings that its schedule depends on."""
    engine_settings, model, gpu = context.engine, asdict(context.model), asdict(context.gpu)
    described: dict[str, Any] = {key: model[key] for key in MODEL_KEYS if model[key] is not None}
    described |= {
        key: value for key in ("dtype", "quantization") if (value := getattr(engine_settings, key)) is not None
    }
    extra_args, emulation = engine_settings.extra_args, engine.emulated_as(context)
    if not engine_settings.request_timings:
        emulation = replace(emulation, timings={})

    def flag(name: str | None) -> int | None:
        value = extra_args.get(name or "")
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    speculates = any(word in name.lower() for name, value in extra_args.items() if value for word in SPECULATIVE_WORDS)
    read = {names[0]: meaning for meaning, names in engine.metrics.items() if names and METRIC_NAME.fullmatch(names[0])}
    same: dict[str, Any] = {name: getattr(engine, name) for name in SAME_IN_ENGINE}
    same |= {name: getattr(engine.dialect, name) for name in SAME_IN_DIALECT}
    same |= {name: getattr(engine_settings, name) for name in SAME_IN_SETTINGS}
    return EmulationSpec(
        **same,
        engine=engine.name,
        model_name=engine.served_model(context.model),
        host=engine_settings.host,
        port=context.port,
        seed=settings.seed,
        time_scale=settings.time_scale,
        emulation=emulation,
        faults=settings.faults,
        settings_paths=tuple(engine.settings_paths),
        schema_enforced=engine.dialect.json_schema,
        exact_output=dict(engine.dialect.exact_output),
        metrics=read | dict(emulation.metrics),
        model=described,
        gpu={key: gpu[key] for key in GPU_KEYS if gpu[key] is not None},
        tensor_parallel=engine_settings.tensor_parallel_size or max(1, context.gpu.count),
        queue_limit=flag(emulation.queue_limit_flag),
        token_budget=flag(emulation.token_budget_flag),
        front_ends=flag(emulation.front_end_flag) or 1,
        eager=any(extra_args.get(flag) for flag in EAGER_FLAGS),
        speculative_tokens=SPECULATIVE_TOKENS if speculates else 1.0,
        variant=getattr(engine_settings, "backend", None),
        spans_endpoint=context.spans_endpoint,
        adapters=context.adapters,
        kept_folder=str(context.kept_folder) if engine_settings.request_timings == "after_load" else None,
    )


class EmulatedLauncher(ProcessLauncher):
    """Imitate any engine, including a plugin's, in a process: needs no engine, no weights and no GPU."""

    name = "emulated"
    settings_type = EmulatedSettings
    emulated = True
    needs_executable = False

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Start the emulated server and wait for a first token. Raises EngineError; nothing is left running then."""
        assert isinstance(settings, EmulatedSettings)
        say(f"emulated {engine.name}: these numbers do not describe the real engine")
        spec = spec_of(engine, context, settings)
        command = Command(argv=(sys.executable, "-P", "-m", "servebench.emulator", "--spec", to_json(spec)))
        running = launch_command(engine, context, command, log_path=log_path, say=say, version=lambda: "emulated")
        running.tokenizer = EmulatedTokenizer()
        return running


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
