"""AMD SMI, as its package replies (amdsmi 7.0: keys, units, "N/A"): no such GPU was there."""

import sys
from types import SimpleNamespace

import pytest

from servebench.contracts.telemetry import Subject
from servebench.telemetry.columns import telemetry_columns
from servebench.telemetry.gpu import AmdGpuSource


class AmdSmiException(Exception):
    pass


def module(**replies):
    """What `import amdsmi` gives; a reply that is an exception is raised."""

    def says(reply):
        def call(*_):
            if isinstance(reply, Exception):
                raise reply
            return reply

        return call

    told = {
        "amdsmi_init": None,
        "amdsmi_shut_down": None,
        "amdsmi_get_processor_handles": ["a", "b"],
        "amdsmi_get_power_info": {"socket_power": 0, "current_socket_power": 305, "average_socket_power": "N/A"},
        "amdsmi_get_energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.3, "timestamp": 1},
        "amdsmi_get_gpu_vram_usage": {"vram_total": 196_592, "vram_used": 1024},
        "amdsmi_get_gpu_activity": {"gfx_activity": 87, "umc_activity": 4, "mm_activity": "N/A"},
        "amdsmi_get_clock_info": {"clk": 2100},
        "amdsmi_get_temp_metric": 61,
        **replies,
    }
    kinds = {
        "AmdSmiClkType": SimpleNamespace(GFX=1),
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT=1),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT=0),
    }
    return SimpleNamespace(
        AmdSmiException=AmdSmiException, **kinds, **{name: says(reply) for name, reply in told.items()}
    )


def source(pid=1, count=0):
    return AmdGpuSource(
        Subject(engine=None, running=SimpleNamespace(pid=pid, command=None), gpu=SimpleNamespace(count=count))
    )


def test_each_gpu_tells_in_our_units(monkeypatch):
    monkeypatch.setitem(sys.modules, "amdsmi", module())
    one = source(count=1)
    assert one.open() is None
    (values,) = one.sample()
    assert values == {
        "gpu_power_w": 305.0,
        "gpu_energy_j": pytest.approx(30.6),
        "gpu_memory_used_bytes": 1024 * 2**20,
        "gpu_utilization": pytest.approx(0.87),
        "gpu_sm_clock_mhz": 2100.0,
        "gpu_temperature_c": 61.0,
    }
    assert {row.labels for row in one.readings(5, [values, values])} == {'gpu="amd0"', 'gpu="amd1"'}
    one.close()
    told = [*one.readings(0, [{"gpu_energy_j": 10.0}]), *one.readings(2_000_000_000, [{"gpu_energy_j": 30.0}])]
    found = telemetry_columns(told, 500_000_000, 1_500_000_000)
    assert (found["energy_j"], found["energy_source"]) == (pytest.approx(10.0), "amdsmi_counter")
    both = source()
    assert both.open() is None
    assert len(both.sample()) == 2


def test_what_a_gpu_does_not_tell_is_left_out(monkeypatch):
    silent = module(
        amdsmi_get_power_info={"average_socket_power": "N/A"},
        amdsmi_get_energy_count=AmdSmiException("not supported"),
        amdsmi_get_gpu_activity={"gfx_activity": "N/A"},
        amdsmi_get_clock_info={"clk": "N/A"},
        amdsmi_get_temp_metric=AmdSmiException("not supported"),
    )
    monkeypatch.setitem(sys.modules, "amdsmi", silent)
    one = source(count=1)
    assert one.open() is None
    assert list(one.sample()[0]) == ["gpu_memory_used_bytes"]


@pytest.mark.parametrize(
    ("found", "pid", "told"),
    [
        (None, 1, "amdsmi is not installed"),
        (module(amdsmi_init=AmdSmiException("no driver")), 1, "no AMD driver here (no driver)"),
        (module(amdsmi_get_processor_handles=[]), 1, "the AMD driver lists no GPU"),
        (module(), None, "the engine does not run on this machine"),
    ],
)
def test_why_there_is_nothing_to_tell(found, pid, told, monkeypatch):
    monkeypatch.setitem(sys.modules, "amdsmi", found)
    assert source(pid).open() == told


def test_without_rocm_the_package_cannot_be_imported(monkeypatch, tmp_path):
    """It fails with the name of the library that it does not find."""
    (tmp_path / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')\n")
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert source().open() == "amdsmi finds no libamd_smi.so: ROCm is not installed"


@pytest.mark.parametrize(
    ("status", "throttled"),
    [(0, 0.0), (1 << 1, 0.0), (1 << 36, 1.0), (1 << 47, 1.0), ((1 << 64) - 1, None), ("N/A", None)],
)
def test_heat_of_a_gpu_but_not_its_power_limit(monkeypatch, status, throttled):
    monkeypatch.setitem(sys.modules, "amdsmi", module(amdsmi_get_gpu_metrics_info={"indep_throttle_status": status}))
    one = source(count=1)
    one.open()
    assert one.sample()[0].get("gpu_throttled") == throttled
