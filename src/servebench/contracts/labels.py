"""Labels and colours of the runs of one view.

A label says what differs within its view (`vllm`, `vllm · rag_prefix`, `max_num_seqs=64`) and nothing else. The console, the
report, the dashboard and MLflow all use these.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servebench.contracts.stored import RunData, chosen, mapping
from servebench.util.short_id import short_id

SEPARATOR = " · "
HIDDEN_GROUPS = ("study", "tracking", "hydra", "telemetry")
"""Config groups that do not change what is measured."""
VALUE_MAX = 32
ENGINES = ("vllm", "sglang", "trtllm", "llamacpp", "hf_cpu", "tgi", "lmdeploy", "openai", "ollama", "mlx")
"""Engines with a fixed colour; variants such as `vllm_cpu` have that of the longest name that they begin with."""
COLOURS = 12
"""How many colour indices there are before they repeat."""


@dataclass(frozen=True, kw_only=True)
class LabelSource:
    """What the label of a run is made of. `overrides` are those of its job, `config` its resolved config."""

    key: str
    study: str
    engine: str
    workload: str = ""
    model: str = ""
    version: str = ""
    overrides: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunLabel:
    """How a run is called in one view. `series` is the label without the workload: what a line of a chart is called in the
    panel of its workload. `colour` is the index of the series' colour: the same in every view for a series that is an engine."""

    text: str
    series: str
    workload: str
    colour: int


def source_of(run: RunData) -> LabelSource:
    """Return what the label of a stored run is made of."""
    overrides = run.manifest.get("overrides")
    return LabelSource(
        key=run.run_id,
        study=run.study_id,
        engine=run.engine,
        workload=run.fact("workload") or "",
        model=(run.fact("model") or "").rstrip("/").rsplit("/", 1)[-1],
        version=run.fact("engine_version") or "",
        overrides=tuple(map(str, overrides)) if isinstance(overrides, (list, tuple)) else (),
        config=run.config,
    )


def source_of_job(key: str, study: str, overrides: Sequence[str], config: Mapping[str, Any]) -> LabelSource:
    """Return what the label of a planned run is made of."""
    names = {group: str(mapping(config.get(group)).get("name") or "") for group in ("engine", "workload", "model")}
    return LabelSource(
        key=key,
        study=study,
        engine=chosen(overrides, "engine", names["engine"] or key),
        workload=names["workload"],
        model=names["model"].rstrip("/").rsplit("/", 1)[-1],
        overrides=tuple(overrides),
        config=config,
    )


def run_labels(runs: Iterable[RunData]) -> dict[str, RunLabel]:
    """Return the labels of the stored runs of one view, by run id."""
    return labels_of([source_of(run) for run in runs])


def labels_of(sources: Sequence[LabelSource]) -> dict[str, RunLabel]:
    """Return the labels of the runs of one view, by key. Pure.

    Engine, workload and model are named where they differ. Runs that are alike in these are distinguished by the settings in
    which they differ, then by the engine's version, by their study's short id, and last by a number.
    """
    runs = list({one.key: one for one in sources}.values())
    # a run that failed early knows neither model nor workload: that is no difference
    several = {name: len({getattr(one, name) for one in runs} - {""}) > 1 for name in ("engine", "model", "workload")}
    extra = {one.key: [one.model] if several["model"] and one.model else [] for one in runs}
    for describe in (_settings, _versions):
        for group in _alike(runs, extra):
            for key, text in describe(group).items():
                extra[key] += [text] if text else []
    named = several["engine"] or not all(extra.values())
    series = {one.key: SEPARATOR.join([one.engine] * named + extra[one.key]) for one in runs}
    if any(len({one.study for one in group}) > 1 for group in _alike(runs, series)):
        series = {one.key: f"{short_id(one.study)} {series[one.key]}" for one in runs}
    for group in _alike(runs, series):
        series.update({one.key: f"{series[one.key]} ({number})" for number, one in enumerate(group, 1)})
    colours = _series_colours(runs, series)
    return {
        one.key: RunLabel(
            text=series[one.key] + (f"{SEPARATOR}{one.workload}" if several["workload"] and one.workload else ""),
            series=series[one.key],
            workload=one.workload,
            colour=colours[series[one.key]],
        )
        for one in runs
    }


def _alike(runs: Sequence[LabelSource], names: Mapping[str, Any]) -> list[list[LabelSource]]:
    groups: dict[tuple[str, ...], list[LabelSource]] = {}
    for one in runs:
        groups.setdefault((one.engine, one.workload, str(names[one.key])), []).append(one)
    return [group for group in groups.values() if len(group) > 1]


def _versions(group: Sequence[LabelSource]) -> dict[str, str]:
    return {one.key: one.version for one in group} if len({one.version for one in group}) > 1 else {}


def _settings(group: Sequence[LabelSource]) -> dict[str, str]:
    """The settings in which the runs of a group differ: those of their overrides, else of the engine's config."""
    overridden = {word.partition("=")[0].lstrip("+~").partition("@")[0] for one in group for word in one.overrides}
    keys = [key for key in sorted(overridden) if key.partition(".")[0] not in (*HIDDEN_GROUPS, "engine")]
    keys += [key for key in sorted(overridden) if key.startswith("engine.")]
    for candidates in (keys, sorted({key for one in group for key in _leaves("engine", one.config.get("engine"))})):
        values = {key: [_value(one, key) for one in group] for key in candidates}
        varied = [key for key in candidates if len(set(values[key])) > 1]
        if varied:
            leaves = [key.rpartition(".")[2] for key in varied]
            names = [leaf if leaves.count(leaf) == 1 else key for key, leaf in zip(varied, leaves, strict=True)]
            shown = {name: _cut_apart(values[key]) for name, key in zip(names, varied, strict=True)}
            return {
                one.key: SEPARATOR.join(f"{name}={texts[index]}" for name, texts in shown.items())
                for index, one in enumerate(group)
            }
    return {}


def _leaves(prefix: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [leaf for name, item in value.items() for leaf in _leaves(f"{prefix}.{name}", item)]
    return [prefix]


def _value(one: LabelSource, key: str) -> str:
    """What a run has for a key of its overrides, a group's option or a setting, as its label shows it."""
    value: Any = one.config
    if "." not in key:
        return chosen(one.overrides, key, str(mapping(value.get(key)).get("name", "default")))
    for part in key.split("."):
        value = mapping(value).get(part)
    # null leaves a setting of an engine to the engine; elsewhere it means none
    return "null" if value is None and not key.startswith("engine.") else setting_text(value)


def setting_text(value: Any) -> str:
    """Return a value of a stored config as a label shows it: as a config file has it, without nulls, and `default` for null."""
    if isinstance(value, Mapping):
        known = {name: item for name, item in value.items() if item is not None}
        if known.keys() == {"kind", "min", "max"} and known["kind"] == "uniform":
            return f"{known['min']}..{known['max']}"
        return "{" + ",".join(f"{name}:{setting_text(item)}" for name, item in known.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(setting_text, value)) + "]"
    return "default" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _cut_apart(texts: Sequence[str]) -> list[str]:
    """Return long texts cut to VALUE_MAX, whole where they differ behind it only."""
    cut = [text if len(text) <= VALUE_MAX else f"{text[: VALUE_MAX - 1]}…" for text in texts]
    return cut if len(set(cut)) == len(set(texts)) else list(texts)


def _series_colours(runs: Sequence[LabelSource], series: Mapping[str, str]) -> dict[str, int]:
    """A colour index for each series: an engine's first series has the engine's colour, the others the next free ones."""
    engines = engine_colours(one.engine for one in runs)
    found: dict[str, int] = {}
    for one in runs:
        name, first = series[one.key], engines[one.engine]
        if name not in found:
            found[name] = first if first not in found.values() else _free({*engines.values(), *found.values()}, first)
    return found


def engine_colours(engines: Iterable[str]) -> dict[str, int]:
    """Return a colour index for each engine of a view: no two the same, and the same in every view unless two collide."""
    found: dict[str, int] = {}
    for name in sorted(set(engines), key=lambda name: (name not in ENGINES, name)):
        family = max((known for known in ENGINES if name.startswith(known)), key=len, default=None)
        digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        found[name] = _free(set(found.values()), ENGINES.index(family) if family else digest % COLOURS)
    return found


def _free(taken: set[int], wanted: int) -> int:
    around = ((wanted + step) % COLOURS for step in range(COLOURS))
    return next((index for index in around if index not in taken), max(taken, default=0) + 1)
