"""Read power, energy, memory, utilization and clock of AMD GPUs through AMD SMI (package `amdsmi`, needs ROCm's library)."""

from collections.abc import Callable, Mapping
from typing import Any

from servebench.telemetry.gpu import PERCENT, DriverSource

MICRO = 1e-6
THROTTLED = 0xFFFF << 32
"""The bits of the driver's `indep_throttle_status` for temperatures (SMU_THROTTLER_TEMP_*, amdgpu_smu.h in the Linux source)."""
UNKNOWN = (1 << 64) - 1
"""What the driver sends where it knows nothing."""
MEBIBYTE = 1 << 20
POWER_KEYS = ("socket_power", "current_socket_power", "average_socket_power")
"""Which one is filled depends: the first since amdsmi 7, the second on MI300 and newer, the third on older GPUs."""


class AmdGpuSource(DriverSource):
    """AMD GPUs. `gpu_energy_j` is the driver's accumulator (amdsmi_get_energy_count) times its resolution in microjoules.
    Values of "N/A" are left out. Tested with the package's own replies, never with a GPU.
    """

    name = "amd_gpu"
    label = "amd"

    def find_gpus(self) -> str | None:
        """Use AMD SMI."""
        try:
            import amdsmi
        except ImportError:
            return "amdsmi is not installed"
        except (KeyError, OSError):
            return "amdsmi finds no libamd_smi.so: ROCm is not installed"
        try:
            amdsmi.amdsmi_init()
            self.handles = list(amdsmi.amdsmi_get_processor_handles())
        except amdsmi.AmdSmiException as error:
            return f"no AMD driver here ({error})"
        self.library, self.shut_down = amdsmi, amdsmi.amdsmi_shut_down
        self.errors = (amdsmi.AmdSmiException, KeyError, TypeError, ValueError)
        return None if self.handles else "the AMD driver lists no GPU"

    def queries(self, handle: Any) -> Mapping[str, Callable[[], float]]:
        """Return AMD SMI's queries."""
        smi = self.library
        return {
            "gpu_power_w": lambda: _power(smi.amdsmi_get_power_info(handle)),
            "gpu_energy_j": lambda: _energy(smi.amdsmi_get_energy_count(handle)),
            "gpu_memory_used_bytes": lambda: smi.amdsmi_get_gpu_vram_usage(handle)["vram_used"] * MEBIBYTE,
            "gpu_utilization": lambda: smi.amdsmi_get_gpu_activity(handle)["gfx_activity"] * PERCENT,
            "gpu_sm_clock_mhz": lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)["clk"],
            "gpu_temperature_c": lambda: smi.amdsmi_get_temp_metric(
                handle, smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
            ),
            "gpu_throttled": lambda: _throttled(smi.amdsmi_get_gpu_metrics_info(handle)["indep_throttle_status"]),
        }


def _power(info: Mapping[str, object]) -> float:
    for key in POWER_KEYS:
        value = info.get(key)
        if isinstance(value, int | float) and value > 0:
            return float(value)
    raise ValueError("no power value")


def _throttled(status: str | int) -> bool:
    """Return whether a temperature slows the GPU. Raises ValueError when that is unknown ("N/A", or all bits)."""
    if int(status) == UNKNOWN:
        raise ValueError("no throttle status")
    return bool(int(status) & THROTTLED)


def _energy(counter: Mapping[str, float]) -> float:
    """Return the energy counted so far, in joules. Raises KeyError when there is no counter."""
    count = counter["energy_accumulator"] if "energy_accumulator" in counter else counter["power"]
    return float(count) * float(counter["counter_resolution"]) * MICRO
