"""Power, energy, memory, load and clock of GPUs: NVIDIA's by NVML (package `nvidia-ml-py`), the walk over them for all."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from servebench.contracts.telemetry import Reading, Subject, TelemetrySource
from servebench.telemetry.processes import rows

MILLI = 1e-3
PERCENT = 1e-2


class DriverSource(TelemetrySource):
    """GPUs of one maker, by its driver's library: each that the engine may see, by its index. What a GPU cannot tell is left out.

    Needs no GPU, and not the library, to be imported.
    """

    faults: ClassVar[tuple[type[Exception], ...]] = ()
    """What a reply raises that is of the wrong form, beside the library's own errors."""
    label: ClassVar[str] = ""
    """What stands before the index in a reading's label."""

    def __init__(self, subject: Subject) -> None:
        """Nothing is opened yet."""
        super().__init__(subject)
        self.library: Any = None
        self.handles: list[Any] = []

    def open(self) -> str | None:
        """Load the library and find the GPUs."""
        if self.subject.running.pid is None:
            return "the engine does not run on this machine"
        reason = self.find()
        self.handles = self.handles[: self.subject.gpu.count or len(self.handles)]
        return reason

    @abstractmethod
    def find(self) -> str | None:
        """Set `library` and `handles`; why there are none, in one line."""

    @abstractmethod
    def asks(self, handle: Any) -> Mapping[str, Callable[[], Any]]:
        """For each word of the vocabulary how one GPU is asked for it."""

    @abstractmethod
    def error(self) -> type[Exception]:
        """What the library raises."""

    @abstractmethod
    def shut(self) -> None:
        """Give the library back."""

    def sample(self) -> list[Mapping[str, float]]:
        """What each GPU tells now."""
        return [self._read(handle) for handle in self.handles]

    def _read(self, handle: Any) -> Mapping[str, float]:
        found: dict[str, float] = {}
        for name, read in self.asks(handle).items():
            with contextlib.suppress(self.error(), *self.faults):
                found[name] = float(read())
        return found

    def readings(self, t_ns: int, sample: Sequence[Mapping[str, float]]) -> Sequence[Reading]:
        """A row a number and GPU."""
        return [
            row
            for index, values in enumerate(sample)
            for row in rows(t_ns, self.name, values, labels=f'gpu="{self.label}{index}"')
        ]

    def close(self) -> None:
        """Give the library back, if it was loaded."""
        if self.library is not None:
            with contextlib.suppress(self.error()):
                self.shut()


class GpuSource(DriverSource):
    """NVIDIA GPUs. `gpu_energy_j` is the driver's own counter since it was loaded (nvmlDeviceGetTotalEnergyConsumption,
    millijoules, Volta and newer); a GPU without one gives power only.
    """

    name = "gpu"

    def find(self) -> str | None:
        """By NVML."""
        try:
            import pynvml
        except ImportError:
            return "nvidia-ml-py is not installed"
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return f"no NVIDIA driver here ({error})"
        self.library = pynvml
        self.handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return None if self.handles else "the NVIDIA driver knows no GPU"

    def asks(self, handle: Any) -> Mapping[str, Callable[[], Any]]:
        """In NVML's words."""
        nvml = self.library
        return {
            "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) * MILLI,
            "gpu_energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * MILLI,
            "gpu_memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "gpu_utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu * PERCENT,
            "gpu_sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "gpu_temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }

    def error(self) -> type[Exception]:
        """NVML's."""
        found: type[Exception] = self.library.NVMLError
        return found

    def shut(self) -> None:
        """NVML counts those who use it."""
        self.library.nvmlShutdown()
