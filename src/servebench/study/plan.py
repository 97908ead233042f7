"""The plan of a study: its runs, their folders, and what is stored before the first run starts."""

import uuid
from collections.abc import Sequence
from dataclasses import asdict

from servebench import __version__
from servebench.config import Job
from servebench.store.layout import slug
from servebench.store.plan import PlannedRun
from servebench.store.state import StudyState


def study_label(jobs: Sequence[Job]) -> str:
    """Return the part of a study's default name that says what it measures: engines and model."""
    engines = "-".join(dict.fromkeys(job.chosen("engine") for job in jobs))
    models = list(dict.fromkeys(job.settings.model.name.rsplit("/", 1)[-1] for job in jobs))
    return f"{engines}_{models[0] if len(models) == 1 else f'{len(models)}-models'}"


def planned_runs(jobs: Sequence[Job]) -> list[PlannedRun]:
    """Return the plan to store, from which the study can be resumed. A run's folder has its number, engine and workload."""
    return [
        PlannedRun(
            name=f"{index:02d}_{slug(job.chosen('engine'))}_{slug(job.chosen('workload'))}",
            overrides=job.overrides,
            config=job.resolved,
        )
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
        ticket=uuid.uuid4().hex,
    )


def resumed_state(before: StudyState) -> StudyState:
    """Return the state of a stored study that this process continues now."""
    kept = ("study_id", "words", "runs", "tracking", "launcher", "started_s")
    return StudyState(
        **{name: getattr(before, name) for name in kept}, servebench_version=__version__, ticket=uuid.uuid4().hex
    )
