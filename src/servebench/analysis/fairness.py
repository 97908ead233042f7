"""What two runs did not have in common, and which of it makes their comparison unfair.

The manifests are laid flat and compared key by key. What a comparison is about (the engine, its version, and whatever
was varied on purpose) is listed but does not matter; the model, its precision, the limits of the engine, the workload, the
machine and its driver do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from servebench.contracts.stored import RunData, mapping

ON_PURPOSE = "this is what is compared"
ABSENT = "-"
OWN = "only one of the engines has such a setting"

HARMLESS = "it says where files are or what is logged, not how the engine computes"
HARMLESS_ENV = (
    # hugging face: offline, where its files are, what it prints
    *("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "HF_XET_CACHE"),
    *("HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_ENDPOINT", "HF_TOKEN", "HF_TOKEN_PATH", "HF_ASSETS_CACHE"),
    *("HF_HUB_DISABLE_*", "HF_HUB_ENABLE_HF_TRANSFER", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"),
    *("HF_XET_HIGH_PERFORMANCE", "*_VERBOSITY", "TRANSFORMERS_NO_ADVISORY_WARNINGS", "MODELSCOPE_CACHE"),
    # caches of compiled code: they are filled before the load begins
    *("XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME"),
    *("CUDA_CACHE_PATH", "FLASHINFER_WORKSPACE_BASE", "VLLM_ASSETS_CACHE", "TMPDIR", "HOME"),
    # logs, progress bars, usage statistics, colours
    *("*_LOG_LEVEL", "*_LOGGING_LEVEL", "LOG_LEVEL", "LOGLEVEL", "TQDM_*", "PYTHONUNBUFFERED", "PYTHONWARNINGS"),
    *("VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_*", "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK"),
    *("NO_COLOR", "FORCE_COLOR", "TERM", "LANG", "LC_*", "TZ"),
)
"""Variables of the engine's environment that change neither its speed nor its answers once it serves. Threads
(`OMP_NUM_THREADS`, `TOKENIZERS_PARALLELISM`), kernels and devices are not among them."""


@dataclass(frozen=True, kw_only=True)
class SettingDifference:
    """One setting or fact that is unequal. `matters` turns the verdict to `unequal_settings`; `reason` says why."""

    key: str
    baseline: str
    candidate: str
    matters: bool
    reason: str


KEYS_TOLD = 4


def keys_told(found: Iterable[SettingDifference]) -> str:
    """The keys of what matters, a few of them by name."""
    keys = [one.key for one in found if one.matters]
    more = len(keys) - KEYS_TOLD
    return ", ".join(keys) if more <= 1 else f"{', '.join(keys[:KEYS_TOLD])} and {more} more"


def way_out(found: Iterable[SettingDifference]) -> str:
    """What a user may do about what matters: the words to say that it is what is compared."""
    keys = [one.key for one in found if one.matters]
    groups = dict.fromkeys(f"{key.split('.')[0]}.*" for key in keys)
    named = ",".join(keys if len(keys) <= KEYS_TOLD else groups)
    return f"make them equal, or say that they are what is compared: --varying '{named}'"


RULES: tuple[tuple[str, bool, str], ...] = (
    ("engine_version", False, ON_PURPOSE),
    ("config.engine.name", False, ON_PURPOSE),
    ("config.engine.dtype", True, "another precision computes another amount"),
    ("config.engine.quantization", True, "quantised weights are another model"),
    ("config.engine.max_model_len", True, "it bounds the cache that is left for batches"),
    ("config.engine.max_num_seqs", True, "it bounds how many requests run at once"),
    ("config.engine.prefix_caching", True, "cached prefixes are not computed"),
    ("config.engine.gpu_memory_fraction", True, "it bounds the cache"),
    ("config.engine.tensor_parallel_size", True, "another number of GPUs does the work"),
    ("config.engine.threads", True, "another number of cores does the work"),
    ("config.engine.gpu_layers", True, "another part of the model is on the GPU"),
    ("config.engine.extra_args.*eager*", True, "eager mode goes without compiled graphs"),
    ("config.engine.extra_args.*graph*", True, "without captured graphs each step is slower"),
    ("config.engine.extra_args.*compil*", True, "compiled and not compiled engines differ in speed"),
    ("config.engine.extra_args.*dtype*", True, "another precision computes another amount"),
    ("config.engine.extra_args.*", True, "a flag that only one engine got, or that they got differently"),
    *((f"config.engine.env.{name}", False, HARMLESS) for name in HARMLESS_ENV),
    ("config.engine.env.*", True, "engines read their environment"),
    ("config.engine.executable", False, "where the program lies"),
    ("config.engine.port", False, "where it listens"),
    ("config.engine.host", False, "where it listens"),
    ("config.engine.*timeout_s", False, "it changes no number"),
    ("config.engine.reuse", False, "cold start only"),
    ("config.engine.measure_restart", False, "cold start only"),
    ("config.engine.seed", False, "the engine's own random numbers"),
    ("config.engine.*", True, "a setting of the engine"),
    ("config.launch.name", True, "an emulated, a remote and a local engine are not the same thing"),
    ("config.launch.*", False, "how the engine is reached"),
    ("config.model.name", True, "another model"),
    ("config.model.revision", True, "another revision of the model"),
    ("config.model.path", False, "where the model lies"),
    ("config.model.tokenizer", False, "it sizes the prompts"),
    ("config.model.*", False, "a description of the model"),
    ("config.gpu.name", True, "another GPU"),
    ("config.gpu.count", True, "another number of GPUs"),
    ("config.gpu.*", False, "a description of the GPU"),
    ("config.workload.*", True, "another workload"),
    ("config.load.arrival", True, "another arrival process"),
    ("config.load.burstiness", True, "another arrival process"),
    ("config.load.max_concurrency", True, "another bound on the load"),
    ("config.load.warmup_*", True, "another state of warmth"),
    ("config.load.workers", False, "the client's own processes"),
    ("config.load.*", False, "only levels that both have are compared"),
    ("config.slo.*", True, "goodput counts other requests as good"),
    ("config.quality.*", False, "quality is measured after the load"),
    ("machine.gpus.*.name", True, "another GPU"),
    ("machine.gpus.*.driver_version", True, "another driver"),
    ("machine.gpus.*.power_limit", True, "another power limit"),
    ("machine.gpus.*.clocks_*", True, "other clocks"),
    ("machine.gpus.*.uuid", False, "another GPU of the same kind"),
    ("machine.gpus.*", True, "another GPU"),
    ("machine.cuda", True, "another CUDA"),
    ("machine.cpu_model", True, "another processor"),
    ("machine.cpu_*", True, "another number of cores"),
    ("machine.memory_bytes", False, "memory of the host"),
    ("machine.*", False, "the client's machine"),
    ("cold_start.shared", False, "one of them used an engine that an earlier run had started"),
    ("packages.servebench-suite", False, "another version of servebench: see its changelog"),
    ("packages.*", False, "a package of servebench"),
    ("git.*", False, "another commit of the folder the command was given in"),
    ("foreign.*", True, "measured by another tool, by its own definitions"),
)
"""Key (with `*`), whether a difference matters, and why. The first that fits counts."""

LOOKED_AT = ("engine_version", "config", "machine", "packages", "git", "foreign")
LEFT_OUT = ("config.study.*", "config.tracking.*", "config.telemetry.*", "config.gpu.price*", "config.experiment*")
SHAPE_ONLY = ("config.load.name", "config.workload.note")


def unequal(
    baseline: Mapping[str, Any], candidate: Mapping[str, Any], *, varying: Iterable[str] = ()
) -> tuple[SettingDifference, ...]:
    """What two manifests have unequal, what matters first. Pure.

    `varying` are config keys (`engine.dtype`, `engine.*`) that differ on purpose. A setting that is null was left to the
    engine: null against a value is a difference. A setting that only one of the engines has is listed and
    does not matter; flags (`extra_args`) do, for they can say anything.
    """
    ours, theirs = _facts(baseline), _facts(candidate)
    both = _settings(baseline) & _settings(candidate)
    purposes = [f"config.{key}" for key in varying] + list(varying)
    found = []
    for key in sorted({*ours, *theirs}):
        a, b = ours.get(key), theirs.get(key)
        if a == b or any(fnmatchcase(key, pattern) for pattern in (*LEFT_OUT, *SHAPE_ONLY)):
            continue
        if any(fnmatchcase(key, purpose) for purpose in purposes):
            matters, reason = False, ON_PURPOSE
        elif (
            key.startswith("config.engine.") and key.count(".") == 2 and key.removeprefix("config.engine.") not in both
        ):
            matters, reason = False, OWN
        else:
            matters, reason = next(
                ((matters, reason) for pattern, matters, reason in RULES if fnmatchcase(key, pattern)), (False, "")
            )
        found.append(
            SettingDifference(
                key=key.removeprefix("config."),
                baseline=_words(a),
                candidate=_words(b),
                matters=matters,
                reason=reason,
            )
        )
    return tuple(sorted(found, key=lambda one: (not one.matters, one.reason == "", one.key)))


def varied(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that one study varied on purpose between two of its runs: overrides that differ. Empty across studies.

    `engine` as a group choice makes the whole group differ on purpose only where an engine's own file says so: the
    common settings of all engines still have to be equal.
    """
    if baseline.get("study_id") is None or baseline.get("study_id") != candidate.get("study_id"):
        return ()
    ours, theirs = _overrides(baseline), _overrides(candidate)
    keys = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
    return tuple(key if "." in key else f"{key}.*" for key in keys if key != "engine")


def _overrides(manifest: Mapping[str, Any]) -> dict[str, str]:
    words = manifest.get("overrides")
    pairs = [str(word).partition("=") for word in (words if isinstance(words, list | tuple) else ())]
    return {key.lstrip("+~").partition("@")[0]: value for key, equals, value in pairs if equals}


def _settings(manifest: Mapping[str, Any]) -> set[str]:
    """The settings that a run's engine has, those left to the engine too."""
    return set(mapping(mapping(manifest.get("config")).get("engine")))


def _facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for part in LOOKED_AT:
        facts.update(_flat(part, manifest.get(part)))
    shared = mapping(manifest.get("cold_start")).get("shared")
    if shared is not None:
        facts["cold_start.shared"] = shared
    return {key: value for key, value in facts.items() if value is not None}


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {key: leaf for name, item in value.items() for key, leaf in _flat(f"{prefix}.{name}", item).items()}
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return {key: leaf for index, item in enumerate(value) for key, leaf in _flat(f"{prefix}.{index}", item).items()}
    return {prefix: value}


def _words(value: Any) -> str:
    return ABSENT if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def differences(a: RunData, b: RunData, varying: str | None = None) -> tuple[SettingDifference, ...]:
    """What is unequal between two runs, but for what is varied on purpose."""
    on_purpose = [*varied(a.manifest, b.manifest), *(key.strip() for key in (varying or "").split(",") if key.strip())]
    return unequal(a.manifest, b.manifest, varying=on_purpose)
