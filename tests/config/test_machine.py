"""What a config leaves to the machine: its GPUs, and the user's prices."""

import re
import shlex
from pathlib import Path

import pytest

from servebench.analysis.decided import same_question
from servebench.config import compose_jobs
from servebench.config.machine import gpu_name
from servebench.registry.registry import build, registry
from servebench.study.show_commands import engine_command
from servebench.study.tune_plan import plan_tune
from servebench.util.errors import ConfigError
from servebench.util.gpus import find_gpus
from support.gpus import H100X8, MI250X2, PAIR, SLICES, with_programs, with_smi

README = Path(__file__).parents[2] / "README.md"
SMOLLM2, QWEN = "HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen2.5-1.5B-Instruct"
COMMAND = re.compile(r"^ {4}servebench (-m )?((?:engine=|tune engine=)[^\n#]*)", re.MULTILINE)


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield
    find_gpus.cache_clear()


@pytest.fixture
def h100s(monkeypatch, tmp_path):
    with_smi(monkeypatch, tmp_path / "bin", H100X8)


def settings_of(*words):
    return [job.settings for job in compose_jobs(["-m", *words], build([], set()))]


def shown(settings):
    return settings.gpu.name, settings.gpu.count, settings.model.name, settings.workload.name, settings.load.name


def test_engines_on_a_gpu_get_its_data_sheet_a_small_model_and_a_load_that_climbs(h100s):
    jobs = compose_jobs(["-m", "engine=vllm,sglang,trtllm", "workload=rag_prefix"], build([], set()))
    assert {shown(job.settings) for job in jobs} == {("h100", 1, QWEN, "rag_prefix", "climb")}
    assert jobs[0].settings.gpu.bandwidth_gb_s == 3350
    assert jobs[0].settings.engine.tensor_parallel_size is None
    assert jobs[0].by_machine == ("gpu=h100", "++gpu.count=1", "model=qwen2.5-1.5b-instruct", "load=climb")
    assert jobs[0].overrides == ("engine=vllm", "workload=rag_prefix")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["engine=vllm"], ("h100", 1, QWEN, "medium", "climb")),
        (["engine=vllm", "gpu=auto", "load=auto"], ("h100", 1, QWEN, "medium", "climb")),
        (["engine=vllm", "gpu.count=4"], ("h100", 4, QWEN, "medium", "climb")),
        (["engine=vllm", "engine.tensor_parallel_size=2"], ("h100", 2, QWEN, "medium", "climb")),
        (["engine=vllm", "load.concurrency=[64,8]"], ("h100", 1, QWEN, "medium", "quick")),
        (["engine=vllm", "model=gpt-oss-120b"], ("h100", 2, "openai/gpt-oss-120b", "medium", "climb")),
        (["engine=vllm", "model.name=Qwen/Qwen2.5-72B-Instruct"], ("h100", 4, "Qwen/Qwen2.5-72B-Instruct", "medium", "climb")),
        (["engine=vllm", "model.name=my-own"], ("h100", 1, "my-own", "medium", "climb")),
        (["engine=vllm", "gpu=none"], ("none", 0, SMOLLM2, "short", "quick")),
        (["engine=vllm", "gpu=b200"], ("b200", 1, QWEN, "medium", "climb")),
        # the numbers of these are not this machine's
        (["engine=vllm", "launch=emulated"], ("none", 0, SMOLLM2, "short", "quick")),
        (["engine=vllm", "launch=simulated", "gpu=b200"], ("b200", 1, SMOLLM2, "short", "quick")),
        (["engine=openai", "launch=attach", "launch.base_url=http://h/v1"], ("none", 0, SMOLLM2, "short", "quick")),
        (["engine=vllm", "hydra/launcher=submitit_slurm"], ("none", 0, SMOLLM2, "short", "quick")),
        (["engine=vllm", "hydra/launcher=submitit_local"], ("h100", 1, QWEN, "medium", "climb")),
    ],
)  # fmt: skip
def test_what_is_said_stays(h100s, words, expected):
    (settings,) = settings_of(*words)
    assert shown(settings) == expected


def test_engines_of_one_sweep_run_one_model_workload_and_load(h100s):
    jobs = compose_jobs(["-m", "engine=llamacpp,vllm"], registry())
    assert [shown(job.settings) for job in jobs] == [
        ("none", 0, QWEN, "medium", "climb"),
        ("h100", 1, QWEN, "medium", "climb"),
    ]
    assert jobs[0].by_machine == ("model=qwen2.5-1.5b-instruct", "workload=medium", "load=climb")
    assert same_question(jobs[0].resolved, jobs[1].resolved)
    assert "GGUF" in " ".join(engine_command(jobs[0].settings, registry()).argv)
    jobs = compose_jobs(["-m", "engine=llamacpp,vllm", "model=smollm2-135m-instruct", "workload=short"], registry())
    assert {shown(job.settings)[2:] for job in jobs} == {(SMOLLM2, "short", "climb")}


def test_a_tune_on_a_gpu_is_asked_at_which_load(h100s):
    with pytest.raises(ConfigError, match=r"load=climb.*tune\.levels"):
        plan_tune(["engine=vllm", "model=llama-3.1-8b-instruct"], registry())


def test_an_engine_that_needs_no_gpu_runs_as_without_one(h100s):
    (job,) = compose_jobs([], registry())
    assert shown(job.settings) == ("none", 0, SMOLLM2, "short", "quick")
    assert job.by_machine == ()


def test_other_gpus(monkeypatch, tmp_path):
    with_smi(monkeypatch, tmp_path / "bin", PAIR)
    (gpu,) = [one.gpu for one in settings_of("engine=vllm", "model=llama-3.3-70b-instruct-fp8")]
    # only one of its kind is there
    assert (gpu.name, gpu.count, gpu.memory_gb, gpu.bandwidth_gb_s) == ("rtx-a5000", 1, 25.8, None)
    with_smi(monkeypatch, tmp_path / "bin", SLICES)
    (gpu,) = [one.gpu for one in settings_of("engine=vllm", "model=llama-3.1-8b-instruct")]
    assert (gpu.name, gpu.count, gpu.memory_gb, gpu.bandwidth_gb_s) == ("a100-sxm4-80gb-mig-1g.10gb", 1, 10.7, None)
    with_programs(monkeypatch, tmp_path / "amd", {"rocm-smi": f"cat <<'E'\n{MI250X2}\nE"})
    (gpu,) = [one.gpu for one in settings_of("engine=vllm", "model=llama-3.3-70b-instruct-fp8")]
    assert (gpu.name, gpu.count, gpu.memory_gb) == ("mi250", 2, 68.7)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA L40S", "l40s"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA H100 PCIe", "h100-pcie"),
        ("AMD Instinct MI300X", "mi300x"), ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
    ],
)  # fmt: skip
def test_short_names(name, short):
    assert gpu_name(name) == short


def test_readme_commands_run_on_that_machine(h100s):
    """Each engine that is started gets a model of the hub, a GPU and a command."""
    known, checked = registry(), 0
    for _, text in COMMAND.findall(README.read_text(encoding="utf-8")):
        words = shlex.split(text.partition(" --cfg")[0])
        if "launch=attach" in words:
            continue
        words = [word for word in words if not word.startswith("tune")]
        for job in compose_jobs(["-m", *words], known):
            checked += 1
            settings = job.settings
            assert "/" in settings.model.name
            assert (settings.gpu.name, settings.gpu.count) == ("h100", 1)
            assert settings.model.name in " ".join(engine_command(settings, known).argv)
    assert checked >= 8


def test_the_users_prices(h100s, tmp_path):
    file = tmp_path / "config" / "servebench" / "prices.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("h100: 2.49\nb200: 5\n")
    words = ["engine=vllm", "gpu=auto,b200,h200"]
    assert [one.gpu.price_usd_per_hour for one in settings_of(*words)] == [2.49, 5.0, None]
    assert [one.gpu.price_usd_per_hour for one in settings_of(*words, "gpu.price_usd_per_hour=1")] == [1.0] * 3
    assert settings_of("engine=vllm", "gpu=none")[0].gpu.price_usd_per_hour is None
    file.write_text("h100: cheap\nh200: -1\n")
    with pytest.raises(ConfigError) as error:
        settings_of("engine=vllm")
    assert [line.startswith(str(file)) for line in error.value.faults] == [True, True]
