"""`hydra/launcher` and its keys."""

from dataclasses import asdict

import pytest

from servebench.config import compose_jobs, launcher_from_dict
from servebench.contracts.cluster import LAUNCHERS, RaySettings, SubmititSettings
from servebench.registry.conf import conf_dir
from servebench.registry.registry import build
from servebench.util.errors import ConfigError

REGISTRY = build([], set())
RUN = ("-m", "engine=vllm,sglang", "launch=emulated", "gpu=rtx5090")


UNKNOWN = "hydra.launcher.retrys: unknown key; did you mean 'hydra.launcher.retries'?"
SOON = "hydra.launcher.timeout_min must be an integer (got 'soon')"


def launcher(*words):
    first, second = compose_jobs([*RUN, *words], REGISTRY)
    assert first.launcher == second.launcher
    return first.launcher


def test_every_launcher_has_a_file_and_settings():
    assert {path.stem for path in (conf_dir() / "hydra" / "launcher").glob("*.yaml")} == set(LAUNCHERS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LAUNCHERS))
def test_a_launcher_comes_back_from_disk_as_it_was(name):
    settings = launcher(f"hydra/launcher={name}")
    assert settings.name == name
    assert launcher_from_dict(asdict(settings)) == settings


@pytest.mark.slow
def test_keys_are_those_of_hydras_own_launchers():
    slurm = launcher(
        "hydra/launcher=submitit_slurm",
        *("hydra.launcher.partition=gpu", "hydra.launcher.gpus_per_node=2", "hydra.launcher.timeout_min=30"),
        "+hydra.launcher.additional_parameters.exclusive=true",
    )
    assert isinstance(slurm, SubmititSettings)
    assert (slurm.partition, slurm.gpus_per_node, slurm.timeout_min) == ("gpu", 2, 30)
    assert slurm.additional_parameters == {"exclusive": True}
    ray = launcher(
        "hydra/launcher=ray", "hydra.launcher.ray.init.address=10.0.0.1:6379", "hydra.launcher.ray.remote.num_gpus=2"
    )
    assert isinstance(ray, RaySettings)
    assert (ray.ray.init.address, ray.ray.remote.num_gpus) == ("10.0.0.1:6379", 2)


@pytest.mark.slow
def test_without_a_launcher_runs_are_done_here():
    assert launcher() is None
    assert launcher("hydra/launcher=basic") is None
    assert launcher_from_dict({}) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hydra/launcher=rayy"], "hydra/launcher=rayy: no such launcher; did you mean 'ray'?"),
        (["hydra/launcher=ray", "+hydra.launcher.retrys=2"], UNKNOWN),
        (["hydra/launcher=ray", "hydra.launcher.retrys=2"], UNKNOWN),
        (["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=soon"], SOON),
        (
            ["hydra/launcher=ray", "hydra.launcher.runs_per_machine=0"],
            "hydra.launcher.runs_per_machine must be at least 1",
        ),
    ],
)
def test_a_mistake_is_one_line(words, told):
    with pytest.raises(ConfigError) as caught:
        compose_jobs([*RUN, *words], REGISTRY)
    assert len(caught.value.faults) == 1
    assert told in caught.value.faults[0]
