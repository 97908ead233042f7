"""What `study.starts=auto` makes of a study before it begins."""

from pathlib import Path

import pytest

from servebench.config import compose_jobs
from servebench.contracts.stored import RunData
from servebench.load.plan.slices import seconds_in_slices
from servebench.registry.registry import registry
from servebench.study.outlook import LEAST_S, SIMULATED_STARTS, TIMES, choose_starts, usual_start_s, with_starts

PAIR = ("-m", "engine=vllm,sglang", "gpu=h100", "model=llama-3.1-8b-instruct", "workload=unique", "load.until=null")
FIXED = (*PAIR, "load.duration_s=60", "load.concurrency=[1,4]")
OWN = 120.0
"""How long the load of one start takes."""


@pytest.fixture
def chosen(tmp_path):
    def choose(*words, runs=()):
        jobs = compose_jobs([*words, f"study.dir={tmp_path}"], registry())
        found, starts = with_starts(jobs, registry())
        if starts is not None and runs:
            starts = choose_starts(jobs, [run_of(jobs[0], number, cold_s) for number, cold_s in enumerate(runs)])
        return found, starts

    return choose


def run_of(job, number, cold_s):
    """A stored run of a job whose engine took so long to start."""
    return RunData(
        study_id="s", name=str(number), path=Path("none"), state={"started_s": float(number)},
        manifest={"config": job.resolved, "cold_start": {"seconds": cold_s}}, rows=list, tables=lambda *_: None,
    )  # fmt: skip


def test_simulated_engines_are_started_until_there_is_a_verdict(chosen):
    jobs, starts = chosen(*PAIR, "launch=simulated")
    assert (starts.most, starts.budget_s) == (SIMULATED_STARTS, None)
    for job in jobs:
        assert (job.settings.study.until, job.settings.study.most_starts) == ("decided", SIMULATED_STARTS)
        assert (job.resolved["study"]["until"], job.resolved["study"]["starts"]) == ("decided", SIMULATED_STARTS)


@pytest.mark.parametrize(
    ("words", "budget_s", "load_s"),
    [
        (("launch=emulated", "load.duration_s=2"), lambda _: LEAST_S, 2 * 4),
        # in turns, slice by slice, with a beginning and an end of each slice
        (("launch=emulated",), lambda each_s: TIMES * each_s, 2 * 2 * seconds_in_slices(60.0)),
        ((), lambda each_s: TIMES * each_s, 2 * OWN),
        (("study.budget=11m",), lambda _: 660, 2 * OWN),
        (("launch=emulated", "load.duration_s=null", "load.requests=100"), lambda _: LEAST_S, None),
    ],
)
def test_engines_have_a_time_that_is_known_before(chosen, words, budget_s, load_s):
    jobs, starts = chosen(*FIXED, *words)
    each_s = None if load_s is None else pytest.approx(load_s + sum(map(usual_start_s, jobs)))
    assert (starts.each_s, starts.most, starts.engine) == (each_s, None, "")
    assert starts.budget_s == pytest.approx(budget_s(starts.each_s))
    assert {(job.settings.study.until, job.settings.study.starts) for job in jobs} == {("decided", "auto")}


@pytest.mark.parametrize(("budget", "most", "slices"), [("8m", 1, "auto"), ("9m", 24, "never"), ("10m", 24, "auto")])
def test_where_two_starts_in_slices_do_not_fit_they_are_taken_one_after_another(chosen, budget, most, slices):
    """And where these do not fit either, one of each, with the reason."""
    jobs, starts = chosen(*FIXED, "launch=emulated", f"study.budget={budget}")
    assert {(job.settings.study.most_starts, job.settings.study.slices) for job in jobs} == {(most, slices)}
    assert (starts.budget_s is None, starts.limit, starts.alone) == (most == 1, budget * (most == 1), slices == "never")


@pytest.mark.parametrize(
    "words",
    [
        ("engine=vllm", *FIXED[2:]),
        (*FIXED, "study.starts=1"),
        (*FIXED, "study.starts=3"),
        (*FIXED, "study.until=decided"),
        (*PAIR[2:], "-m", "engine=vllm", "workload=unique,short", "load.duration_s=60"),
        (*PAIR, "load=slo", "slo=interactive"),
        (*PAIR[2:], "-m", "engine=vllm,sglang", "hydra/launcher=submitit_local"),
        (
            "-m",
            "engine=openai",
            "launch=attach",
            "launch.base_url=http://127.0.0.1:8/v1,http://127.0.0.1:9/v1",
            "model.name=m",
        ),
        ("-m", "engine=vllm,llamacpp", *FIXED[2:]),
    ],
    ids=["alone", "one", "three", "until", "no pair", "search", "cluster", "running", "unequal weights"],
)
def test_nothing_is_chosen_where_it_was_or_no_verdict_is_possible(chosen, words):
    jobs, starts = chosen(*words)
    assert starts is None
    assert all(job.settings.study.until == job.resolved["study"]["until"] for job in jobs)


@pytest.mark.parametrize(
    ("colds", "long", "pays"),
    [((), 0.0, True), ((30.0,), 0.0, True), ((90.0, 150.0), 120.0, True), ((600.0,), 600.0, False)],
)
def test_a_long_start_is_weighed_against_longer_points(chosen, colds, long, pays):
    _, starts = chosen(*FIXED, runs=colds)
    assert (starts.start_s, starts.pays, starts.budget_s is not None) == (long, pays, pays)


def test_two_starts_that_exceed_the_budget_are_not_begun(chosen):
    jobs, starts = chosen(*FIXED, "study.budget=9m")
    assert (starts.budget_s, starts.limit) == (None, "9m")
    assert {job.settings.study.until for job in jobs} == {None}
