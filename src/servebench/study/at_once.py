"""Which runs of a study may have their engines alive at once, so that the load can go from one to the other (`study.slices`)."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from servebench.analysis.decided import same_question
from servebench.cluster.orders import gpus_needed, visible_gpus
from servebench.config import Job
from servebench.contracts.engine import GPUS_VARIABLE
from servebench.contracts.settings import RunSettings
from servebench.contracts.turns import Turn
from servebench.registry.registry import Registry
from servebench.store.manifest import capture_machine
from servebench.util.addresses import is_loopback
from servebench.util.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """The place of a run in a group of those whose engines are alive at once. `gpus` are those of each place; empty: none."""

    group: int
    place: int
    gpus: tuple[tuple[str, ...], ...] = ()


def check_slices(jobs: Sequence[Job], registry: Registry, *, cluster: bool) -> None:
    """Check that a study with `study.slices=always` can have its engines alive at once. Raises ConfigError with one line."""
    wanted = [job for job in jobs if job.settings.study.slices == "always"]
    if not wanted:
        return
    if cluster:
        raise ConfigError("study.slices=always: on a cluster each engine has a machine of its own; leave it out")
    for group in questions(wanted):
        if (why := why_alone(group, registry)) is not None:
            raise ConfigError(f"study.slices=always: {why}; leave it out, or set study.slices=auto")


def places_at_once(jobs: Mapping[str, Job], registry: Registry, *, several: bool = False) -> dict[str, Place]:
    """Return the place of each run, by its name, whose engine is alive at once with others; the others are left out. `several`:
    each is started several times, whatever its settings say so far."""
    found: dict[str, Place] = {}
    for number, group in enumerate(questions(list(jobs.values()))):
        study = group[0].settings.study
        wanted = study.slices == "always" or (
            study.slices == "auto"
            and (several or study.most_starts > 1)
            and not any(registry.launcher(one.settings.launch.name).simulated for one in group)
        )
        if wanted and why_alone(group, registry) is None:
            gpus = _gpus_of_places(group, registry)
            names = [name for name, job in jobs.items() if any(job is one for one in group)]
            found |= {name: Place(number, place, gpus) for place, name in enumerate(names)}
    return found


def at_once(turn: Turn, places: Mapping[str, Place]) -> Turn:
    """Return a turn with the mark of those that are executed with it. From start to start the engines change their GPUs, so that
    none has the better one."""
    own = places.get(turn.run)
    if own is None or not turn.measures:
        return turn
    start = turn.start or 0
    gpus = own.gpus[(own.place + start) % len(own.gpus)] if own.gpus else ()
    return replace(turn, at_once=f"{own.group}/{start}", gpus=gpus)


def why_alone(jobs: Sequence[Job], registry: Registry) -> str | None:
    """Return why the engines of these runs cannot be alive and loaded in turns; None if they can, as far as that is known before
    they start."""
    settings = [job.settings for job in jobs]
    if len(jobs) < 2:
        return "there is no other run with the same model and workload"
    if any(one.load != settings[0].load for one in settings):
        return "the runs differ in their load"
    load = settings[0].load
    if not load.concurrency or load.ramp is not None:
        return "only a closed loop (load.concurrency), without a ramp, can pause"
    places = [_places(one) for one in settings]
    if why := next(filter(None, (_why_of(one, registry) for one in settings)), None):
        return why
    if len(set().union(*places)) < sum(map(len, places)):
        return "two of the engines have the same address"
    return _why_of_gpus(jobs, registry)


def _why_of(settings: RunSettings, registry: Registry) -> str | None:
    if settings.load.while_growing and settings.study.most_starts == 1:
        return "load.while_growing ends the levels of each engine on its own"
    launcher = registry.launcher(settings.launch.name)
    if not launcher.local:
        host = urlsplit(getattr(settings.launch, "base_url", None) or "").hostname
        return f"the server at {host} shares this machine with the client" if is_loopback(host) else None
    if launcher.emulated:
        return None
    if not launcher.needs_executable:
        return f"with launch={launcher.name} nothing says what an engine does without load"
    return None


def _why_of_gpus(jobs: Sequence[Job], registry: Registry) -> str | None:
    counts = [gpus_needed(job.settings, registry.launcher(job.settings.launch.name)) for job in jobs]
    if not any(counts):
        return None
    if len(set(counts)) > 1:
        return "the engines need different numbers of GPUs"
    if any(GPUS_VARIABLE in job.settings.engine.env for job in jobs):
        return f"engine.env.{GPUS_VARIABLE} gives out the GPUs"
    here = len(_gpus_here())
    return None if sum(counts) <= here else f"the engines need {sum(counts)} GPUs, and this machine has {here}"


def _gpus_of_places(jobs: Sequence[Job], registry: Registry) -> tuple[tuple[str, ...], ...]:
    count = gpus_needed(jobs[0].settings, registry.launcher(jobs[0].settings.launch.name))
    gpus = _gpus_here() if count else []
    return tuple(tuple(gpus[place * count : (place + 1) * count]) for place in range(len(jobs))) if count else ()


def _gpus_here() -> list[str]:
    return visible_gpus(capture_machine(), os.environ.get(GPUS_VARIABLE))


def _places(settings: RunSettings) -> set[object]:
    """What only one engine can have: its fixed port, or its address."""
    url = getattr(settings.launch, "base_url", None)
    return {one for one in (url, settings.engine.port, settings.engine.spans_listener[1]) if one}


def questions(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return the jobs in groups with the same model and workload."""
    found: list[list[Job]] = []
    for job in jobs:
        group = next((one for one in found if same_question(one[0].resolved, job.resolved)), None)
        if group is None:
            found.append([job])
        else:
            group.append(job)
    return found
