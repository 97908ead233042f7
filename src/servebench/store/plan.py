"""The plan of a study, written before anything starts: its runs with their whole configs, so that an edited YAML changes
nothing and a study can be resumed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servebench.contracts.labels import labels_of, source_of_job
from servebench.contracts.results import SCHEMA_VERSION
from servebench.store.files import object_in, of_this_version, read_stored, validated, write_text
from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.manifest import read_manifest
from servebench.store.seal import sha256
from servebench.util.errors import ConfigError, StoreError
from servebench.util.redaction import redact
from servebench.util.secret_patterns import MARK


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of the plan: its folder's name, the overrides of its job as written, and its resolved config."""

    name: str
    overrides: tuple[str, ...]
    config: Mapping[str, Any]


@dataclass(frozen=True)
class _Plan:
    runs: tuple[PlannedRun, ...]


def write_plan(folder: StudyFolder, runs: Sequence[PlannedRun]) -> str:
    """Write `plan.json`, without secrets, and return its SHA-256. Raises StoreError."""
    plan = {
        "schema_version": SCHEMA_VERSION,
        "runs": [{"name": run.name, "overrides": list(run.overrides), "config": run.config} for run in runs],
    }
    text = json.dumps(redact(json.loads(json.dumps(plan, default=str))), indent=2) + "\n"
    write_text(folder.plan, text)
    return sha256(text.encode())


def read_plan(folder: StudyFolder) -> tuple[PlannedRun, ...]:
    """Return the plan as it was written: secrets stand in it as `[redacted]`. Raises StoreError."""
    return read_plan_digest(folder)[0]


def read_plan_digest(folder: StudyFolder) -> tuple[tuple[PlannedRun, ...], str]:
    """Return the plan and the SHA-256 of the bytes that it was read from. Raises StoreError."""
    try:
        data = read_stored(folder.plan)
    except FileNotFoundError as error:
        raise StoreError(f"{folder.path} has no {folder.plan.name}: run the study's command again") from error
    plan = of_this_version(object_in(data, folder.plan), folder.plan)
    runs = validated(_Plan, plan, folder.plan).runs
    for run in runs:
        folder.run(run.name)
    return runs, sha256(data)


def planned_labels(folder: StudyFolder) -> dict[str, str]:
    """Return what the runs of a study are called in it, by name; nothing for a study without a readable plan."""
    try:
        plan = read_plan(folder)
    except StoreError:
        return {}
    labels = labels_of([source_of_job(run.name, folder.name, run.overrides, run.config) for run in plan])
    return {name: label.text for name, label in labels.items()}


def manifest_plan(run: RunFolder) -> PlannedRun:
    """Return a run as its own manifest describes it. Raises StoreError."""
    manifest = read_manifest(run.manifest)
    return PlannedRun(name=run.name, overrides=tuple(manifest.get("overrides", ())), config={**manifest["config"]})


def with_secrets(config: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return a planned config with the secrets that were taken out of it: values of `engine.env` come from variables of the
    same name. Raises ConfigError for each that is not there."""
    full: dict[str, Any] = json.loads(json.dumps(config))
    faults = []
    for path, holder, key in _marked(full, ""):
        from_environ = path.startswith("engine.env.")
        if from_environ and key in environ:
            holder[key] = environ[key]
        else:
            remedy = f"export {key} to resume the study" if from_environ else "run the study's command again instead"
            faults.append(f"{path} was taken out of the plan, for it is a secret; {remedy}")
    if faults:
        raise ConfigError(faults)
    return full


def _marked(value: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """Where a secret was taken out: the dotted path, and what holds it under which key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        path = f"{prefix}{key}"
        if isinstance(item, str) and MARK in item:
            yield path, value, key
        else:
            yield from _marked(item, f"{path}.")
