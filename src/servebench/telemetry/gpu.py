"""Power, energy, memory, load and clock of NVIDIA GPUs, by NVML (package `nvidia-ml-py`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from servebench.contracts.telemetry import Reading, Subject, TelemetrySource
from servebench.telemetry.processes import rows

MILLI = 1e-3
PERCENT = 1e-2


class GpuSource(TelemetrySource):
    """Each GPU that the engine may see, by its index. Needs no GPU to be imported.

    `gpu_energy_j` is the driver's own counter since it was loaded (nvmlDeviceGetTotalEnergyConsumption, millijoules,
    Volta and newer); a GPU without one gives power only.
    """

    name = "gpu"

    def __init__(self, subject: Subject) -> None:
        """Nothing is opened yet."""
        super().__init__(subject)
        self._nvml: Any = None
        self._handles: list[Any] = []

    def open(self) -> str | None:
        """Load NVML and find the GPUs."""
        if self.subject.running.pid is None:
            return "the engine does not run on this machine"
        try:
            import pynvml
        except ImportError:
            return "nvidia-ml-py is not installed"
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return f"no NVIDIA driver here ({error})"
        self._nvml = pynvml
        count = pynvml.nvmlDeviceGetCount()
        wanted = min(count, self.subject.gpu.count or count)
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(wanted)]
        return None if self._handles else "the NVIDIA driver knows no GPU"

    def sample(self) -> list[Mapping[str, float]]:
        """What each GPU tells now; what one cannot tell is left out."""
        return [self._read(handle) for handle in self._handles]

    def _read(self, handle: Any) -> Mapping[str, float]:
        nvml = self._nvml
        ask: dict[str, Callable[[], float]] = {
            "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) * MILLI,
            "gpu_energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * MILLI,
            "gpu_memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "gpu_utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu * PERCENT,
            "gpu_sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "gpu_temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
        found: dict[str, float] = {}
        for name, read in ask.items():
            with contextlib.suppress(nvml.NVMLError):
                found[name] = float(read())
        return found

    def readings(self, t_ns: int, sample: Sequence[Mapping[str, float]]) -> Sequence[Reading]:
        """A row a number and GPU."""
        return [
            row for index, values in enumerate(sample) for row in rows(t_ns, self.name, values, labels=f'gpu="{index}"')
        ]

    def close(self) -> None:
        """Give NVML back."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
