"""Read power, energy, memory, utilization and clock of GPUs: the base of all makers, and NVIDIA's NVML (`nvidia-ml-py`)."""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from servebench.contracts.telemetry import Reading, Subject, TelemetrySource
from servebench.telemetry.processes import common_readings

MILLI = 1e-3
PERCENT = 1e-2


class DriverSource(TelemetrySource):
    """Reads the GPUs of one maker through its driver's library, by index. Values that a GPU does not provide are left out.

    Importing it needs neither a GPU nor the library.
    """

    label: ClassVar[str] = ""
    """The prefix of the index in a reading's label."""

    def __init__(self, subject: Subject) -> None:
        """Keep the subject; `open` loads the library."""
        super().__init__(subject)
        self.library: Any = None
        self.errors: tuple[type[Exception], ...] = ()
        """What a query raises: the library's own errors, and those of a malformed reply."""
        self.shut_down: Callable[[], object] | None = None
        self.handles: list[Any] = []

    def open(self) -> str | None:
        """Load the library and find the GPUs."""
        if self.subject.running.pid is None:
            return "the engine does not run on this machine"
        reason = self.find_gpus()
        self.handles = self.handles[: self.subject.gpu.count or len(self.handles)]
        return reason

    @abstractmethod
    def find_gpus(self) -> str | None:
        """Set `library`, `errors`, `shut_down` and `handles`; return why there are none, in one line."""

    @abstractmethod
    def queries(self, handle: Any) -> Mapping[str, Callable[[], Any]]:
        """Return the query of one GPU for each common name."""

    def sample(self) -> list[Mapping[str, float]]:
        """Return the current values of each GPU."""
        return [self._read(handle) for handle in self.handles]

    def _read(self, handle: Any) -> Mapping[str, float]:
        values: dict[str, float] = {}
        for name, read in self.queries(handle).items():
            with contextlib.suppress(*self.errors):
                values[name] = float(read())
        return values

    def readings(self, t_ns: int, sample: Sequence[Mapping[str, float]]) -> Sequence[Reading]:
        """Return one reading for each value and GPU."""
        return [
            reading
            for index, values in enumerate(sample)
            for reading in common_readings(t_ns, self.name, values, labels=f'gpu="{self.label}{index}"')
        ]

    def close(self) -> None:
        """Shut the library down if it was loaded."""
        if self.shut_down is not None:
            with contextlib.suppress(*self.errors):
                self.shut_down()


class GpuSource(DriverSource):
    """NVIDIA GPUs. `gpu_energy_j` is the driver's counter since it was loaded (nvmlDeviceGetTotalEnergyConsumption,
    millijoules, Volta and newer); a GPU without one gives power only.
    """

    name = "gpu"

    def find_gpus(self) -> str | None:
        """Use NVML."""
        try:
            import pynvml
        except ImportError:
            return "nvidia-ml-py is not installed"
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return f"no NVIDIA driver here ({error})"
        # NVML counts its users
        self.library, self.errors, self.shut_down = pynvml, (pynvml.NVMLError,), pynvml.nvmlShutdown
        self.handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return None if self.handles else "the NVIDIA driver lists no GPU"

    def queries(self, handle: Any) -> Mapping[str, Callable[[], Any]]:
        """Return NVML's queries."""
        nvml = self.library
        return {
            "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) * MILLI,
            "gpu_energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * MILLI,
            "gpu_memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "gpu_utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu * PERCENT,
            "gpu_sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "gpu_temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
