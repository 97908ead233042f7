"""What a tune does before anything starts: its stock jobs, its candidates, and the files from which it can be resumed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from servebench.analysis.tuning.candidates import (
    CandidateList,
    distance_from_stock,
    free_parameters,
    make_candidates,
    override_words,
    rule_candidates,
    take_backs,
    with_settings,
)
from servebench.analysis.tuning.ledger import BLOCKS_MAX, STARTS_MAX, RaceEntrant
from servebench.config import Job, compose_jobs, settings_from_dict
from servebench.config.overrides import parse_arguments
from servebench.config.tune_space import (
    TuneSpace,
    load_recipes,
    load_space,
    override_value,
    parse_question,
    split_words,
)
from servebench.contracts.events import Listen, unheard
from servebench.contracts.tuning import MAX_LOAD, Candidate, RefusedCandidate, TuneQuestion
from servebench.protocol.kinds.table import kind_named
from servebench.registry.registry import Registry
from servebench.run.preflight import check_jobs
from servebench.store.layout import slug
from servebench.store.plan import PlannedRun
from servebench.store.tune import TuneState
from servebench.study.at_once import check_slices, places_at_once
from servebench.study.study import check_study
from servebench.util.errors import ConfigError, PreflightError

GUARD_ITEMS = 32
"""With how many prompts the answers are compared with those of stock, unless `quality=` names another test."""


@dataclass(frozen=True, kw_only=True)
class TunePlan:
    """The stock job of each engine, all planned runs, and the state to store."""

    jobs: tuple[Job, ...]
    runs: tuple[PlannedRun, ...]
    state: TuneState


def plan_tune(words: Sequence[str], registry: Registry, listen: Listen = unheard) -> TunePlan:
    """Return what the words of `servebench tune` ask for. Raises ConfigError, PreflightError."""
    own, rest = split_words(words)
    question = _anchored(parse_question(own))
    composed = compose_jobs([*rest, *([] if {"-m", "--multirun"} & set(rest) else ["-m"])], registry)
    _check_composed(composed, question)
    levels = _levels(composed[0], question)
    jobs = tuple(_stock_job(job, levels, registry) for job in composed)
    cluster = composed[0].launcher
    check_study(jobs, cluster, registry, listen)
    found = [_candidates(job, question, rest, registry, count=max(2, question.count // len(jobs))) for job in jobs]
    quality = _quality_config(composed[0], rest, registry)
    stored: list[Candidate] = []
    runs: list[PlannedRun] = []
    refused = [one for each in found for one in each.refused]
    arms: list[Job] = []
    for job, candidate in _in_turns(jobs, found):
        made = _checked_job(job, candidate, registry, here=cluster is None)
        if isinstance(made, str):
            refused.append(RefusedCandidate(candidate=candidate, why=made))
            continue
        arms.append(made)
        stored.append(_named(len(stored), candidate))
        runs.append(PlannedRun(name=stored[-1].run, overrides=made.overrides, config=made.resolved))
    state = TuneState(
        question=question,
        levels=levels,
        candidates=tuple(stored),
        refused=tuple(refused),
        spaces=tuple(str(Path(each.space.file).absolute()) for each in found),
        space_size=sum(each.size for each in found),
        quality=quality,
        slices=_take_turns(arms[: question.finalists + 1], question, registry, cluster=cluster is not None),
    )
    return TunePlan(jobs=jobs, runs=tuple(runs), state=state)


def _take_turns(arms: Sequence[Job], question: TuneQuestion, registry: Registry, *, cluster: bool) -> bool:
    """Return whether engines like those of the first candidates may take turns in the finals. Raises ConfigError where they must
    and cannot."""
    check_slices(arms, registry, cluster=cluster)
    places = places_at_once({str(number): job for number, job in enumerate(arms)}, registry)
    return bool(places) and not cluster and question.objective != MAX_LOAD


def _anchored(question: TuneQuestion) -> TuneQuestion:
    """Return the question with full paths: a tune may be continued in another folder. Raises ConfigError."""
    paths: dict[str, Any] = {name: getattr(question, name) for name in ("space", "candidates", "out")}
    try:
        paths = {name: str(Path(path).expanduser().absolute()) for name, path in paths.items() if path is not None}
    except RuntimeError as error:
        raise ConfigError(
            "tune.space, tune.candidates or tune.out: this home folder does not exist; give a path"
        ) from error
    return replace(question, **paths)


def _in_turns(jobs: Sequence[Job], found: Sequence[CandidateList]) -> Iterator[tuple[Job, Candidate]]:
    """Yield the candidates of all engines in turns, the stock settings first, so that no engine is left without budget. They
    are named by the engine's option, of which two may be for one engine."""
    for row in zip_longest(*(each.candidates for each in found)):
        for job, candidate in zip(jobs, row, strict=True):
            if candidate is not None:
                option = job.chosen("engine")
                name = f"{option} {candidate.name}" if len(jobs) > 1 else candidate.name
                yield job, replace(candidate, engine=option, name=name)


def _check_composed(jobs: Sequence[Job], question: TuneQuestion) -> None:
    first = jobs[0].settings
    engines = [job.chosen("engine") for job in jobs]
    faults = []
    if len(set(engines)) < len(jobs):
        faults.append("a tune compares the settings of engines, so only engine= may have several values")
    for job in jobs:
        settings = job.settings
        if settings.launch.name == "attach":
            faults.append("launch=attach: servebench cannot change the settings of a server that it does not start")
        if settings.study.until is not None or settings.study.most_starts > 1:
            faults.append(
                "study.starts and study.until have no meaning in a tune: it decides how many starts each candidate has"
            )
        if settings.load.search is not None or settings.load.replay is not None:
            faults.append(f"load={settings.load.name}: a tune measures at fixed levels, such as load.concurrency=[32]")
        if settings.load.while_growing and question.levels is None and question.objective != MAX_LOAD:
            faults.append(
                f"load={settings.load.name}: the best settings depend on the load; give yours, such as load.concurrency=[64] "
                "(or tune.levels=[64])"
            )
        if question.objective == MAX_LOAD and settings.study.slices == "always":
            faults.append(
                "study.slices=always: tune.objective=max_load measures only the levels that it needs; leave one of them out"
            )
        if not settings.engine.reuse:
            faults.append("engine.reuse=false would start the engine for each block; leave it out")
    if question.objective in ("goodput", MAX_LOAD) and not first.slo.limited:
        faults.append(
            "tune.objective=goodput needs limits: choose slo=interactive, or set slo.ttft_ms, slo.tpot_ms or slo.e2e_ms"
        )
    if question.objective == "cost_usd_per_mtok" and first.gpu.price_usd_per_hour is None:
        faults.append("tune.objective=cost_usd_per_mtok needs gpu.price_usd_per_hour")
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))


def _levels(job: Job, question: TuneQuestion) -> tuple[float, ...]:
    """Return the levels at which the objective counts, busiest first: the busiest of `load` unless the question names some."""
    load = job.settings.load
    of_load = load.concurrency or load.rate or ()
    ladder = question.objective == MAX_LOAD
    chosen = question.levels or (tuple(of_load) if ladder else (max(of_load),))
    if ladder and len(set(chosen)) < 2:
        raise ConfigError("tune.objective=max_load needs several levels, such as load.concurrency=[8,16,32,64]")
    if load.concurrency and any(one != int(one) for one in chosen):
        raise ConfigError(f"tune.levels={list(chosen)}: a concurrency is a whole number")
    return tuple(sorted(set(chosen), reverse=True))


def _stock_job(job: Job, levels: Sequence[float], registry: Registry) -> Job:
    """Return a job of which every block is a repeat of the levels, and nothing else is measured."""
    load = job.settings.load
    of = "concurrency" if load.concurrency else "rate"
    values = [int(one) for one in levels] if of == "concurrency" else list(levels)
    config = with_settings(
        job.resolved,
        {f"load.{of}": values, "load.repeats": BLOCKS_MAX, "load.order": "ascending", "study.starts": STARTS_MAX},
    )
    config["quality"] = {"name": "none"}
    return replace(job, settings=settings_from_dict(config, registry), resolved=config)


def _candidates(
    job: Job, question: TuneQuestion, words: Sequence[str], registry: Registry, *, count: int
) -> CandidateList:
    engine = job.settings.engine.name
    space = load_space(engine, registry, parse_arguments(words).config_dirs, question.space)
    fixed = _set_keys(job)
    if unknown := [key for key in question.only if key not in space.parameters]:
        known = ", ".join(space.parameters)
        raise ConfigError(f"tune.only: {space.file} has no parameter {', '.join(unknown)}; known are {known}")
    free = free_parameters(space, fixed, question.only)
    given = [] if question.candidates is None else load_recipes(question.candidates, engine)
    rules = [one for one in rule_candidates(space, job.resolved) if not {*one.settings} & fixed]
    kept = [one for one in rules if not question.only or {*one.settings} <= {*question.only}]
    proposed = [*(space.candidate(name, "recipe", own) for name, own in given), *kept]
    found = make_candidates(space, job.resolved, proposed, free=free, count=count, seed=question.seed)
    if len(found.candidates) < 2:
        why = (
            "; ".join(one.why for one in found.refused) or f"{space.file} has no other value for any of its parameters"
        )
        raise ConfigError(f"there is nothing to tune for engine={engine}: {why}")
    if registry.launcher(job.settings.launch.name).simulated:
        why = "it may change answers, and launch=simulated has none to check"
        found.refused += [RefusedCandidate(candidate=one, why=why) for one in found.candidates if one.answers]
        found.candidates = [one for one in found.candidates if not one.answers]
    return found


def _quality_config(job: Job, words: Sequence[str], registry: Registry) -> dict[str, Any]:
    """Return the config of the quality test that a candidate must pass; empty without answers. Raises ConfigError."""
    if registry.launcher(job.settings.launch.name).simulated:
        return {}
    if job.settings.quality.name != "none":
        return dict(job.resolved["quality"])
    guard = kind_named(job.settings.workload.api).correctness
    if guard is None:
        return {}
    # one engine is enough, for the engine does not matter here
    plain = [word for word in words if word not in ("-m", "--multirun") and not word.startswith("engine=")]
    (guarded,) = compose_jobs(
        [*plain, f"engine={job.chosen('engine')}", f"quality={guard}", f"quality.items={GUARD_ITEMS}"], registry
    )
    return dict(guarded.resolved["quality"])


def _named(index: int, candidate: Candidate) -> Candidate:
    """Return a candidate with the name of its run."""
    name = f"{index:02d}_{slug(candidate.engine)}_{slug(candidate.name.removeprefix(f'{candidate.engine} '))}"
    return replace(candidate, run=name)


def candidate_job(stock: Job, candidate: Candidate, registry: Registry) -> Job:
    """Return the job of a candidate. Raises ConfigError when its settings are not valid."""
    if not candidate.settings:
        return stock
    config = with_settings(stock.resolved, candidate.settings)
    settings, words = settings_from_dict(config, registry), override_words(candidate.settings)
    return replace(stock, overrides=(*stock.overrides, *words), settings=settings, resolved=config)


def _checked_job(stock: Job, candidate: Candidate, registry: Registry, *, here: bool) -> Job | str:
    """Return the job of a candidate, or why it cannot start; `here`: on this machine."""
    try:
        job = candidate_job(stock, candidate, registry)
        if candidate.settings:
            check_jobs([job], registry, here=here)
    except PreflightError as error:
        return str(error).splitlines()[0]
    except ConfigError as error:
        return "; ".join(error.faults)
    return job


def entrants_of(
    candidates: Sequence[Candidate], stock_config: Callable[[Candidate], Mapping[str, Any]]
) -> list[RaceEntrant]:
    """Return the entrants of the race, by the names of their runs; `stock_config` returns that of a candidate's engine."""
    stocks = {one.engine: one.run for one in reversed(candidates) if not one.settings}
    return [
        RaceEntrant(
            name=one.run,
            answers=one.answers,
            reference=stocks.get(one.engine, ""),
            take_backs=tuple(each.run for each in take_backs(one)),
            distance=distance_from_stock(one.settings, stock_config(one)),
        )
        for one in candidates
    ]


def proposed_candidates(
    taken: Sequence[Candidate],
    proposals: Sequence[tuple[str, str]],
    stock: Job,
    registry: Registry,
    *,
    space: TuneSpace,
    guarded: bool,
    here: bool = True,
) -> list[Candidate]:
    """Return new candidates from what a finding of limits proposes for an engine: pairs of an override and why. `taken` are the
    candidates so far; `guarded`: answers can be checked; `here`: they start on this machine."""
    option = stock.chosen("engine")
    known = [dict(one.settings) for one in taken if one.engine == option]
    several = any(one.engine != option for one in taken)
    fixed = _set_keys(stock)
    found: list[Candidate] = []
    for override, why in proposals:
        key = override.partition("=")[0]
        settings = {key: override_value(override)}
        if not key.startswith("engine.") or key in fixed or settings in known:
            continue
        name = f"{option} limit {len(found) + 1}" if several else f"limit {len(found) + 1}"
        candidate = space.candidate(name, "limit", settings, engine=option, note=why)
        fits = isinstance(_checked_job(stock, candidate, registry, here=here), Job)
        if fits and (guarded or not candidate.answers):
            known.append(settings)
            found.append(_named(len(taken) + len(found), candidate))
    return found


def _set_keys(job: Job) -> set[str]:
    """Return the keys that the user sets."""
    return {word.lstrip("+").partition("=")[0] for word in job.overrides}
