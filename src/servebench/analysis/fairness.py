"""Which settings two runs do not have in common, and which of these make their comparison unfair.

The manifests are flattened and compared key by key. What a comparison is about (the engine, its version, and whatever
was varied on purpose) is listed but does not matter; the model, its precision, the limits of the engine, the workload, the
machine and its driver do. `fairness.yaml` has the rules.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from statistics import fmean
from typing import Any

import numpy as np
import yaml

from servebench.analysis.estimate import levels_of
from servebench.contracts.level import Level
from servebench.contracts.stored import RunData, mapping
from servebench.util.errors import ConfigError
from servebench.util.figures import MISSING, number

ON_PURPOSE = "this is what is compared"
UNKNOWN = "unknown"
UNKNOWN_WEIGHTS = "the weights of one are unknown: a server that was already running, or files that it fetched"
ONE_MODEL = "one model by its name, loaded from a folder"
ONE_ENGINE_ONLY = "only one of the engines has this setting"
HARMLESS = "it affects files or logs, not how the engine computes"
KEYS_SHOWN = 4
"""More settings are only counted, and declared by their groups."""
CORES_ENV = ("OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND")


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load((files("servebench.analysis") / "fairness.yaml").read_text(encoding="utf-8"))
    return table


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
        """What differs: config keys as they are written, others in words."""
        found = next((title for pattern, title in _table()["titles"].items() if fnmatchcase(self.key, pattern)), "")
        return str(found.format(self.key.rpartition(".")[2].replace("_", " ")) or self.key)

    @property
    def name(self) -> str:
        """What differs, and at which load."""
        return f"{self.title} at {self.where}" if self.where else self.title


WEIGHTS = ("weights.quantization", "weights.format", "weights", "weights.digest")
"""Facts of the model's files: where one differs, so do the later ones."""
COMPARED_PARTS = ("engine_version", "config", "machine", "packages", "git", "foreign")


def check_varying(varying: str | None, runs: Iterable[RunData]) -> None:
    """Raise ConfigError for a key of `--varying` that no run has: misspelt, it would declare nothing."""
    asked = [key.strip() for key in (varying or "").split(",") if key.strip()]
    if varying is not None and not asked:
        raise ConfigError("--varying needs keys, such as --varying engine.dtype,gpu.*")
    if not asked:
        return
    facts = {key for run in runs for key in ("input_tokens_mean", "output_tokens_mean", *_facts(run.manifest))}
    settings = {key for run in runs for key in _flat("config", run.config)}
    known = {key.removeprefix("config.") for key in facts | settings}
    if wrong := [key for key in asked if not any(fnmatchcase(one, key) for one in known)]:
        near = get_close_matches(wrong[0], known, n=1)
        hint = f"did you mean {near[0]}?" if near else "name a config key such as engine.dtype, or engine.* for several"
        raise ConfigError(f"--varying {wrong[0]}: no run has such a setting; {hint}")


def unequal_settings(a: RunData, b: RunData, varying: str | None = None) -> tuple[SettingDifference, ...]:
    """Return the settings that two runs do not share; `varying` are comma-separated keys that differ on purpose."""
    keys = [key.strip() for key in (varying or "").split(",") if key.strip()]
    found = compare_manifests(a.manifest, b.manifest, varying=[*varied_keys(a.manifest, b.manifest), *keys])
    return (*unequal_work(a, b, keys), *found)


def same_settings(a: RunData, b: RunData) -> bool:
    """Return whether two runs share all that matters, also of what their study varies on purpose; the points are read only
    where the manifests agree."""
    found = compare_manifests(a.manifest, b.manifest)
    return not any(one.matters for one in found) and not any(one.matters for one in unequal_work(a, b))


WORK = {
    "input_tokens_mean": ("input_tokens_planned_mean", 0.02, "the engines counted prompts of different length"),
    "output_tokens_mean": ("output_tokens_asked_mean", 0.05, "the engines generated answers of different length"),
}
"""Columns that say how much work a point was, and those of the work that was planned; by how much two runs may differ in what
they made of the plan (a share), and what more means."""
SAME_MIN = 10
"""Fewer requests that both runs sent do not say whether their engines counted alike."""


def unequal_work(a: RunData, b: RunData, on_purpose: Iterable[str] = ()) -> tuple[SettingDifference, ...]:
    """Return which runs did different work at a level that both measured, by the servers' own token counts.

    Settings may be equal and prompts still differ, for example where they were sized by another tokenizer. Where the lengths of a
    workload vary, few requests are longer or shorter by chance on one side: that was planned, and does not count. Where the plan
    cannot say (a prompt has the engine's earlier answers in it), the requests that both sent are compared.
    """
    found = []
    for column, (planned, tolerance, reason) in WORK.items():
        ours, theirs = _means(a, column), _means(b, column)
        plans, limit, apart = [_means(run, planned) for run in (a, b)], np.log1p(tolerance), dict[Level, float]()
        for level in ours:
            share = np.log(theirs[level] / ours[level]) if level in theirs else np.nan
            if not np.isfinite(share):
                continue
            known = all(level in plan for plan in plans)
            chance = np.log(plans[1][level] / plans[0][level]) if known else 0.0
            apart[level] = min(abs(share), abs(share - chance))
            if apart[level] > limit and not known:
                same = _of_same_requests(a, b, column, level)
                apart[level] = apart[level] if same is None else same
        worst = max(apart, key=lambda level: apart[level], default=None)
        if worst is not None and apart[worst] > limit:
            matters = not any(fnmatchcase(column, purpose) for purpose in on_purpose)
            x, y = (number(side[worst]) for side in (ours, theirs))
            found.append(
                SettingDifference(
                    key=column, baseline=x, candidate=y, matters=matters, reason=reason, where=worst.words
                )
            )
    return tuple(found)


def _of_same_requests(a: RunData, b: RunData, column: str, level: Level) -> float | None:
    """Return how far apart two runs are at a level (a logarithm) by the requests that both sent; None if they are few."""
    tokens = {"input_tokens_mean": "prompt_tokens", "output_tokens_mean": "output_tokens"}[column]
    sides = []
    for run in (a, b):
        points = {row.point for row in run.point_rows if row.level == level and row.verdict != "void"}
        sent = run.requests_with(["point", "request_id", tokens])
        sides.append(sent[sent["point"].isin(points)].dropna().drop_duplicates("request_id"))
    both = sides[0].merge(sides[1], on="request_id")
    means = both[[f"{tokens}_x", f"{tokens}_y"]].mean()
    return float(abs(np.log(means.iloc[1] / means.iloc[0]))) if len(both) >= SAME_MIN and (means > 0).all() else None


def _means(run: RunData, column: str) -> dict[Level, float]:
    levels = levels_of(row for row in run.point_rows if row.verdict != "void" and row.get(column))
    return {level: fmean(float(row[column]) for row in rows) for level, rows in levels.items()}


def compare_manifests(
    baseline: Mapping[str, Any], candidate: Mapping[str, Any], *, varying: Iterable[str] = ()
) -> tuple[SettingDifference, ...]:
    """Return what two manifests do not share, what matters first. Pure.

    `varying` are config keys (`engine.dtype`, `engine.*`) that differ on purpose. A setting that is null was left to the
    engine: null and a value differ. A setting that only one of the engines has is listed and does not matter; flags
    (`extra_args`) do, because they can mean anything.
    """
    ours, theirs = _facts(baseline), _facts(candidate)
    engines = [mapping(mapping(one.get("config")).get("engine")) for one in (baseline, candidate)]
    shared = engines[0].keys() & engines[1].keys()
    # and those whose values follow from them
    keys = [name for key in varying for name in (key, *_table()["derived"].get(key, ()))]
    purposes = [f"config.{key}" for key in keys] + keys
    found = []
    for key in sorted({*ours, *theirs}):
        a, b = ours.get(key), theirs.get(key)
        if (
            a == b
            or (key == "cores" and None in (a, b))
            or any(fnmatchcase(key, pattern) for pattern in _table()["ignored"])
        ):
            continue
        matters, reason = _weigh(key, shared, purposes)
        if key == "config.model.name" and _one_model(str(a), str(b)):
            matters, reason = False, ONE_MODEL
        if key.startswith("weights.") and {a, b} & {None, UNKNOWN}:
            matters, reason = False, UNKNOWN_WEIGHTS
        x, y = (MISSING if one is None else str(one).lower() if isinstance(one, bool) else str(one) for one in (a, b))
        found.append(
            SettingDifference(key=key.removeprefix("config."), baseline=x, candidate=y, matters=matters, reason=reason)
        )
    return tuple(sorted(_without_implied(found), key=lambda one: (not one.matters, one.reason == "", one.key)))


def _one_model(a: str, b: str) -> bool:
    """Whether a folder is named as another folder or a hub id, also one of the hub's cache (`models--OWNER--NAME/...`)."""
    ids = [re.sub(r".*\bmodels--([^/]+)--([^/]+)/snapshots/[^/]+", r"/\1/\2", name.rstrip("/")) for name in (a, b)]
    folders = any(one.startswith(("/", ".", "~")) or one.count("/") > 1 for one in ids)
    return folders and PurePath(ids[0]).name.lower() == PurePath(ids[1]).name.lower()


def _without_implied(found: Sequence[SettingDifference]) -> list[SettingDifference]:
    """Leave out what another difference of the weights implies: other formats are other files, and have other digests."""
    weights = sorted((one for one in found if one.key in WEIGHTS), key=lambda one: WEIGHTS.index(one.key))
    implied = [one for at, one in enumerate(weights) if any(other.matters >= one.matters for other in weights[:at])]
    return [one for one in found if one not in implied]


def varying_of(found: Iterable[SettingDifference]) -> str:
    """Return the `--varying` that declares the settings that matter."""
    keys = dict.fromkeys("weights" if one.key in WEIGHTS else one.key for one in found if one.matters)
    groups = dict.fromkeys(f"{key.split('.')[0]}.*" if "." in key else key for key in keys)
    return ",".join(keys if len(keys) <= KEYS_SHOWN else groups)


def _weigh(key: str, shared: set[str], purposes: Iterable[str]) -> tuple[bool, str]:
    if any(fnmatchcase(key, purpose) for purpose in purposes):
        return False, ON_PURPOSE
    if key.startswith("config.engine.") and key.count(".") == 2 and key.removeprefix("config.engine.") not in shared:
        return False, ONE_ENGINE_ONLY
    variable = key.removeprefix("config.engine.env.")
    if variable != key and any(fnmatchcase(variable, pattern) for pattern in _table()["harmless_env"]):
        return False, HARMLESS
    return next(
        ((matters, why) for pattern, matters, why in _table()["rules"] if fnmatchcase(key, pattern)), (False, "")
    )


def varied_keys(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys that one study varied on purpose between two of its runs; none across studies.

    A command that chooses two engine files compares what is in them: all settings of these engines, on as many cores unless both
    are of one engine, which is then compared with itself.
    """
    if baseline.get("study_id") is None or baseline.get("study_id") != candidate.get("study_id"):
        return ()
    ours, theirs = _overrides(baseline), _overrides(candidate)
    keys = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
    names = {mapping(mapping(one.get("config")).get("engine")).get("name") for one in (baseline, candidate)}
    own = ("cores",) if "engine" in keys and len(names) == 1 else ()
    return (*(key if "." in key else f"{key}.*" for key in keys), *own)


def _overrides(manifest: Mapping[str, Any]) -> dict[str, str]:
    words = manifest.get("overrides")
    pairs = [str(word).partition("=") for word in (words if isinstance(words, list | tuple) else ())]
    return {key.lstrip("+~").partition("@")[0]: value for key, equals, value in pairs if equals}


def _facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    facts = {key: value for part in COMPARED_PARTS for key, value in _flat(part, manifest.get(part)).items()}
    facts["weights"] = _weights_file(manifest)
    facts.update(_flat("weights", mapping(manifest.get("weights"))))
    facts["cores"] = _cores(manifest)
    facts["cold_start.shared"] = mapping(manifest.get("cold_start")).get("shared")
    return {key: value for key, value in facts.items() if value is not None}


def _cores(manifest: Mapping[str, Any]) -> int | None:
    """On how many cores an engine computes that was started here: on all of them, which is the default of engines, or on fewer by
    its threads and environment; None where that is unknown."""
    config, machine = mapping(manifest.get("config")), mapping(manifest.get("machine"))
    if mapping(config.get("launch")).get("name") not in ("process", "docker", "podman"):
        return None
    engine = mapping(config.get("engine"))
    threads, bound = (str(mapping(engine.get("env")).get(name) or "") for name in CORES_ENV)
    ranges = [re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()) for part in re.split("[,|]", bound)]
    limits = [machine.get("cpu_count"), machine.get("cpu_threads_usable"), engine.get("threads")]
    limits += [int(threads)] if threads.isdecimal() else []
    limits += [sum(int(one[2] or one[1]) - int(one[1]) + 1 for one in ranges if one)] if all(ranges) else []
    return min((one for one in limits if isinstance(one, int) and one > 0), default=None)


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
