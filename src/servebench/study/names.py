"""Names of a study and of the folders of its runs."""

from __future__ import annotations

from collections.abc import Sequence

from servebench.config import Job
from servebench.run.names import chosen_name


def run_name(index: int, job: Job) -> str:
    """A run's folder: its number and what it is."""
    from servebench.store.layout import slug

    return f"{index:02d}_{slug(chosen_name(job, 'engine'))}_{slug(chosen_name(job, 'workload'))}"


def _what(jobs: Sequence[Job]) -> str:
    engines = "-".join(dict.fromkeys(chosen_name(job, "engine") for job in jobs))
    models = list(dict.fromkeys(job.settings.model.name.rsplit("/", 1)[-1] for job in jobs))
    return f"{engines}_{models[0] if len(models) == 1 else f'{len(models)}-models'}"
