"""What a study says before it runs."""

from dataclasses import replace

import pytest

from servebench.cli.main import dispatch
from servebench.config import compose_jobs
from servebench.contracts.events import StartsChosen, UnequalRuns
from servebench.registry.registry import registry
from servebench.report.terminal.words import line_of
from servebench.report.wording.budget import starts_text
from servebench.run.session import RunTask
from servebench.study.outlook import plan_of
from servebench.util.errors import ConfigError
from servebench.util.gpus import find_gpus
from support.gpus import H100X8, with_smi

CASES = {
    "weights of two kinds": ("process", ["engine=vllm,llamacpp"], ["file of weights"]),
    "no weights are read": ("simulated", ["engine=vllm,llamacpp"], []),
    "varied on purpose": ("process", ["engine=vllm,sglang", "engine.dtype=bfloat16,float16"], []),
    "different questions": ("process", ["engine=vllm", "workload=short,unique"], []),
    "one run": ("process", ["engine=vllm"], []),
}


@pytest.mark.parametrize(("launch", "words", "settings"), CASES.values(), ids=CASES)
def test_runs_that_get_no_verdict_are_known_before_anything_starts(launch, words, settings):
    jobs = compose_jobs(["-m", *words, f"launch={launch}", "model=smollm2-135m-instruct", "load=quick"], registry())
    plan = plan_of([RunTask(str(number), job) for number, job in enumerate(jobs)], registry())
    assert [one.settings for one in plan.unequal] == settings


def test_the_pairs_without_a_verdict_are_said_in_the_first_lines():
    plan = plan_of([], registry())
    pairs = [UnequalRuns("a", str(number), "engine.dtype") for number in range(6)]
    assert len(line_of(plan).splitlines()) == 1
    assert len(line_of(type(plan)(unequal=pairs)).splitlines()) == 5


@pytest.mark.parametrize(
    ("chosen", "points", "lines"),
    [
        (StartsChosen(budget_s=300.0, each_s=60.0), None, 1),
        (StartsChosen(most=8), None, 1),
        (StartsChosen(each_s=900.0, limit="20m"), 2, 2),
        (StartsChosen(engine="vllm", start_s=300.0, load_s=60.0, pays=False), 2, 2),
    ],
)
def test_what_was_chosen_is_said_with_its_reason(chosen, points, lines):
    said = line_of(replace(plan_of([], registry()), points=points, starts=chosen)).splitlines()
    assert len(said) == lines
    assert starts_text(chosen) in said[-1]


def test_the_first_line_says_what_the_machine_chose(monkeypatch, tmp_path):
    with_smi(monkeypatch, tmp_path / "bin", H100X8)
    jobs = compose_jobs(["-m", "engine=vllm,sglang", "model=llama-3.1-8b-instruct"], registry())
    plan = plan_of([RunTask(str(number), job) for number, job in enumerate(jobs)], registry())
    find_gpus.cache_clear()
    assert plan.gpus == ["8 x NVIDIA H100 80GB HBM3 (driver 580.126.09)"]
    assert plan.by_machine == ["gpu=h100", "gpu.count=1", "workload=medium", "load=climb"]
    first, _, note = line_of(plan).splitlines()
    assert all(one in first for one in [*plan.gpus, *plan.by_machine])
    # 1,024 users of 640 tokens have 86 GB of keys and values
    assert "1,024" in note
    assert "85.9" in note


def test_a_dry_run_says_what_it_takes_and_costs_and_starts_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["engine=vllm", "launch=simulated", "model=llama-3.1-8b-instruct", "gpu=h100", "tracking=none"]
    long = [
        "load.concurrency=[1,8]",
        "load.duration_s=885",
        "load.until=null",
        "gpu.price_usd_per_hour=4",
        "gpu.count=2",
    ]
    assert dispatch([*words, *long, "--dry-run"]) == 0
    # a start of 10 s and 29:30 min of load, on two GPUs
    assert "$3.96" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert dispatch([*words, *long[:3], "--dry-run"]) == 0
    assert "$" not in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"load\.timeout_s"):
        dispatch([*words, "load.timeout_s=soon", "--dry-run"])
