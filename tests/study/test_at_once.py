"""Which runs may have their engines alive at once."""

from dataclasses import replace

import pytest

from servebench.config import compose_jobs
from servebench.contracts.turns import Turn, closing_turn
from servebench.registry.registry import registry
from servebench.study.at_once import at_once, check_slices, groups_at_once, why_alone
from servebench.util.errors import ConfigError

CLOSED = ("load.concurrency=[2]", "load.requests=20", "model=qwen2.5-1.5b-instruct", "gpu=none")
PAIR = ("-m", "engine=vllm,sglang", *CLOSED)


def jobs_of(*words):
    return compose_jobs(words, registry())


def groups_of(*words):
    jobs = jobs_of(*words)
    return groups_at_once({str(number): job for number, job in enumerate(jobs)}, registry())


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
    turn = Turn(range(1), ("a",), start=1)
    other = replace(turn, engines=("b",))
    assert at_once(turn, {"a": 0, "b": 0}).at_once == at_once(other, {"a": 0, "b": 0}).at_once is not None
    assert at_once(replace(other, start=2), {"b": 0}).at_once != at_once(turn, {"a": 0}).at_once
    assert at_once(turn, {"b": 0}) == turn
    assert at_once(closing_turn("a"), {"a": 0}) == closing_turn("a")
