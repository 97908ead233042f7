"""What a study says before it runs."""

import json
from dataclasses import replace

import pytest

from servebench.analysis.conclude import conclude
from servebench.cli.main import dispatch
from servebench.config import compose_jobs
from servebench.contracts.events import StartsChosen, UnequalRuns
from servebench.contracts.stored import StudyData
from servebench.registry.registry import registry
from servebench.report.terminal.words import line_of
from servebench.report.wording.budget import starts_text, took_text
from servebench.run.session import RunTask
from servebench.study.outlook import plan_of, usual_start_s
from servebench.util.errors import ConfigError
from servebench.util.gpus import find_gpus
from support.gpus import H100X8, with_smi

CASES = {
    "weights of two kinds": ("process", ["engine=vllm,llamacpp"], ["weights"]),
    "no weights are read": ("simulated", ["engine=vllm,llamacpp"], []),
    "varied on purpose": ("process", ["engine=vllm,sglang", "engine.dtype=bfloat16,float16"], []),
    "different questions": ("process", ["engine=vllm", "workload=short,unique"], []),
    "one run": ("process", ["engine=vllm"], []),
}


@pytest.mark.parametrize(("launch", "words", "settings"), CASES.values(), ids=CASES)
def test_runs_that_get_no_verdict_are_known_before_anything_starts(launch, words, settings):
    jobs = compose_jobs(["-m", *words, f"launch={launch}", "model=smollm2-135m-instruct", "load=quick"], registry())
    plan = plan_of([RunTask(str(number), job) for number, job in enumerate(jobs)], registry())
    assert len(plan.unequal) == len(settings)
    assert all(name in one.settings for name, one in zip(settings, plan.unequal, strict=True))


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["load.concurrency=1,4,16"], "'load.concurrency=[1,4,16]'"),
        (["load=rate", "load.rate=0.5,2"], "'load.rate=[0.5,2]'"),
        (["load.concurrency=[1,4],[2,8]"], None),
        (["load.concurrency=[1,4]"], None),
        (["load.concurrency=4"], None),
        (["load=quick", "load.concurrency=1,4", "load.requests=20,40"], "'load.concurrency=[1,4]'"),
        (["load.concurrency=4", "load.max_duration_s=20,30"], None),
    ],
)
def test_levels_that_are_swept_could_be_those_of_one_run(words, note):
    jobs = compose_jobs(["-m", "engine=vllm,sglang", "launch=simulated", *words], registry())
    plan = plan_of([RunTask(str(number), job) for number, job in enumerate(jobs)], registry())
    assert len(plan.notes) == (note is not None)
    assert note is None or note in line_of(plan)


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
    # a start of 32 s and 29:30 min of load, on two GPUs
    assert "$4.00" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert dispatch([*words, *long, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["points"], plan["each"]["levels"], round(plan["cost_usd"])) == (2, 2, 4)
    assert dispatch([*words, *long[:3], "--dry-run"]) == 0
    assert "$" not in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"load\.timeout_s"):
        dispatch([*words, "load.timeout_s=soon", "--dry-run"])


ENGINES = (
    "-m",
    "model=llama-3.1-8b-instruct",
    "gpu=h100",
    "gpu.price_usd_per_hour=4",
    "load.until=null",
    "load.duration_s=60",
)


def planned(*words):
    jobs = compose_jobs([*ENGINES, "load.concurrency=[1,4]", *words], registry())
    return jobs, plan_of([RunTask(str(number), job) for number, job in enumerate(jobs)], registry())


def test_the_time_is_that_of_engines_starts_and_levels():
    jobs, plan = planned("engine=vllm,sglang", "study.starts=3")
    starts = [usual_start_s(job) for job in jobs]
    assert plan.seconds == pytest.approx(3 * (sum(starts) + 2 * 120))
    assert (plan.each.starts, plan.each.levels, plan.each.load_s, plan.each.earlier) == (3, 2, 120, False)
    assert plan.each.start_s == pytest.approx(sum(starts) / 2)
    assert plan.cost_usd == pytest.approx(plan.seconds / 3600 * 4)


def test_runs_on_one_engine_share_its_start():
    jobs, plan = planned("engine=vllm", "workload=short,unique")
    assert plan.seconds == pytest.approx(usual_start_s(jobs[0]) + 2 * 120)


@pytest.mark.parametrize("until", ["decided", "gate"])
@pytest.mark.parametrize(("starts", "seconds"), [("auto", 660.0), (2, None)])
def test_a_study_that_ends_by_itself_has_a_longest_time_and_its_cost(until, starts, seconds):
    words = (f"study.until={until}", f"study.starts={starts}", "study.budget=11m")
    jobs, plan = planned("engine=vllm,sglang", *words)
    each_s = sum(usual_start_s(job) + 120 for job in jobs)
    assert (plan.starts.budget_s, plan.starts.each_s) == (660, pytest.approx(each_s))
    assert plan.seconds == pytest.approx(seconds or 2 * each_s)
    assert plan.cost_usd == pytest.approx(plan.seconds / 3600 * 4)


@pytest.mark.parametrize(
    ("expected_s", "took_s", "said"),
    [(100, 124, False), (100, 126, True), (100, 74, True), (8, 14, False), (None, 14, False), (100, None, False)],
)
def test_what_was_announced_is_compared_with_what_it_took(tmp_path, expected_s, took_s, said):
    ended_s = None if took_s is None else 1000.0 + took_s
    state = {"started_s": 1000.0, "ended_s": ended_s, "expected_s": expected_s}
    answer = conclude([], [StudyData(study_id="s", path=tmp_path, state=state)]).answer
    assert (answer.expected_s, answer.took_s) == (expected_s, took_s)
    assert bool(took_text(answer.expected_s, answer.took_s)) == said


def test_the_keys_of_times_are_stored_with_a_study(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("engine=vllm", "tracking=none", "load.concurrency=[1]", "load.until=null", "load.duration_s=1")
    assert dispatch([*words, "launch=simulated", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["answer"]
    # virtual time is not the time of the command
    assert answer["expected_s"] is None
    assert answer["took_s"] > 0
    assert dispatch([*words, "launch=emulated", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert answer["expected_s"] > 1
    assert answer["took_s"] > 1
