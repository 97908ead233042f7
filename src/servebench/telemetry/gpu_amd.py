"""Power, energy, memory, load and clock of AMD GPUs, by AMD SMI (package `amdsmi`, which needs ROCm's library)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from servebench.telemetry.gpu import PERCENT, DriverSource

MICRO = 1e-6
MEBIBYTE = 1 << 20
POWER_KEYS = ("socket_power", "current_socket_power", "average_socket_power")
"""Which of them a GPU fills depends on its kind: the first from amdsmi 7 on, the second on MI300 and newer, the third before."""


class AmdGpuSource(DriverSource):
    """AMD GPUs. `gpu_energy_j` is the driver's accumulator (amdsmi_get_energy_count) times its resolution in microjoules. What a
    GPU tells as "N/A" is left out. Checked against the package's own replies, never against a GPU.
    """

    name = "amd_gpu"
    label = "amd"
    faults = (KeyError, TypeError, ValueError)

    def find(self) -> str | None:
        """By AMD SMI."""
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
        self.library = amdsmi
        return None if self.handles else "the AMD driver knows no GPU"

    def asks(self, handle: Any) -> Mapping[str, Callable[[], Any]]:
        """In AMD SMI's words."""
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
        }

    def error(self) -> type[Exception]:
        """AMD SMI's."""
        found: type[Exception] = self.library.AmdSmiException
        return found

    def shut(self) -> None:
        """AMD SMI, too, is to be closed."""
        self.library.amdsmi_shut_down()


def _power(told: Mapping[str, Any]) -> float:
    """The power of the socket in watts. Raises ValueError when none is told."""
    for key in POWER_KEYS:
        value = told.get(key)
        if isinstance(value, int | float) and value > 0:
            return float(value)
    raise ValueError("no power is told")


def _energy(told: Mapping[str, Any]) -> float:
    """The energy counted so far, in joules. Raises KeyError when there is no counter."""
    counted = told["energy_accumulator"] if "energy_accumulator" in told else told["power"]
    return float(counted) * float(told["counter_resolution"]) * MICRO
