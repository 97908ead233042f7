"""The launcher `emulated`: run a server that imitates the engine instead of the engine's own command.

Log file, phases, readiness and stop are those of `process`: only the command differs.
"""

import re
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from servebench.contracts.emulation import EmulatedFaults, EmulationSpec, to_json
from servebench.contracts.engine import Command, Engine, LaunchContext, RunningEngine, Say
from servebench.contracts.settings import LaunchSettings, PositiveFloat
from servebench.engine.launchers.process import ProcessLauncher, launch_command
from servebench.engine.tokenize import EmulatedTokenizer

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
