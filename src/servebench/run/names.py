"""Names of a run: its title, and the names of its engine and workload."""

from typing import Literal

from servebench.config import Job
from servebench.contracts.stored import chosen


def title_of(job: Job) -> str:
    """Return a run's title: engine, launch if it is not `process`, model and workload."""
    settings = job.settings
    launch = "" if settings.launch.name == "process" else f" ({settings.launch.name})"
    return f"{chosen_name(job, 'engine')}{launch} · {settings.model.name} · {chosen_name(job, 'workload')}"


def chosen_name(job: Job, group: Literal["engine", "workload"]) -> str:
    """Return the chosen option of a config group, which differs between two config files for the same engine or workload."""
    return chosen(job.overrides, group, getattr(job.settings, group).name)
