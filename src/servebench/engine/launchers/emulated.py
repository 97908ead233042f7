"""The launcher `emulated`: instead of the engine's command, a server process that plays the engine.

Log file, phases, readiness, stop and the proof that nothing is left are those of `process`: only the command differs.
"""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from servebench.contracts.emulation import EmulatedFaults, Emulation, EmulationSpec, to_json
from servebench.contracts.engine import Command, Engine, LaunchContext, Launcher, RunningEngine, Say
from servebench.contracts.settings import LaunchSettings, PositiveFloat
from servebench.engine.launchers.process import LaunchedEngine, start, wait_until_ready
from servebench.engine.supervisor.ports import port_fault
from servebench.engine.supervisor.shield import shielded
from servebench.engine.tokenize import EmulatedTokenizer

EAGER_FLAGS = ("enforce-eager", "enforce_eager", "disable-cuda-graph", "eager-mode")
SPECULATIVE_WORDS = ("specul", "spec-")
SPECULATIVE_TOKENS = 2.4
"""Mean tokens a step with a draft model: to the order of what EAGLE-like drafts are reported to reach in chats."""
METRIC_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
"""A plain Prometheus name: an adapter may also read sums of several, or paths in JSON."""
MODEL_KEYS = (
    *("name", "parameters_b", "active_parameters_b", "layers", "hidden_size", "heads", "kv_heads", "head_dim"),
    "context_length",
)
GPU_KEYS = ("name", "memory_gb", "bandwidth_gb_s", "bf16_tflops", "fp8_tflops")


@dataclass(frozen=True, kw_only=True)
class EmulatedSettings(LaunchSettings):
    """`seed` fixes answers and chance; `time_scale` multiplies the seconds of the cold start; `faults` go wrong on demand."""

    seed: int = 0
    time_scale: PositiveFloat = 0.02
    faults: EmulatedFaults = field(default_factory=EmulatedFaults)


def spec_of(engine: Engine, context: LaunchContext, settings: EmulatedSettings) -> EmulationSpec:
    """What the server process is told: the engine's emulation, and all of the config that its schedule depends on."""
    own, model, gpu = context.engine, asdict(context.model), asdict(context.gpu)
    described: dict[str, Any] = {key: model[key] for key in MODEL_KEYS if model[key] is not None}
    described |= {key: value for key in ("dtype", "quantization") if (value := getattr(own, key)) is not None}
    emulation = engine.emulated_as(context)
    limit = own.extra_args.get(emulation.queue_limit_flag or "")
    return EmulationSpec(
        engine=engine.name,
        model_name=engine.served_model(context.model),
        host=own.host,
        port=context.port,
        seed=settings.seed,
        time_scale=settings.time_scale,
        emulation=emulation,
        faults=settings.faults,
        health_path=engine.health_path,
        metrics_path=engine.metrics_path,
        version_path=engine.version_path,
        reset_path=engine.reset_path,
        settings_paths=tuple(engine.settings_paths),
        tokenize_path=engine.tokenize_path,
        sends_done=engine.dialect.sends_done,
        model_checked=engine.dialect.model_checked,
        schema_enforced=engine.dialect.json_schema,
        exact_output=dict(engine.dialect.exact_output),
        metrics=_metrics(engine, emulation),
        model=described,
        gpu={key: gpu[key] for key in GPU_KEYS if gpu[key] is not None},
        tensor_parallel=own.tensor_parallel_size or max(1, context.gpu.count),
        max_model_len=own.max_model_len,
        max_num_seqs=own.max_num_seqs,
        queue_limit=limit if isinstance(limit, int) else None,
        gpu_memory_fraction=own.gpu_memory_fraction,
        prefix_caching=own.prefix_caching,
        eager=any(own.extra_args.get(flag) for flag in EAGER_FLAGS),
        speculative_tokens=SPECULATIVE_TOKENS if _speculates(own.extra_args) else 1.0,
        variant=getattr(own, "backend", None),
    )


def _metrics(engine: Engine, emulation: Emulation) -> dict[str, str]:
    """Metric names to what they tell: those that the adapter reads, and those that its emulation adds."""
    read = {names[0]: word for word, names in engine.metrics.items() if names and METRIC_NAME.fullmatch(names[0])}
    return read | dict(emulation.metrics)


def _speculates(extra_args: Any) -> bool:
    return any(word in name.lower() for name, value in extra_args.items() if value for word in SPECULATIVE_WORDS)


class EmulatedLauncher(Launcher):
    """Plays any engine, also a plugin's: no engine, no weights and no GPU are needed."""

    name = "emulated"
    settings_type = EmulatedSettings
    emulated = True
    needs_executable = False

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """A port that is taken. That the engine is not installed does not matter."""
        taken = port_fault(context.engine.host, context.engine.port)
        return [str(taken)] if taken is not None else []

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Start the emulated server and wait for a first token. Raises EngineError; nothing is left running then."""
        assert isinstance(settings, EmulatedSettings)
        say(f"emulating {engine.name}: the numbers say nothing of a real one")
        spec = spec_of(engine, context, settings)
        command = Command(argv=(sys.executable, "-P", "-m", "servebench.emulator", "--spec", to_json(spec)))
        taken = port_fault(context.engine.host, context.port)
        if taken is not None:
            raise taken
        running: LaunchedEngine | None = None
        try:
            # a Ctrl-C between the start and the assignment would leave an engine that nobody can stop
            with shielded():
                running = start(engine, context, command, log_path)
            wait_until_ready(running, context, say)
        except BaseException:
            if running is not None:
                running.stop()
            raise
        running.version = running.version or "emulated"
        running.tokenizer = EmulatedTokenizer()
        return running
