"""The shipped config files."""

from pathlib import Path

import pytest

from servebench.config import compose_jobs
from servebench.registry.conf import conf_dir
from servebench.registry.registry import build

CONF = Path(__file__).parents[2] / "conf"
ATTACHED = ["launch=attach", "launch.base_url=http://127.0.0.1:8000/v1"]
EXPERIMENTS = sorted(CONF.glob("experiment/*.yaml"))
LAUNCHERS = sorted(CONF.glob("hydra/launcher/*.yaml"))
SPACES = set((CONF / "tune").glob("*.yaml"))
FILES = sorted(
    {path for path in CONF.rglob("*.yaml") if path.stem not in ("base", "config")} - {*EXPERIMENTS, *LAUNCHERS, *SPACES}
)
NEEDED = {"slo": ["slo=interactive"]}
"""What an option asks for beside itself."""


def choice(path):
    return f"{path.parent.name}={path.stem}"


def test_the_checkout_has_the_config_folder():
    assert conf_dir() == CONF


@pytest.mark.parametrize("path", [*CONF.rglob("*.yaml")], ids=lambda path: str(path.relative_to(CONF)))
def test_each_file_opens_with_a_comment(path):
    assert path.read_text().startswith("# ")


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=choice)
def test_each_file_composes_into_a_job(path, make_registry):
    """With the real classes; of engines the embedded one is a stand-in."""
    group, option = path.parent.name, path.stem
    overrides = [choice(path), *NEEDED.get(option, [])]
    if group == "engine":
        overrides += ATTACHED
    elif choice(path) == ATTACHED[0]:
        overrides += ATTACHED[1:]
    (job,) = compose_jobs(overrides, make_registry(everything=True))
    if "name" in job.resolved[group] and group not in ("model", "study") and option != "auto":
        assert job.resolved[group]["name"] == {"podman": "docker"}.get(option, option)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXPERIMENTS, ids=choice)
def test_an_experiment_opens_with_the_command_that_runs_it(path):
    package, command, *_ = path.read_text().splitlines()
    assert package == "# @package _global_"
    words = command.removeprefix("# servebench ").partition("   ")[0].split()
    jobs = compose_jobs(words, build([], set()))
    assert words[:2] == ["-m", choice(path)]
    assert {job.settings.launch.name for job in jobs} == {"simulated" if path.stem == "demo" else "emulated"}
    assert len(jobs) == {"demo": 9, "rtx5090_qwen7b_extreme": 2, "h100x2_gptoss120b_sharegpt": 1}.get(path.stem, 3)


def test_the_default_job(registry):
    (job,) = compose_jobs([], registry)
    settings = job.settings
    assert (settings.engine.name, settings.launch.name, settings.gpu.name) == ("llamacpp", "process", "none")
    assert settings.load.concurrency == (1, 2, 4, 8)
    assert settings.model.gguf is not None
    assert settings.workload.name == "short"
    assert job.overrides == ()


def test_the_steady_window_is_three_minutes(registry):
    (job,) = compose_jobs(["load=steady"], registry)
    load = job.settings.load
    assert load.duration_s is not None
    assert load.duration_s - load.warmup_s == 180.0


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((CONF / "model").glob("*.yaml")), ids=lambda path: path.stem)
def test_model_shapes_agree(path, registry):
    if path.stem == "base":
        pytest.skip("it describes no model")
    (job,) = compose_jobs([choice(path)], registry)
    model = job.settings.model
    assert model.heads is not None
    assert model.kv_heads is not None
    assert model.heads % model.kv_heads == 0
