"""The jobs of a command or of a stored plan, and their checks before anything starts."""

import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from servebench.config import Job, compose_jobs, settings_from_dict
from servebench.config.overrides import LOCK_WORD
from servebench.contracts.engine import Engine, Launcher, RunningEngine
from servebench.contracts.events import Doing, Events, Said
from servebench.contracts.request import Request
from servebench.contracts.settings import RunSettings
from servebench.engine.adapters.flags import flag_name
from servebench.engine.pool import Found, launch_context, same_server
from servebench.engine.supervisor.ports import describe_owner, free_port, port_problem
from servebench.engine.tokenize import EmulatedTokenizer, tokenizer_guesses
from servebench.load.coordinator.drive import worker_count
from servebench.load.plan.traces import trace_errors
from servebench.registry.registry import Registry
from servebench.run.fits import fit_faults
from servebench.run.grading import NONE, select_scorers
from servebench.store.manifest import read_signed_manifest
from servebench.store.plan import PlannedRun, with_secrets
from servebench.util.cache import cache_folder
from servebench.util.errors import ConfigError, EngineError, PreflightError, ServebenchError
from servebench.util.processes import usable_cpus
from servebench.util.secret_patterns import secret_name
from servebench.workload.build.lengths import with_shortest_lengths

DESCRIPTORS_SPARE = 40
"""File descriptors of a worker besides its streams: spool, pipes, poller, and those of Python."""

TRIAL_REQUESTS = 8
"""Requests that are made before an engine starts, to see whether its workload can make any."""
TRIAL = "trial"


def check_jobs(jobs: Sequence[Job], registry: Registry, *, here: bool = True) -> None:
    """Check whether engines, launchers, workloads and scorers can run these jobs. Raises PreflightError with all faults, and
    ConfigError where only words, files or lengths are wrong, on which a machine has no influence.

    Without `here` the runs execute on other machines, so nothing of this machine is checked.
    """
    faults: list[str] = []
    wrong: list[str] = []
    tried: list[object] = []
    for job in jobs:
        settings = job.settings
        engine = registry.engine(settings.engine.name)
        port_of = free_port if here else lambda _, port=engine.default_port: port
        try:
            context = launch_context(settings, cache_folder(), port_of)
        except EngineError as error:
            faults.append(str(error))
            continue
        launcher = registry.launcher(settings.launch.name)
        if launcher.needs_executable and here:
            faults += _said(f"engine={engine.name}", engine.check, context)
        elif launcher.local:
            faults += _said(f"engine={engine.name}", engine.unsupported_settings, context)
        if launcher.simulated:
            wrong += simulation_faults(settings, registry)
        faults += timings_faults(settings, engine, launcher, here=here)
        faults += fit_faults(settings, engine, context, launcher, here=here)
        if here:
            # of a server that is already running only words and variables can be wrong
            of_launch = _said(f"launch={settings.launch.name}", launcher.check, engine, context, settings.launch)
            (faults if launcher.local else wrong).extend(of_launch)
            if launcher.local and not launcher.emulated:
                faults += flag_faults(settings)
            faults += descriptor_faults(settings)
            wrong += trace_errors(settings.load)
        needed = (settings.workload, settings.load.replay, settings.model, settings.launch.name)
        if needed not in tried:
            tried.append(needed)
            try:
                wrong += workload_faults(settings, registry, launcher, here=here)
            except ConfigError as error:
                wrong += error.faults
    graded = {(job.settings.quality, job.settings.workload.name): job.settings for job in jobs} if here else {}
    for settings in graded.values():
        try:
            select_scorers(settings, registry, cache_folder())
        except ConfigError as error:
            # without a file of the user it is a package, a sandbox or the network that is missing
            (wrong if settings.quality.path else faults).extend(error.faults)
    if faults or wrong:
        said = list(dict.fromkeys([*faults, *wrong]))
        raise PreflightError("\n".join(said)) if faults else ConfigError(said)


def _said(what: str, check: Callable[..., Sequence[str]], *of: object) -> list[str]:
    """Return the faults that a check of `what` finds; a plugin's defect is one of them. Raises what servebench raises."""
    try:
        return list(check(*of))
    except ServebenchError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's
        return [f"{what}: its check ends with {type(error).__name__}: {error}; this is a defect of its plugin"]


def find_servers(jobs: Sequence[Job], registry: Registry, events: Events) -> Found:
    """Return the running servers that these jobs measure, each asked once. Raises EngineError with a line for each that cannot be
    measured."""
    found: list[tuple[RunSettings, RunningEngine]] = []
    faults: dict[str, EngineError] = {}
    asked: list[RunSettings] = []
    for job in jobs:
        if not any(same_server(job.settings, one) for one in asked):
            asked.append(job.settings)
    for settings in asked:
        launcher = registry.launcher(settings.launch.name)
        events(Doing("finding_server"))
        engine = registry.engine(settings.engine.name)
        try:
            context = launch_context(settings, cache_folder())
            server = launcher.find(engine, context, settings.launch, say=lambda text: events(Said(text, detail=True)))
        except EngineError as error:
            faults.setdefault(str(error), error)
        else:
            found += [] if server is None else [(settings, server)]
    if faults:
        raise EngineError("\n".join(faults), kind=next(iter(faults.values())).kind)
    return found


def workload_faults(settings: RunSettings, registry: Registry, launcher: Launcher, *, here: bool) -> list[str]:
    """Return what the workload reports of its settings, and what of its shortest requests cannot be served. Raises ConfigError
    where these cannot be made, or `model.tokenizer` cannot be read.

    Where the tokenizer is known only from the running engine, a request must be impossible for each of several guesses.
    """
    kind = registry.find("workload", settings.workload.name)
    if (faults := _said(f"workload={settings.workload.name}", kind(settings.workload).check)) or not here:
        return faults
    shortest = kind(with_shortest_lengths(settings.workload))
    impossible: ConfigError | None = None
    guesses = [EmulatedTokenizer()] if launcher.simulated else tokenizer_guesses(settings.model)
    for tokenizer in guesses:
        try:
            made = shortest.requests(TRIAL_REQUESTS, stream=TRIAL, tokenizer=tokenizer)
        except ConfigError as error:
            impossible = error
        else:
            faults = no_arrivals(settings) if any(one.arrival_s is None for one in made) else []
            return [*faults, *(too_long(settings, made) if launcher.emulated else [])]
    if impossible is not None:
        raise impossible
    return []


def notes_of(jobs: Sequence[Job], registry: Registry) -> list[str]:
    """Return what users should know of the data of these jobs' workloads, each line once. Raises ConfigError."""
    workloads = [registry.find("workload", job.settings.workload.name)(job.settings.workload) for job in jobs]
    return list(dict.fromkeys(note for workload in workloads for note in workload.notes()))


def too_long(settings: RunSettings, made: Sequence[Request]) -> list[str]:
    """Return an error if none of these requests fits the context of an imitated engine."""
    limit = settings.engine.max_model_len or settings.model.context_length
    least = min((one.prompt_tokens or 1) + one.output_tokens for one in made)
    if limit is None or least <= limit:
        return []
    key = "engine.max_model_len" if settings.engine.max_model_len else "model.context_length"
    return [
        f"workload={settings.workload.name}: its requests have {least} tokens or more and do not fit {key}={limit}; lower "
        "workload.input_tokens and workload.output_tokens, or workload.length_scale of a trace"
    ]


def no_arrivals(settings: RunSettings) -> list[str]:
    """Return an error if arrival times are wanted of a workload that has none."""
    replay, workload = settings.load.replay, settings.workload.name
    if replay is None or replay.path is not None:
        return []
    return [
        f"load=replay: workload={workload} has no arrival times; use workload=trace, or set load.replay.path to a file"
    ]


def timings_faults(settings: RunSettings, engine: Engine, launcher: Launcher, *, here: bool) -> list[str]:
    """Return an error for a source of request timings that the engine lacks, or spans that cannot be received."""
    source, (host, port) = settings.engine.request_timings, settings.engine.spans_listener
    fault = None
    # elsewhere they are on another machine, or in a container
    writes_here = launcher.local and (launcher.needs_executable or launcher.emulated)
    # a server that was started elsewhere may send spans though its adapter has no flags for them
    if not isinstance(source, bool) and source not in engine.timings_sources and (source != "spans" or launcher.local):
        known = ", ".join((*engine.timings_sources, "true or false"))
        fault = f"{engine.name} has no such times; use {known}"
    elif source == "after_load" and engine.timings_in_files and not writes_here:
        fault = (
            f"{engine.name} writes them to files, which only launch=process has on this machine; use launch=process, "
            "spans, true or false"
        )
    elif source == "spans" and launcher.simulated:
        fault = "launch=simulated has no server that sends spans; use launch=emulated, or true"
    elif source == "spans" and port == 0 and not launcher.local:
        fault = (
            "engine.spans_address needs the port to which the running server sends its spans, such as 127.0.0.1:4318"
        )
    elif source == "spans" and here and port and port_problem(host, port) is not None:
        fault = (
            f"cannot listen at engine.spans_address={host}:{port}, which is in use{describe_owner(port)} or no address of this "
            "machine; choose another one (port 0: any free one, for an engine that servebench starts)"
        )
    return [] if fault is None else [f"engine.request_timings={source}: {fault}"]


def simulation_faults(settings: RunSettings, registry: Registry) -> list[str]:
    """Return an error for questions, which need a server that a simulated run does not have."""
    name = settings.quality.name
    scorer = registry.kinds["quality"].get(name)
    if name == NONE or (scorer is not None and scorer.grades_load):
        return []
    return [f"quality={name}: launch=simulated has no server that could be asked; use launch=emulated, or quality=none"]


def descriptor_faults(settings: RunSettings) -> list[str]:
    """Return a fault if a level needs more file descriptors than a process may open here."""
    load = settings.load
    most = max([*(load.concurrency or ()), load.max_concurrency or 0])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not most or hard == resource.RLIM_INFINITY:
        return []
    workers = worker_count(load.workers, in_flight=most, rate_req_s=None, cores=len(usable_cpus()))
    if -(-most // workers) + DESCRIPTORS_SPARE <= hard:
        return []
    return [
        f"load.concurrency={most}: each stream needs a file descriptor, and a process may open {hard} (ulimit -Hn); "
        "raise the limit, lower the concurrency, or raise load.workers"
    ]


OWN_FLAGS = {"host": "engine.host", "port": "engine.port", "served-model-name": "model.name"}
"""Flags by which servebench finds the server and its model, and the keys that set them."""


def flag_faults(settings: RunSettings) -> list[str]:
    """Return an error for each flag in `engine.extra_args` with a secret, which every user of this machine could read, and for
    each with which servebench would look for the server in vain."""
    given = settings.engine.extra_args
    return [
        f"engine.extra_args.{name}: all users of this machine could read this secret in the process list; set it as a "
        "variable with engine.env.NAME=..., or leave it out, because servebench connects over loopback"
        for name, value in given.items()
        if secret_name(name.strip("-")) and value not in (None, "", True, False)
    ] + [
        f"engine.extra_args.{name}={value}: servebench sets this flag; set {OWN_FLAGS[flag_name(name)]} instead"
        for name, value in given.items()
        if flag_name(name) in OWN_FLAGS
    ]


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
