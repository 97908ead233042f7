"""Names of a run: its title, and the names of its engine and workload."""

from __future__ import annotations

from typing import Literal

from servebench.config import Job
from servebench.contracts.stored import chosen


def title_of(job: Job) -> str:
    """What a run is called: engine, model, workload, and where it differs, launch."""
    settings = job.settings
    launch = "" if settings.launch.name == "process" else f" ({settings.launch.name})"
    return f"{chosen_name(job, 'engine')}{launch} · {settings.model.name} · {chosen_name(job, 'workload')}"


def chosen_name(job: Job, group: Literal["engine", "workload"]) -> str:
    """What was chosen, so that two files of the user's own for one engine or workload are told apart."""
    return chosen(job.overrides, group, getattr(job.settings, group).name)
