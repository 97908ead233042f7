"""The sources of this machine: processes, RAPL, GPUs."""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from servebench.contracts.telemetry import Subject
from servebench.telemetry.gpu import GpuSource
from servebench.telemetry.processes import CpuEnergySource, ProcessSource
from support.waiting import wait_until

BURNER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
print(child.pid, flush=True)
child.wait()
"""


def subject(pid):
    return Subject(engine=None, running=SimpleNamespace(pid=pid, command=None), gpu=SimpleNamespace(count=0))


def test_processes_count_their_children():
    parent = subprocess.Popen([sys.executable, "-c", BURNER], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    try:
        source = ProcessSource(subject(parent.pid))
        assert source.open() is None
        first = source.sample()
        wait_until(lambda: source.sample()["engine_cpu_s"] - first["engine_cpu_s"] >= 0.2)
        assert first["engine_processes"] == 2
        assert first["engine_rss_bytes"] > 4e6
        names = {reading.name for reading in source.readings(1, first)}
        assert names == {"engine_cpu_s", "front_end_cpu_s", "engine_rss_bytes", "engine_processes"}
        last = source.sample()
        # the child burns
        assert last["front_end_cpu_s"] < last["engine_cpu_s"] - 0.1
    finally:
        os.kill(child, 9)
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert source.sample() is None


def test_an_attached_engine_has_no_processes():
    assert ProcessSource(subject(None)).open() is not None
    assert GpuSource(subject(None)).open() is not None


def zone(root, number, energy, most=1000):
    folder = root / f"intel-rapl:{number}"
    folder.mkdir(exist_ok=True)
    (folder / "energy_uj").write_text(f"{energy}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")


def test_rapl_adds_packages_and_survives_a_wrap(tmp_path):
    zone(tmp_path, 0, 900)
    zone(tmp_path, 1, 100)
    (tmp_path / "intel-rapl:0:0").mkdir()
    source = CpuEnergySource(subject(1), tmp_path)
    assert source.open() is None
    zone(tmp_path, 0, 950)
    assert source.sample() == pytest.approx(50e-6)
    zone(tmp_path, 0, 150)  # wrapped at 1000
    zone(tmp_path, 1, 300)
    assert source.sample() == pytest.approx(450e-6)


@pytest.mark.parametrize("made", [False, True])
def test_rapl_that_is_not_there_says_so(tmp_path, made):
    root = tmp_path if made else tmp_path / "absent"
    assert "RAPL" in CpuEnergySource(subject(1), root).open()


class NvmlError(Exception):
    pass


def nvml(reasons, samples):
    """What NVML replies of one GPU; the queries of power and the like are not supported."""

    def unsupported(*_):
        raise NvmlError

    names = ("PowerUsage", "TotalEnergyConsumption", "MemoryInfo", "UtilizationRates", "ClockInfo", "Temperature")
    return SimpleNamespace(
        NVMLError=NvmlError, NVML_CLOCK_SM=1, NVML_TEMPERATURE_GPU=0, nvmlInit=bool, nvmlShutdown=bool,
        nvmlDeviceGetCount=lambda: 1, nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: reasons,
        nvmlDeviceGetProcessUtilization=lambda _, since: [one for one in samples if one.timeStamp > since],
        **{f"nvmlDeviceGet{name}": unsupported for name in names},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reasons", "throttled"), [(0x0, 0.0), (0x4, 0.0), (0x40, 1.0), (0x20 | 0x4, 1.0), (0x80, 1.0)]
)
def test_a_gpu_that_is_slowed_by_heat_but_not_by_its_power_cap(monkeypatch, reasons, throttled):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(reasons, []))
    source = GpuSource(subject(os.getpid()))
    assert source.open() is None
    assert source.sample() == [{"gpu_throttled": throttled}]


@pytest.mark.parametrize(
    ("visible", "count", "read"),
    [("2,3", 2, [2, 3]), ("1", 1, [1]), ("9", 1, [0]), ("", 2, [0, 1]), ("GPU-ab", 1, [0])],
)
def test_the_gpus_of_the_engine_are_read(monkeypatch, visible, count, read):
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**vars(nvml(0, [])) | {"nvmlDeviceGetCount": lambda: 4}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    own = subject(os.getpid())
    source = GpuSource(replace(own, gpu=SimpleNamespace(count=count)))
    assert source.open() is None
    assert source.handles == read


def test_others_on_the_gpu_where_the_driver_knows_the_engine(monkeypatch):
    def used(pid, share, stamp=5):
        return SimpleNamespace(pid=pid, smUtil=share, timeStamp=stamp)

    ours, other = os.getpid(), os.getppid()
    monkeypatch.setitem(sys.modules, "pynvml", nvml(0, [used(ours, 60), used(other, 30), used(other, 40)]))
    source = GpuSource(subject(ours))
    source.open()
    found = {
        one.labels: one.value for one in source.readings(1, source.sample()) if one.name == "gpu_foreign_utilization"
    }
    assert list(found.values()) == [0.4]
    assert next(iter(found)).startswith(f'gpu="0",pid="{other}",program="')
    # the driver is asked only for what came later
    assert source.sample() == [{"gpu_throttled": 0.0}]
    # pids of another namespace say nothing
    monkeypatch.setitem(sys.modules, "pynvml", nvml(0, [used(other, 30)]))
    source = GpuSource(subject(ours))
    source.open()
    assert source.sample() == [{"gpu_throttled": 0.0}]
