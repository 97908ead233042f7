"""The plan of a study: its runs, their folders, and what is stored before the first run starts."""

import uuid
from collections.abc import Sequence
from dataclasses import asdict

from servebench import __version__
from servebench.config import Job
from servebench.run.names import chosen_name
from servebench.store import PlannedRun, StudyState
from servebench.store.layout import slug


def run_name(index: int, job: Job) -> str:
    """Return the name of a run's folder: its number, engine and workload."""
    return f"{index:02d}_{slug(chosen_name(job, 'engine'))}_{slug(chosen_name(job, 'workload'))}"


def study_label(jobs: Sequence[Job]) -> str:
    """Return the part of a study's default name that says what it measures: engines and model."""
    engines = "-".join(dict.fromkeys(chosen_name(job, "engine") for job in jobs))
    models = list(dict.fromkeys(job.settings.model.name.rsplit("/", 1)[-1] for job in jobs))
    return f"{engines}_{models[0] if len(models) == 1 else f'{len(models)}-models'}"


def new_ticket() -> str:
    """Return an id for the orders of this command; orders with another ticket are refused."""
    return uuid.uuid4().hex


def planned_runs(jobs: Sequence[Job]) -> list[PlannedRun]:
    """Return the plan to store, from which the study can be resumed."""
    return [
        PlannedRun(name=run_name(index, job), overrides=job.overrides, config=job.resolved)
        for index, job in enumerate(jobs)
    ]


def new_state(study_id: str, words: Sequence[str], jobs: Sequence[Job], plan: Sequence[PlannedRun]) -> StudyState:
    """Return the state of a study that starts now. All jobs of a study share tracking and cluster."""
    tracking, cluster = jobs[0].settings.tracking, jobs[0].launcher
    return StudyState(
        study_id=study_id,
        words=tuple(words),
        runs=tuple(run.name for run in plan),
        servebench_version=__version__,
        tracking={"name": tracking.name, "experiment": tracking.experiment, "uri": tracking.uri},
        launcher=asdict(cluster) if cluster is not None else {},
        ticket=new_ticket(),
    )


def resumed_state(before: StudyState) -> StudyState:
    """Return the state of a stored study that this process continues now."""
    return StudyState(
        study_id=before.study_id,
        words=before.words,
        runs=before.runs,
        servebench_version=__version__,
        tracking=before.tracking,
        started_s=before.started_s,
        launcher=before.launcher,
        ticket=new_ticket(),
    )
