"""Compose the jobs of a command, or read the job of a stored manifest."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from servebench.config import Job, compose_jobs, settings_from_dict
from servebench.registry.registry import Registry
from servebench.store import read_manifest
from servebench.util.errors import ConfigError

LOCK_WORD = "--lock"


def jobs_of(words: Sequence[str], registry: Registry) -> list[Job]:
    """Return the jobs that the words describe, or the job in the manifest after `--lock`. Raises ConfigError, StoreError."""
    if LOCK_WORD not in words:
        return compose_jobs(words, registry)
    rest = [word for word in words if word != LOCK_WORD]
    if len(rest) != 1:
        raise ConfigError(
            f"run {LOCK_WORD} takes the path of one manifest.json and nothing else (got {' '.join(words)})"
        )
    manifest = read_manifest(Path(rest[0]))
    settings = settings_from_dict(manifest["config"], registry)
    # the stored name is that of the study that is repeated
    settings = replace(settings, study=replace(settings.study, name=None))
    return [
        Job(
            tuple(manifest.get("overrides", ())),
            settings,
            {**manifest["config"], "study": {"dir": settings.study.dir, "name": None}},
        )
    ]
