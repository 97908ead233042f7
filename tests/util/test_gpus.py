"""The GPUs that drivers list, by their recorded replies."""

import sys

import pytest

from servebench.util.gpus import Gpu, find_gpus, visible
from support.gpus import (
    H100_UUIDS,
    H100X8,
    MI250X2,
    PAIR,
    RADEON,
    SINGLE,
    SLICES,
    UNIFIED,
    nvml,
    with_programs,
    with_smi,
)

MACHINES = [
    (H100X8, ["NVIDIA H100 80GB HBM3"] * 8, 81559, "580.126.09", False),
    (PAIR, ["NVIDIA RTX A5000", "NVIDIA RTX 4500 Ada Generation"], 24564, "610.57.04", False),
    (SINGLE, ["NVIDIA GeForce GTX 1660 SUPER"], 6144, "591.86", False),
]


@pytest.fixture(autouse=True)
def asked_anew():
    yield
    find_gpus.cache_clear()


@pytest.mark.parametrize("by", ["nvml", "nvidia-smi"])
@pytest.mark.parametrize(("smi", "names", "mebibytes", "driver", "divided"), MACHINES)
def test_nvidia_gpus(monkeypatch, tmp_path, by, smi, names, mebibytes, driver, divided):
    if by == "nvml":
        with_programs(monkeypatch, tmp_path / "bin", {"nvidia-smi": "exit 9"})
        monkeypatch.setitem(sys.modules, "pynvml", nvml(smi))
    else:
        with_smi(monkeypatch, tmp_path / "bin", smi)
    gpus = find_gpus()
    assert [gpu.name for gpu in gpus] == names
    assert [gpu.index for gpu in gpus] == list(range(len(names)))
    assert (gpus[0].memory_bytes, gpus[0].driver, gpus[0].is_slice) == (mebibytes << 20, driver, divided)


@pytest.mark.parametrize("by", ["nvml", "nvidia-smi"])
def test_of_a_divided_gpu_the_slices_are_listed(monkeypatch, tmp_path, by):
    with_smi(monkeypatch, tmp_path / "bin", SLICES)
    if by == "nvml":
        monkeypatch.setitem(sys.modules, "pynvml", nvml(SLICES))
    gpus = find_gpus()
    assert [gpu.name for gpu in gpus] == ["NVIDIA A100-SXM4-80GB MIG 1g.10gb"] * 3
    assert all(gpu.is_slice and gpu.index == 0 and gpu.uuid.startswith("MIG-") for gpu in gpus)
    assert gpus[0].memory_bytes == 10 << 30
    find_gpus.cache_clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a25704ba-3a06-5299-a795-fd7cf4d13973")
    assert [gpu.uuid for gpu in find_gpus()] == ["MIG-a25704ba-3a06-5299-a795-fd7cf4d13973"]


def test_a_driver_may_not_know_the_memory(monkeypatch, tmp_path):
    with_smi(monkeypatch, tmp_path / "bin", UNIFIED)
    assert [(gpu.name, gpu.memory_bytes) for gpu in find_gpus()] == [("NVIDIA GB10", None)]


@pytest.mark.parametrize(
    ("printed", "names", "size", "driver"),
    [
        (RADEON, ["Radeon RX 7900 XT"], 21_458_059_264, None),
        (MI250X2, ["AMD INSTINCT MI250 (MCM) OAM AC MBA"] * 2, 68_702_699_520, "6.14.14"),
    ],
)
def test_amd_gpus(monkeypatch, tmp_path, printed, names, size, driver):
    with_programs(monkeypatch, tmp_path / "bin", {"rocm-smi": f"cat <<'E'\n{printed}\nE"})
    gpus = find_gpus()
    assert [gpu.name for gpu in gpus] == names
    assert (gpus[0].memory_bytes, gpus[0].driver) == (size, driver)
    find_gpus.cache_clear()
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "-1")
    assert find_gpus() == ()


@pytest.mark.parametrize(
    "script", ["exit 9", "echo No devices were found", r"printf '\377\376,\n'", "echo '{'", "echo '[1]'", "kill -9 $$"]
)
def test_a_driver_that_fails_has_no_gpu(monkeypatch, tmp_path, script):
    with_programs(monkeypatch, tmp_path / "bin", {"nvidia-smi": script, "rocm-smi": script})
    assert find_gpus() == ()


@pytest.mark.parametrize(
    ("named", "found"),
    [
        *[(None, 8), ("2,3", 2), ("7", 1), ("", 0), ("-1", 0), ("0,9,1", 1), ("0, 1", 2)],
        *[(H100_UUIDS[3], 1), ("GPU-7353c83a", 1), ("GPU-none", 0)],
    ],
)
def test_the_gpus_of_a_process(named, found):
    gpus = [Gpu(index=at, name="g", uuid=uuid) for at, uuid in enumerate(H100_UUIDS)]
    assert len(list(visible(gpus, named))) == found
