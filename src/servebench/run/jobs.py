"""Compose the jobs of a command, or read the job of a stored manifest or plan."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from servebench.config import Job, compose_jobs, settings_from_dict
from servebench.config.arguments import LOCK_WORD
from servebench.registry.registry import Registry
from servebench.store.manifest import read_signed_manifest
from servebench.store.plan import PlannedRun, with_secrets
from servebench.util.errors import ConfigError


def jobs_of(words: Sequence[str], registry: Registry) -> list[Job]:
    """Return the jobs that the words describe, or the job in the manifest after `--lock`. Raises ConfigError, StoreError."""
    if LOCK_WORD not in words:
        return compose_jobs(words, registry)
    rest = [word for word in words if word != LOCK_WORD]
    if len(rest) != 1:
        raise ConfigError(
            f"run {LOCK_WORD} takes the path of one manifest.json and nothing else (got {' '.join(words)})"
        )
    manifest, origin = read_signed_manifest(Path(rest[0]))
    settings = settings_from_dict(manifest["config"], registry)
    # the stored name is that of the study that is repeated, and one run has no other to be decided from
    settings = replace(settings, study=replace(settings.study, name=None, until=None))
    config = {**manifest["config"], "study": {"dir": settings.study.dir, "name": None}}
    return [Job(tuple(manifest.get("overrides", ())), settings, config, doubt=origin.doubt, here=origin.here)]


def planned_job(plan: PlannedRun, registry: Registry) -> Job:
    """Return the job of a run of a stored plan, with secrets from the environment. Raises ConfigError."""
    config = with_secrets(plan.config, os.environ)
    return Job(plan.overrides, settings_from_dict(config, registry), config)
