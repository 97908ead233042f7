"""Which settings two runs do not have in common, and which of these make their comparison unfair.

The manifests are flattened and compared key by key. What a comparison is about (the engine, its version, and whatever
was varied on purpose) is listed but does not matter; the model, its precision, the limits of the engine, the workload, the
machine and its driver do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

import numpy as np

from servebench.contracts.point_row import level_words
from servebench.contracts.stored import RunData, mapping
from servebench.util.figures import MISSING, number

ON_PURPOSE = "this is what is compared"
UNKNOWN = "unknown"
UNKNOWN_WEIGHTS = "the weights of one are unknown: a server that was already running, or files that it fetched"
ONE_ENGINE_ONLY = "only one of the engines has this setting"
HARMLESS = "it affects files or logs, not how the engine computes"
HARMLESS_ENV = (
    # hugging face: offline, where its files are, output
    *("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "HF_XET_CACHE"),
    *("HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_ENDPOINT", "HF_TOKEN", "HF_TOKEN_PATH", "HF_ASSETS_CACHE"),
    *("HF_HUB_DISABLE_*", "HF_HUB_ENABLE_HF_TRANSFER", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"),
    *("HF_XET_HIGH_PERFORMANCE", "*_VERBOSITY", "TRANSFORMERS_NO_ADVISORY_WARNINGS", "MODELSCOPE_CACHE"),
    # caches of compiled code: filled before the load begins
    *("XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME"),
    *("CUDA_CACHE_PATH", "FLASHINFER_WORKSPACE_BASE", "VLLM_ASSETS_CACHE", "TMPDIR", "HOME"),
    # logs, progress bars, usage statistics, colours
    *("*_LOG_LEVEL", "*_LOGGING_LEVEL", "LOG_LEVEL", "LOGLEVEL", "TQDM_*", "PYTHONUNBUFFERED", "PYTHONWARNINGS"),
    *("VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_*", "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK"),
    *("NO_COLOR", "FORCE_COLOR", "TERM", "LANG", "LC_*", "TZ"),
)
"""Environment variables that change neither the speed nor the answers of a running engine. Threads (`OMP_NUM_THREADS`,
`TOKENIZERS_PARALLELISM`), kernels and devices are not among them."""


@dataclass(frozen=True, kw_only=True)
class SettingDifference:
    """A setting or fact that two runs do not share. One that `matters` makes the result `unequal_settings`."""

    key: str
    baseline: str
    candidate: str
    matters: bool
    reason: str
    where: str = ""
    """The load level of a fact that was measured, in words."""

    @property
    def title(self) -> str:
        """What differs, in words."""
        return title_of_setting(self.key)

    @property
    def name(self) -> str:
        """What differs, and at which load."""
        return f"{self.title} at {self.where}" if self.where else self.title


TITLES = {
    "input_tokens_mean": "mean prompt, in tokens",
    "output_tokens_mean": "mean answer, in tokens",
    "engine_version": "version of the engine",
    "weights": "file of weights",
    "weights.*": "{} of the weights",
    "machine.cpu_model": "processor",
    "machine.gpus.*": "GPU {}",
    "machine.*": "machine: {}",
    "packages.*": "package {}",
    "git.*": "git {}",
}
"""What facts that are no config keys are called, by pattern of their key; {} is the last part of the key."""


def title_of_setting(key: str) -> str:
    """Return what a setting or fact is called: config keys as they are written, others in words."""
    found = next((title for pattern, title in TITLES.items() if fnmatchcase(key, pattern)), "")
    return found.format(key.rpartition(".")[2].replace("_", " ")) or key


KEYS_SHOWN = 4


def mattering_keys(found: Iterable[SettingDifference]) -> str:
    """Return what matters, the first few by name."""
    keys = [one.title for one in found if one.matters]
    more = len(keys) - KEYS_SHOWN
    return ", ".join(keys) if more <= 1 else f"{', '.join(keys[:KEYS_SHOWN])} and {more} more"


def how_to_resolve(found: Iterable[SettingDifference]) -> str:
    """Return what to do about the settings that matter, with the option that declares them on purpose."""
    keys = [one.key for one in found if one.matters]
    groups = dict.fromkeys(f"{key.split('.')[0]}.*" for key in keys)
    named = ",".join(keys if len(keys) <= KEYS_SHOWN else groups)
    return f"make them equal, or declare that they are what is compared: --varying '{named}'"


RULES: tuple[tuple[str, bool, str], ...] = (
    ("engine_version", False, ON_PURPOSE),
    ("config.engine.name", False, ON_PURPOSE),
    ("config.engine.dtype", True, "different precision, different amount of computation"),
    ("config.engine.quantization", True, "quantized weights are a different model"),
    ("config.engine.max_model_len", True, "it limits the cache that is left for batches"),
    ("config.engine.max_num_seqs", True, "it limits how many requests run at once"),
    ("config.engine.prefix_caching", True, "cached prefixes are not computed again"),
    ("config.engine.gpu_memory_fraction", True, "it limits the cache"),
    ("config.engine.tensor_parallel_size", True, "different number of GPUs"),
    ("config.engine.threads", True, "different number of cores"),
    ("config.engine.gpu_layers", True, "different part of the model on the GPU"),
    ("config.engine.extra_args.*eager*", True, "eager mode does not use compiled graphs"),
    ("config.engine.extra_args.*graph*", True, "without captured graphs each step is slower"),
    ("config.engine.extra_args.*compil*", True, "compilation changes the speed"),
    ("config.engine.extra_args.*dtype*", True, "different precision, different amount of computation"),
    ("config.engine.extra_args.*", True, "a flag that differs or that only one engine has"),
    *((f"config.engine.env.{name}", False, HARMLESS) for name in HARMLESS_ENV),
    ("config.engine.env.*", True, "an environment variable can change how the engine computes"),
    ("config.engine.executable", False, "location of the program"),
    ("config.engine.port", False, "network address"),
    ("config.engine.host", False, "network address"),
    ("config.engine.*timeout_s", False, "it does not affect the results"),
    ("config.engine.reuse", False, "affects only the cold start"),
    ("config.engine.measure_restart", False, "affects only the cold start"),
    ("config.engine.request_timings", False, "a few numbers more in the last chunk of an answer"),
    ("config.engine.seed", False, "the engine's random numbers"),
    ("config.engine.*", True, "an engine setting"),
    ("config.launch.name", True, "emulated, remote and local engines are not comparable"),
    ("config.launch.*", False, "how the engine is reached"),
    ("config.model.name", True, "different model"),
    ("config.model.revision", True, "different revision of the model"),
    ("config.model.path", False, "location of the model"),
    ("config.model.tokenizer", False, "it sizes the prompts"),
    ("config.model.*", False, "model metadata"),
    ("config.gpu.name", True, "different GPU"),
    ("config.gpu.count", True, "different number of GPUs"),
    ("config.gpu.*", False, "GPU metadata"),
    ("config.workload.*", True, "different workload"),
    ("config.load.arrival", True, "different arrival process"),
    ("config.load.burstiness", True, "different arrival process"),
    ("config.load.max_concurrency", True, "different limit of the load"),
    ("config.load.warmup_*", True, "different warm-up"),
    ("config.load.workers", False, "client processes"),
    ("config.load.*", False, "only levels that both runs have are compared"),
    ("config.slo.*", True, "different requests count as good"),
    ("config.quality.*", False, "quality is measured after the load"),
    ("machine.gpus.*.name", True, "different GPU"),
    ("machine.gpus.*.driver_version", True, "different driver"),
    ("machine.gpus.*.power_limit", True, "different power limit"),
    ("machine.gpus.*.clocks_*", True, "different clocks"),
    ("machine.gpus.*.uuid", False, "different GPU of the same kind"),
    ("machine.gpus.*", True, "different GPU"),
    ("machine.cuda", True, "different CUDA version"),
    ("machine.cpu_model", True, "different processor"),
    ("machine.cpu_*", True, "different number of cores"),
    ("machine.memory_bytes", False, "host memory"),
    ("machine.*", False, "the client's machine"),
    ("weights.revision", False, "the revision that was requested; the digest is of the files"),
    ("weights.*", True, "other weights: another file, format or quantization"),
    ("weights", True, "another file of weights: quantized weights are a different model"),
    ("cold_start.shared", False, "one run reused an engine from an earlier run"),
    ("packages.servebench-suite", False, "different servebench version: see the changelog"),
    ("packages.*", False, "a dependency of servebench"),
    ("git.*", False, "different commit of the working directory"),
    ("foreign.*", True, "measured by another tool, with its own definitions"),
)
"""Key pattern, whether a difference matters, and why. The first match counts."""

COMPARED_PARTS = ("engine_version", "config", "machine", "packages", "git", "foreign")
IGNORED = (
    *("config.study.*", "config.tracking.*", "config.telemetry.*", "config.gpu.price*", "config.experiment*"),
    *("config.load.name", "config.workload.note"),
)


def unequal_settings(a: RunData, b: RunData, varying: str | None = None) -> tuple[SettingDifference, ...]:
    """Return the settings that two runs do not share; `varying` are comma-separated keys that differ on purpose."""
    keys = [key.strip() for key in (varying or "").split(",") if key.strip()]
    found = compare_manifests(a.manifest, b.manifest, varying=[*varied_keys(a.manifest, b.manifest), *keys])
    return (*unequal_work(a, b, keys), *found)


def same_settings(a: RunData, b: RunData) -> bool:
    """Return whether two runs share all that matters; the points are read only where the manifests agree."""
    found = compare_manifests(a.manifest, b.manifest, varying=varied_keys(a.manifest, b.manifest))
    return not any(one.matters for one in found) and not any(one.matters for one in unequal_work(a, b))


WORK = {
    "input_tokens_mean": (0.02, "the engines counted prompts of different length"),
    "output_tokens_mean": (0.05, "the engines generated answers of different length"),
}
"""Columns that say how much work a point was, by how much two runs may differ in them (a share), and what more means."""


def unequal_work(a: RunData, b: RunData, on_purpose: Iterable[str] = ()) -> tuple[SettingDifference, ...]:
    """Return which runs did different work at a level that both measured, by the servers' own token counts.

    Settings may be equal and prompts still differ, for example where they were sized by another tokenizer.
    """
    found = []
    for column, (tolerance, reason) in WORK.items():
        ours, theirs = _means(a, column), _means(b, column)
        apart = {level: abs(np.log(theirs[level] / ours[level])) for level in ours if level in theirs}
        worst = max(apart, key=lambda level: apart[level], default=None)
        if worst is not None and apart[worst] > np.log1p(tolerance):
            matters = not any(fnmatchcase(column, purpose) for purpose in on_purpose)
            values = [number(side[worst]) for side in (ours, theirs)]
            found.append(
                SettingDifference(
                    key=column,
                    baseline=values[0],
                    candidate=values[1],
                    matters=matters,
                    reason=reason,
                    where=level_words(worst),
                )
            )
    return tuple(found)


def _means(run: RunData, column: str) -> dict[str, float]:
    """The mean of a column by level, of points that have it."""
    values: dict[str, list[float]] = {}
    for row in run.point_rows:
        value = row.get(column)
        if value and row.verdict != "void":
            values.setdefault(row.level_label, []).append(float(value))
    return {level: float(np.mean(one)) for level, one in values.items()}


def compare_manifests(
    baseline: Mapping[str, Any], candidate: Mapping[str, Any], *, varying: Iterable[str] = ()
) -> tuple[SettingDifference, ...]:
    """Return what two manifests do not share, what matters first. Pure.

    `varying` are config keys (`engine.dtype`, `engine.*`) that differ on purpose. A setting that is null was left to the
    engine: null and a value differ. A setting that only one of the engines has is listed and does not matter; flags
    (`extra_args`) do, because they can mean anything.
    """
    ours, theirs = _facts(baseline), _facts(candidate)
    shared = _engine_settings(baseline) & _engine_settings(candidate)
    purposes = [f"config.{key}" for key in varying] + list(varying)
    found = []
    for key in sorted({*ours, *theirs}):
        a, b = ours.get(key), theirs.get(key)
        if a == b or any(fnmatchcase(key, pattern) for pattern in IGNORED):
            continue
        matters, reason = _weigh(key, shared, purposes)
        if key.startswith("weights.") and {a, b} & {None, UNKNOWN}:
            matters, reason = False, UNKNOWN_WEIGHTS
        found.append(
            SettingDifference(
                key=key.removeprefix("config."), baseline=_text(a), candidate=_text(b), matters=matters, reason=reason
            )
        )
    return tuple(sorted(found, key=lambda one: (not one.matters, one.reason == "", one.key)))


def _weigh(key: str, shared: set[str], purposes: Iterable[str]) -> tuple[bool, str]:
    """Whether a difference matters, and why."""
    if any(fnmatchcase(key, purpose) for purpose in purposes):
        return False, ON_PURPOSE
    if key.startswith("config.engine.") and key.count(".") == 2 and key.removeprefix("config.engine.") not in shared:
        return False, ONE_ENGINE_ONLY
    return next(((matters, reason) for pattern, matters, reason in RULES if fnmatchcase(key, pattern)), (False, ""))


def varied_keys(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys that one study varied on purpose between two of its runs; none across studies.

    A command that chooses two engine files compares what is in them: all settings of these engines.
    """
    if baseline.get("study_id") is None or baseline.get("study_id") != candidate.get("study_id"):
        return ()
    ours, theirs = _overrides(baseline), _overrides(candidate)
    keys = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
    return tuple(key if "." in key else f"{key}.*" for key in keys)


def _overrides(manifest: Mapping[str, Any]) -> dict[str, str]:
    words = manifest.get("overrides")
    pairs = [str(word).partition("=") for word in (words if isinstance(words, list | tuple) else ())]
    return {key.lstrip("+~").partition("@")[0]: value for key, equals, value in pairs if equals}


def _engine_settings(manifest: Mapping[str, Any]) -> set[str]:
    """The settings that a run's engine has, with those left to the engine."""
    return set(mapping(mapping(manifest.get("config")).get("engine")))


def _facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for part in COMPARED_PARTS:
        facts.update(_flat(part, manifest.get(part)))
    facts["weights"] = _weights_file(manifest)
    facts.update(_flat("weights", mapping(manifest.get("weights"))))
    facts["cold_start.shared"] = mapping(manifest.get("cold_start")).get("shared")
    return {key: value for key, value in facts.items() if value is not None}


def _weights_file(manifest: Mapping[str, Any]) -> str | None:
    """The GGUF file that the engine was started with, whose name says how its weights are quantized; the model as published
    for another command; None without a command."""
    words = mapping(manifest.get("command")).get("argv")
    if not isinstance(words, list):
        return None
    files = [PurePath(str(word)).name for word in words if str(word).lower().endswith(".gguf")]
    return files[0] if files else "as published"


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {key: leaf for name, item in value.items() for key, leaf in _flat(f"{prefix}.{name}", item).items()}
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return {key: leaf for index, item in enumerate(value) for key, leaf in _flat(f"{prefix}.{index}", item).items()}
    return {prefix: value}


def _text(value: Any) -> str:
    return MISSING if value is None else str(value).lower() if isinstance(value, bool) else str(value)
