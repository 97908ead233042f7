"""Read power, energy, memory, utilization and clock of GPUs: NVIDIA's through NVML (`nvidia-ml-py`), AMD's through AMD SMI
(package `amdsmi`, needs ROCm's library)."""

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import psutil

from servebench.contracts.engine import GPUS_VARIABLE
from servebench.contracts.telemetry import Reading, TelemetrySource
from servebench.telemetry.machine import shown_name
from servebench.telemetry.processes import common_readings
from servebench.util.processes import process_tree

THROTTLED = 0x08 | 0x20 | 0x40 | 0x80
"""nvmlClocksThrottleReasons: HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown. The cap of the power
(SwPowerCap) is not among them: a GPU under full load is meant to reach it."""
MILLI = 1e-3
PERCENT = 1e-2
MICRO = 1e-6
AMD_THROTTLED = 0xFFFF << 32
"""The bits of the driver's `indep_throttle_status` for temperatures (SMU_THROTTLER_TEMP_*, amdgpu_smu.h in the Linux source)."""
AMD_UNKNOWN = (1 << 64) - 1
"""What the driver sends where it knows nothing."""
MEBIBYTE = 1 << 20
AMD_POWER_KEYS = ("socket_power", "current_socket_power", "average_socket_power")
"""Which one is filled depends: the first since amdsmi 7, the second on MI300 and newer, the third on older GPUs."""


class DriverSource(TelemetrySource):
    """Reads the GPUs of one maker through its driver's library, by index. Values that a GPU does not provide are left out.
    Importing it needs neither a GPU nor the library."""

    label: ClassVar[str] = ""
    """The prefix of the index in a reading's label."""
    library: Any = None
    errors: tuple[type[Exception], ...] = ()
    """What a query raises: the library's own errors, and those of a malformed reply."""
    shut_down: Callable[[], object] | None = None
    handles: Sequence[Any] = ()

    def open(self) -> str | None:
        """Load the library and find the GPUs."""
        if self.subject.running.pid is None:
            return "the engine does not run on this machine"
        reason = self.find_gpus()
        self.handles = [self.handles[place] for place in self._own_gpus()][
            : self.subject.gpu.count or len(self.handles)
        ]
        return reason

    def _own_gpus(self) -> Sequence[int]:
        """Return the places of the GPUs that the engine may use, where its environment names them by number; else all."""
        command = self.subject.running.command
        named = (command.env if command is not None else {}).get(GPUS_VARIABLE, os.environ.get(GPUS_VARIABLE, ""))
        places = [int(one) for one in named.split(",") if one.strip().isdecimal()]
        return [one for one in places if one < len(self.handles)] or range(len(self.handles))

    @abstractmethod
    def find_gpus(self) -> str | None:
        """Set `library`, `errors`, `shut_down` and `handles`; return why there are none, in one line."""

    @abstractmethod
    def queries(self, handle: Any) -> Mapping[str, Callable[[], float]]:
        """Return the query of one GPU for each common name."""

    def sample(self) -> list[Mapping[str, float]]:
        """Return the current values of each GPU."""
        return [self._read(handle) for handle in self.handles]

    def processes(self, handle: Any) -> Mapping[int, float]:
        """Return the share of a GPU's time that each process used lately, by pid; nothing where the driver cannot tell."""
        return {}

    def _read(self, handle: Any) -> Mapping[str, float]:
        values: dict[str, float] = {}
        for name, read in self.queries(handle).items():
            # an older library lacks some queries
            with contextlib.suppress(AttributeError, *self.errors):
                values[name] = float(read())
        with contextlib.suppress(AttributeError, *self.errors):
            values.update(self._foreign(self.processes(handle)))
        return values

    def _foreign(self, used: Mapping[int, float]) -> dict[str, float]:
        """Return what processes other than the engine's used, by their labels. In a container the driver may use pids of the
        host: only if it lists a process of the engine can it be trusted."""
        root = self.subject.running.pid
        if not used or root is None:
            return {}
        with contextlib.suppress(psutil.Error):
            own = {process.pid for process in process_tree(root)}
            if own & set(used):
                others = {pid: share for pid, share in used.items() if pid not in own and psutil.pid_exists(pid)}
                names = {pid: shown_name(psutil.Process(pid).name().encode()) for pid in others}
                return {f'pid="{pid}",program="{names[pid]}"': share for pid, share in others.items()}
        return {}

    def readings(self, t_ns: int, sample: Sequence[Mapping[str, float]]) -> Sequence[Reading]:
        """Return one reading for each value and GPU, and for each process of others on it."""
        found: list[Reading] = []
        for index, values in enumerate(sample):
            gpu = f'gpu="{self.label}{index}"'
            plain = {name: value for name, value in values.items() if not name.startswith("pid=")}
            found += common_readings(t_ns, self.name, plain, labels=gpu)
            for process in values.keys() - plain.keys():
                share = {"gpu_foreign_utilization": values[process]}
                found += common_readings(t_ns, self.name, share, labels=f"{gpu},{process}")
        return found

    def close(self) -> None:
        """Shut the library down if it was loaded."""
        if self.shut_down is not None:
            with contextlib.suppress(*self.errors):
                self.shut_down()


class GpuSource(DriverSource):
    """NVIDIA GPUs. `gpu_energy_j` is the driver's counter since it was loaded (nvmlDeviceGetTotalEnergyConsumption,
    millijoules, Volta and newer); a GPU without one gives power only. `gpu_throttled` and `gpu_foreign_utilization` are
    tested with replies of the library, never with a GPU.
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
        self._seen_us: dict[int, int] = {}
        self.library, self.errors, self.shut_down = pynvml, (pynvml.NVMLError,), pynvml.nvmlShutdown
        self.handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return None if self.handles else "the NVIDIA driver lists no GPU"

    def queries(self, handle: Any) -> Mapping[str, Callable[[], float]]:
        """Return NVML's queries."""
        nvml = self.library
        return {
            "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) * MILLI,
            "gpu_energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * MILLI,
            "gpu_memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "gpu_utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu * PERCENT,
            "gpu_sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "gpu_temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "gpu_throttled": lambda: bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & THROTTLED),
        }

    def processes(self, handle: Any) -> Mapping[int, float]:
        """Return NVML's utilization of the multiprocessors by process, of the time since the last call."""
        nvml = self.library
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us.get(id(handle), 0))
        self._seen_us[id(handle)] = max((int(one.timeStamp) for one in samples), default=0)
        used: dict[int, float] = {}
        for one in samples:
            used[int(one.pid)] = max(used.get(int(one.pid), 0.0), float(one.smUtil) * PERCENT)
        return used


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
    for key in AMD_POWER_KEYS:
        value = info.get(key)
        if isinstance(value, int | float) and value > 0:
            return float(value)
    raise ValueError("no power value")


def _throttled(status: str | int) -> bool:
    """Return whether a temperature slows the GPU. Raises ValueError when that is unknown ("N/A", or all bits)."""
    if int(status) == AMD_UNKNOWN:
        raise ValueError("no throttle status")
    return bool(int(status) & AMD_THROTTLED)


def _energy(counter: Mapping[str, float]) -> float:
    """Return the energy counted so far, in joules. Raises KeyError when there is no counter."""
    count = counter["energy_accumulator"] if "energy_accumulator" in counter else counter["power"]
    return float(count) * float(counter["counter_resolution"]) * MICRO
