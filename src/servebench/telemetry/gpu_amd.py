"""Power, energy, memory, load and clock of AMD GPUs, by AMD SMI (package `amdsmi`, which needs ROCm's library)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from servebench.contracts.telemetry import Reading, Subject, TelemetrySource
from servebench.telemetry.processes import rows

MICRO = 1e-6
PERCENT = 1e-2
MEBIBYTE = 1 << 20
POWER_KEYS = ("socket_power", "current_socket_power", "average_socket_power")
"""Which of them a GPU fills depends on its kind: the first from amdsmi 7 on, the second on MI300 and newer, the third before."""


class AmdGpuSource(TelemetrySource):
    """Each AMD GPU that the engine may see, by its index. Needs no GPU to be imported.

    `gpu_energy_j` is the driver's accumulator (amdsmi_get_energy_count) times its resolution in microjoules. What a GPU tells as
    "N/A" is left out. Checked against the package's own replies, never against a GPU.
    """

    name = "amd_gpu"

    def __init__(self, subject: Subject) -> None:
        """Nothing is opened yet."""
        super().__init__(subject)
        self._smi: Any = None
        self._handles: list[Any] = []

    def open(self) -> str | None:
        """Load AMD SMI and find the GPUs."""
        if self.subject.running.pid is None:
            return "the engine does not run on this machine"
        try:
            import amdsmi
        except ImportError:
            return "amdsmi is not installed"
        except (KeyError, OSError):
            return "amdsmi finds no libamd_smi.so: ROCm is not installed"
        try:
            amdsmi.amdsmi_init()
            handles = list(amdsmi.amdsmi_get_processor_handles())
        except amdsmi.AmdSmiException as error:
            return f"no AMD driver here ({error})"
        self._smi = amdsmi
        self._handles = handles[: self.subject.gpu.count or len(handles)]
        return None if self._handles else "the AMD driver knows no GPU"

    def sample(self) -> list[Mapping[str, float]]:
        """What each GPU tells now; what one cannot tell is left out."""
        return [self._read(handle) for handle in self._handles]

    def _read(self, handle: Any) -> Mapping[str, float]:
        smi = self._smi
        ask: dict[str, Callable[[], Any]] = {
            "gpu_power_w": lambda: _power(smi.amdsmi_get_power_info(handle)),
            "gpu_energy_j": lambda: _energy(smi.amdsmi_get_energy_count(handle)),
            "gpu_memory_used_bytes": lambda: smi.amdsmi_get_gpu_vram_usage(handle)["vram_used"] * MEBIBYTE,
            "gpu_utilization": lambda: smi.amdsmi_get_gpu_activity(handle)["gfx_activity"] * PERCENT,
            "gpu_sm_clock_mhz": lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)["clk"],
            "gpu_temperature_c": lambda: smi.amdsmi_get_temp_metric(
                handle, smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
            ),
        }
        found: dict[str, float] = {}
        for name, read in ask.items():
            with contextlib.suppress(smi.AmdSmiException, KeyError, TypeError, ValueError):
                found[name] = float(read())
        return found

    def readings(self, t_ns: int, sample: Sequence[Mapping[str, float]]) -> Sequence[Reading]:
        """A row a number and GPU."""
        return [
            row
            for index, values in enumerate(sample)
            for row in rows(t_ns, self.name, values, labels=f'gpu="amd{index}"')
        ]

    def close(self) -> None:
        """Give AMD SMI back."""
        if self._smi is not None:
            with contextlib.suppress(self._smi.AmdSmiException):
                self._smi.amdsmi_shut_down()


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
