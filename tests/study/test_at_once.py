"""Which runs may have their engines alive at once."""

from dataclasses import replace

import pytest

from servebench.config import compose_jobs
from servebench.contracts.turns import Turn, closing_turn
from servebench.registry.registry import registry
from servebench.run.lifecycle import job_of_turn
from servebench.study.at_once import Place, at_once, check_slices, places_at_once, why_alone
from servebench.study.outlook import _cost_usd
from servebench.util.errors import ConfigError

CLOSED = ("load.concurrency=[2]", "load.requests=20", "model=qwen2.5-1.5b-instruct", "gpu=none")
PAIR = ("-m", "engine=vllm,sglang", *CLOSED)


def jobs_of(*words):
    return compose_jobs(words, registry())


def groups_of(*words):
    jobs = jobs_of(*words)
    return {name: one.group for name, one in places_of(jobs).items()}


def places_of(jobs):
    return places_at_once({str(number): job for number, job in enumerate(jobs)}, registry())


@pytest.mark.parametrize(
    "words",
    [
        ("launch=process",),
        ("launch=emulated", "gpu=rtx4090"),
        ("launch=simulated", "gpu=rtx4090"),
    ],
)
def test_engines_that_can_be_idle_beside_each_other(words):
    assert why_alone(jobs_of(*PAIR, *words), registry()) is None


@pytest.mark.parametrize(
    "words",
    [
        ("launch=process", "gpu=rtx4090"),
        ("launch=docker", "gpu=rtx4090"),
        ("launch=process", "engine.port=8000"),
        ("launch=process", "load.concurrency=null", "load.rate=[2]"),
        ("launch=process", "load.ramp={over_s: 3}"),
        ("launch=attach", "launch.base_url=http://127.0.0.1:8000/v1"),
        ("launch=attach", "launch.base_url=http://a.example/v1"),
    ],
)
def test_what_prevents_it_is_named(words):
    assert why_alone(jobs_of(*PAIR, *words), registry())
    with pytest.raises(ConfigError, match=r"study\.slices=always: "):
        check_slices(jobs_of(*PAIR, *words, "study.slices=always"), registry(), cluster=False)


def test_two_servers_elsewhere_can():
    words = ("-m", "engine=openai", "launch=attach", "launch.base_url=http://a.example/v1,http://b.example/v1", *CLOSED)
    assert why_alone(jobs_of(*words), registry()) is None
    assert groups_of(*words, "study.slices=always") == {"0": 0, "1": 0}


def test_by_itself_only_real_engines_with_several_starts_are():
    several = (*PAIR, "study.slices=auto", "study.starts=2")
    assert groups_of(*several) == {"0": 0, "1": 0}
    assert groups_of(*several, "launch=simulated") == groups_of(*PAIR, "study.slices=auto") == {}
    assert groups_of(*several, "study.slices=never") == {}


def test_engines_that_answer_different_questions_are_not_at_once():
    words = ("-m", "engine=vllm,sglang", "workload=unique,short", *CLOSED, "study.slices=auto", "study.starts=2")
    jobs = jobs_of(*words)
    found = groups_of(*words)
    for number, job in enumerate(jobs):
        same = [one for one, other in enumerate(jobs) if other.settings.workload == job.settings.workload]
        assert {found[str(one)] for one in same} == {found[str(number)]}
    assert len(set(found.values())) == 2


def test_turns_of_a_group_and_a_start_are_executed_at_once():
    turn = Turn(range(1), "a", start=1)
    other = replace(turn, run="b")
    places = {"a": Place(0, 0), "b": Place(0, 1)}
    assert at_once(turn, places).at_once == at_once(other, places).at_once is not None
    assert at_once(replace(other, start=2), places).at_once != at_once(turn, places).at_once
    assert at_once(turn, {"b": Place(0, 1)}) == turn
    assert at_once(closing_turn("a"), places) == closing_turn("a")


def test_each_engine_gets_gpus_of_its_own_and_they_change_them(monkeypatch):
    words = (*PAIR, "launch=process", "gpu=rtx4090", "gpu.count=2", "study.slices=always", "study.starts=2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(ConfigError, match="need 4 GPUs, and this machine has 3"):
        check_slices(jobs_of(*words), registry(), cluster=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,4,5")
    jobs = jobs_of(*words)
    places = places_of(jobs)
    turns = [at_once(Turn(range(1), run, start=start), places) for start in (0, 1) for run in ("0", "1")]
    assert [turn.gpus for turn in turns] == [("0", "1"), ("4", "5"), ("4", "5"), ("0", "1")]
    assert job_of_turn(jobs[0], turns[0], registry()).settings.engine.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    priced = jobs_of(*words, "gpu.price_usd_per_hour=3")
    # the GPUs of both cost all the time; one after another, those of one
    assert (_cost_usd(priced, 1800.0), _cost_usd(priced[:1], 1800.0)) == (6.0, 3.0)
    assert why_alone(jobs_of(*words, "+engine.env.CUDA_VISIBLE_DEVICES='0'"), registry())
