"""Which settings are tried."""

from __future__ import annotations

import random

import pytest

from servebench.analysis.tuning.candidates import (
    describe_settings,
    distance_from_stock,
    draw_settings,
    free_parameters,
    holds,
    make_candidates,
    memory_problem,
    override_words,
    rule_candidates,
    space_size,
    take_backs,
    with_settings,
)
from servebench.config.tune_space import ForbiddenSettings, TuneParameter, TuneRule, TuneSpace
from servebench.contracts.stored import value_at
from servebench.contracts.tuning import Candidate

CONFIG = {
    "engine": {"name": "x", "max_num_seqs": None, "extra_args": {"cpuparams.poll": 5}, "tensor_parallel_size": None},
    "gpu": {"name": "h100", "memory_gb": 80.0, "count": 1},
    "model": {"name": "m", "parameters_b": 8.0, "layers": 32, "kv_heads": 8, "head_dim": 128},
}
SEQS, TOKENS, KV = "engine.max_num_seqs", "engine.extra_args.tokens", "engine.extra_args.kv-cache-dtype"
SPACE = TuneSpace(
    engine="x",
    file="x.yaml",
    parameters={
        SEQS: TuneParameter(values=(None, 8, 16)),
        TOKENS: TuneParameter(values=(4, 64), when={"engine.max_num_seqs": "!= null"}),
        KV: TuneParameter(values=(None, "fp8"), answers=True),
    },
    rules=(
        TuneRule(name="large", set={"engine.max_num_seqs": 16}, when={"gpu.memory_gb": ">= 70"}),
        TuneRule(name="small", set={"engine.max_num_seqs": 8}, when={"gpu.memory_gb": "< 70"}),
    ),
    forbidden=(
        ForbiddenSettings(
            when={"engine.max_num_seqs": "> engine.extra_args.tokens"}, why="too few tokens for so many requests"
        ),
    ),
)


@pytest.mark.parametrize(
    ("when", "true"),
    [
        ({}, True),
        ({"gpu.name": "h100"}, True),
        ({"gpu.name": ["a100", "h100"]}, True),
        ({"gpu.name": "!= h100"}, False),
        ({"engine.max_num_seqs": None}, True),
        ({"engine.max_num_seqs": "!= null"}, False),
        ({"engine.max_num_seqs": "> 4"}, False),
        ({"gpu.memory_gb": ">= 80", "gpu.count": "< 2"}, True),
        ({"engine.extra_args.cpuparams.poll": 5}, True),
        ({"gpu.count": "< model.layers"}, True),
        ({"gpu.count": "< model.none"}, False),
        ({"none.at.all": None}, True),
    ],
)
def test_conditions(when, true):
    assert holds(when, CONFIG) is true


def test_settings_at_dotted_keys():
    changed = with_settings(CONFIG, {"engine.extra_args.cpuparams.poll": 7, "engine.max_num_seqs": 3})
    assert value_at(changed, "engine.extra_args.cpuparams.poll") == 7
    assert value_at(changed, "engine.max_num_seqs") == 3
    assert value_at(CONFIG, "engine.extra_args.cpuparams.poll") == 5


def made(count=12, recipes=(), seed=0):
    return make_candidates(SPACE, CONFIG, list(recipes), free=SPACE.parameters, count=count, seed=seed)


def test_stock_is_first_and_nothing_is_tried_twice():
    found = made(recipes=rule_candidates(SPACE, CONFIG)).candidates
    assert found[0].origin == "stock"
    assert not found[0].settings
    assert (found[1].name, found[1].origin) == ("large", "rule")
    settings = [tuple(sorted(map(repr, one.settings.items()))) for one in found]
    assert len(set(settings)) == len(settings)
    assert len({one.name for one in found}) == len(found)
    assert found == made(recipes=rule_candidates(SPACE, CONFIG)).candidates
    assert found != made(recipes=rule_candidates(SPACE, CONFIG), seed=1).candidates


def test_a_small_space_is_used_up():
    """Of 3 x 2 x 2 settings, the tokens count only with a number of requests, and two combinations are forbidden."""
    assert len(made(count=100).candidates) == 2 + 2 * 2 * 3 - 2 * 2
    assert space_size(SPACE.parameters, CONFIG) == 6


def test_impossible_settings_are_refused_and_those_of_people_say_why():
    bad = SPACE.candidate("bad", "recipe", {"engine.max_num_seqs": 16, "engine.extra_args.tokens": 4})
    found = made(count=100, recipes=[bad])
    assert [(one.candidate.name, one.why) for one in found.refused] == [("bad", "too few tokens for so many requests")]
    assert all(
        not (one.settings.get("engine.max_num_seqs") and one.settings.get("engine.extra_args.tokens") == 4)
        for one in found.candidates
    )


def test_what_may_change_answers_is_marked():
    recipes = [SPACE.candidate("a", "recipe", {key: "fp8"}) for key in (KV, "engine.quantization")]
    marks = {one.name: one.answers for one in made(count=4, recipes=recipes).candidates}
    assert marks["a"] is True
    assert marks["a 2"] is True
    assert marks["stock"] is False


@pytest.mark.parametrize(
    ("key", "marked"),
    [("engine.extra_args.rope-freq-scale", True), ("engine.executable", True), ("engine.threads", False)],
)
def test_what_nobody_knows_may_change_answers(key, marked):
    """A recipe's setting that the space does not have is checked, unless servebench knows that it only concerns speed."""
    recipe = SPACE.candidate("a", "recipe", {key: "1"})
    (found,) = [one for one in made(count=4, recipes=[recipe]).candidates if one.name == "a"]
    assert found.answers is marked


def test_what_the_user_fixed_is_not_varied():
    assert list(free_parameters(SPACE, [SEQS])) == [TOKENS, KV]
    assert list(free_parameters(SPACE, [], only=[KV])) == [KV]
    assert draw_settings({}, CONFIG, random.Random(0)) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"model.parameters_b": 70.0}, "the weights take 140 GB"),
        ({"model.parameters_b": 70.0, "engine.quantization": "fp8"}, None),
        ({"model.parameters_b": 70.0, "engine.tensor_parallel_size": 2}, None),
        ({"engine.max_model_len": 1_000_000}, "one request of engine.max_model_len=1000000"),
        ({"engine.max_model_len": 450_000}, None),
        ({"engine.gpu_memory_fraction": 0.1}, None),
        ({"gpu.memory_gb": None}, None),
        ({"model.parameters_b": None}, None),
    ],
)
def test_memory_that_cannot_fit(changes, said):
    found = memory_problem(with_settings(CONFIG, changes))
    assert (found is None) if said is None else said in (found or "")


def test_taking_back_one_setting_at_a_time():
    settings = {"engine.a": 1, "engine.extra_args.b": 2}
    found = take_backs(Candidate(name="t3", engine="x", origin="sampled", run="03_x_t3", settings=settings))
    assert [(one.name, one.run, one.settings) for one in found] == [
        ("t3 without a", "03_x_t3_without-a", {"engine.extra_args.b": 2}),
        ("t3 without b", "03_x_t3_without-b", {"engine.a": 1}),
    ]
    assert take_backs(Candidate(name="t", engine="x", origin="sampled", settings={"engine.a": 1})) == []


def test_settings_in_words():
    settings = {"engine.a": None, "engine.b": True, "engine.extra_args.c": {"m": "n gram", "k": 3}, "engine.d": "8,5"}
    assert override_words(settings) == (
        "engine.a=null",
        "engine.b=true",
        'engine.extra_args.c={m:"n gram",k:3}',
        'engine.d="8,5"',
    )
    assert describe_settings({"engine.extra_args.c": 1, "engine.b": True}) == "c=1 b=true"
    assert describe_settings({}) == "stock"


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        ({}, {"engine.max_num_seqs": 8}),
        ({"engine.max_num_seqs": 16}, {"engine.max_num_seqs": 8, "engine.extra_args.tokens": 4}),
        ({"engine.max_num_seqs": 8}, {"engine.max_num_seqs": 16}),
        ({"engine.max_num_seqs": 16}, {"engine.extra_args.tokens": 4}),
        ({"engine.gpu_memory_fraction": 0.8}, {"engine.gpu_memory_fraction": 0.9}),
    ],
    ids=["stock", "fewer changes", "fewer requests", "than an unknown default", "less memory"],
)
def test_fewer_changes_are_nearer_to_stock_and_then_less_memory(nearer, farther):
    assert distance_from_stock(nearer, CONFIG) < distance_from_stock(farther, CONFIG)
