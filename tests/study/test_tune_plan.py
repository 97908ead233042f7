"""What a tune plans before anything starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servebench.cli.main import dispatch
from servebench.config.tune_space import load_space
from servebench.contracts.tuning import Candidate
from servebench.registry.registry import registry
from servebench.study.outlook import tune_planned
from servebench.study.tune_plan import plan_tune, proposed_candidates
from servebench.util.errors import ConfigError

SPACE = "parameters: {engine.max_num_seqs: {values: [2, 4]}, engine.seed: {values: [null, 1]}}"
WORDS = ("launch=simulated", "gpu=h100", "model=llama-3.1-8b-instruct", "load.concurrency=[8,32]", "tune.count=4")


@pytest.fixture
def words(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    return ["engine=vllm", *WORDS, f"tune.space={tmp_path / 'space.yaml'}"]


def test_stock_is_first_and_measures_blocks_of_the_busiest_level(words):
    plan = plan_tune(words, registry())
    assert plan.state.levels == (32,)
    first = plan.runs[0]
    assert first.name == "00_vllm_stock"
    assert first.config["load"]["concurrency"] == [32]
    assert first.config["load"]["repeats"] == 4
    assert first.config["quality"]["name"] == "none"
    assert [one.run for one in plan.state.candidates] == [run.name for run in plan.runs]
    assert plan.state.space_size == 6
    changed = plan.state.candidates[1].settings
    assert changed
    assert plan.runs[1].overrides[-len(changed) :] == tuple(f"{key}={value}" for key, value in changed.items())


def test_what_the_user_sets_is_stock(words):
    plan = plan_tune([*words, "engine.max_num_seqs=8"], registry())
    assert all("engine.max_num_seqs" not in one.settings for one in plan.state.candidates)
    assert {run.config["engine"]["max_num_seqs"] for run in plan.runs} == {8}


def test_engines_take_turns_and_each_has_its_own_stock(words):
    plan = plan_tune(["engine=vllm,sglang", *words[1:]], registry())
    names = [one.name for one in plan.state.candidates]
    assert names[:2] == ["vllm stock", "sglang stock"]
    assert [one.engine for one in plan.state.candidates] == ["vllm", "sglang"] * 2
    assert {run.config["engine"]["name"] for run in plan.runs if "sglang" in run.name} == {"sglang"}


@pytest.mark.parametrize(
    ("load", "load_s"),
    [
        (("load.duration_s=40",), 40.0),
        (("load.duration_s=40", "tune.levels=[8,32]"), 80.0),
        (("load.requests=100",), None),
    ],
)
def test_the_smallest_budget_is_six_starts_with_a_block_each(words, load, load_s):
    plan = plan_tune([*words, *load], registry())
    least = tune_planned(plan.jobs[0], None)
    assert (least.starts, least.load_s) == (6, load_s)
    assert least.least_s == 6 * (least.start_s + (load_s or 0))


@pytest.mark.parametrize(
    ("more", "slices"),
    [
        ((), False),
        (("study.slices=always",), True),
        (("launch=emulated",), True),
        (("launch=emulated", "study.slices=never"), False),
        (("launch=emulated", "engine.port=8000"), False),
        (("launch=emulated", "load.concurrency=null", "load.rate=[2]"), False),
        (("launch=emulated", "slo.ttft_ms=100", "tune.objective=max_load"), False),
        (("launch=emulated", "hydra/launcher=submitit_local"), False),
    ],
)
def test_engines_of_the_finals_take_turns_where_those_of_a_study_would(words, more, slices):
    groups = {word.partition("=")[0] for word in more}
    kept = [word for word in words if word.partition("=")[0] not in groups]
    assert plan_tune([*kept, *more], registry()).state.slices is slices


def test_levels_may_be_named(words):
    assert plan_tune([*words, "tune.levels=[8,16]"], registry()).state.levels == (16, 8)
    slo = ["slo.ttft_ms=100", "tune.objective=max_load"]
    assert plan_tune([*words, *slo], registry()).state.levels == (32, 8)
    with pytest.raises(ConfigError, match="several levels"):
        plan_tune([*words, *slo, "tune.levels=[8]"], registry())


def test_proposals_become_candidates_once(words):
    plan = plan_tune([*words, "tune.count=2"], registry())
    (job,) = plan.jobs
    proposals = [
        ("engine.max_num_seqs=512", "raise it"),
        ("engine.max_num_seqs=512", "again"),
        ("load.workers=4", "not of the engine"),
        ("engine.gpu_memory_fraction=7", "not valid"),
        ("engine.extra_args.kv-cache-dtype=fp8", "changes answers, and there are none"),
    ]
    space = load_space("vllm", registry())
    (found,) = proposed_candidates(plan.state.candidates, proposals, job, registry(), space=space, guarded=False)
    assert found == Candidate(name="limit 1", engine="vllm", origin="limit", settings={"engine.max_num_seqs": 512},
                              note="raise it", run="02_vllm_limit-1")  # fmt: skip
    assert proposed_candidates([found], proposals[:1], job, registry(), space=space, guarded=False) == []
    (other,) = proposed_candidates(
        [replace(found, engine="sglang")],
        [("engine.extra_args.kv-cache-dtype=fp8", "fewer bits")],
        *(job, registry()),
        space=space,
        guarded=True,
    )
    assert (other.name, other.answers) == ("vllm limit 1", True)


def test_the_commands_of_stock_settings_are_printed_without_an_engine(capsys):
    question = ["tune", "engine=vllm,sglang", "gpu=h100", "model=llama-3.1-8b-instruct", "tune.budget=5m"]
    assert dispatch([*question, "--cfg", "command"]) == 0
    assert ["Llama-3.1-8B" in line for line in capsys.readouterr().out.splitlines()] == [True, True]
    for wrong in (["--cfg", "job"], ["--cfg", "command", "tune.budgt=5m"], ["--cfg", "command", "--continue"]):
        with pytest.raises(ConfigError):
            dispatch([*question, *wrong])
