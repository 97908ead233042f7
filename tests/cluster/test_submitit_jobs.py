"""Parameters for submitit, and states from Slurm."""

import os

import pytest

from servebench.cluster.submitit_jobs import SubmititCluster, parameters, parse_squeue
from servebench.contracts.cluster import SubmititSettings
from support.orchestration import run_order
from support.waiting import wait_until

SLURM = SubmititSettings(
    name="submitit_slurm",
    partition="gpu",
    gpus_per_node=2,
    gres=None,
    additional_parameters={"exclusive": True},
    setup=["module load cuda"],
)


def test_slurm_parameters_have_a_prefix():
    told = parameters(SLURM)
    assert told["slurm_partition"] == "gpu"
    assert told["gpus_per_node"] == 2
    assert told["slurm_additional_parameters"] == {"exclusive": True}
    assert told["slurm_setup"] == ["module load cuda"]
    assert "slurm_gres" not in told
    assert not any(name.startswith("slurm_") for name in parameters(SubmititSettings(name="submitit_local")))


def test_the_job_file_has_the_settings(tmp_path):
    slurm = pytest.importorskip("submitit.slurm.slurm")
    told = parameters(SLURM)
    names = ("slurm_partition", "gpus_per_node", "nodes", "slurm_additional_parameters", "slurm_setup")
    own = {name.removeprefix("slurm_"): told[name] for name in names}
    lines = slurm._make_sbatch_string("true", folder=tmp_path, time=told["timeout_min"], **own).splitlines()
    asked = {"--partition=gpu", "--gpus-per-node=2", "--nodes=1", "--exclusive", "--time=240"}
    assert asked <= {line.removeprefix("#SBATCH ") for line in lines}
    assert "module load cuda" in lines


def test_parse_squeue():
    text = "12_0|RUNNING|node1\n12_1|PENDING|\n\n13|NODE_FAIL|node2\nslurm_load_jobs error\n"
    assert parse_squeue(text) == {
        "12_0": ("RUNNING", "node1"),
        "12_1": ("PENDING", ""),
        "13": ("NODE_FAIL", "node2"),
    }


@pytest.mark.slow
def test_a_job_that_dies_is_lost(tmp_path):
    pytest.importorskip("submitit")
    cluster = SubmititCluster(SubmititSettings(name="submitit_local"), tmp_path, _dies)
    (job,) = cluster.submit([run_order()])
    assert cluster.room() == 0
    ended = wait_until(lambda: cluster.poll(job))
    assert ended.reply is None
    assert "\n" not in ended.lost
    assert f"job {job} " in ended.lost
    assert cluster.room() == 1


def _dies(order):
    os._exit(3)
