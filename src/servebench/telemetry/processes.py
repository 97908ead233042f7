"""Read CPU and memory of the engine's processes, and the energy of the CPU packages where the machine counts it."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import psutil

from servebench.contracts.telemetry import Reading, Subject, TelemetrySource
from servebench.util.processes import process_tree

POWERCAP = Path("/sys/class/powercap")
"""RAPL: `intel-rapl:N/energy_uj` counts microjoules of package N (Documentation/power/powercap in the Linux source)."""

MICRO = 1e-6


class ProcessSource(TelemetrySource):
    """The process tree of the engine's pid. The CPU time of a process that ends is lost: the sum may fall."""

    name = "process"
    _processes: Mapping[int, psutil.Process] = MappingProxyType({})

    def open(self) -> str | None:
        """Check that there is a pid: only an engine that servebench started on this machine has one."""
        if self.subject.running.pid is None:
            return "the engine's processes are unknown"
        return None

    def sample(self) -> Mapping[str, float] | None:
        """Return CPU seconds, of the first process also alone if it has children, resident bytes and the number of processes."""
        assert self.subject.running.pid is not None
        processes = process_tree(self.subject.running.pid)
        if not processes:
            return None
        # keep the objects: psutil caches in them
        self._processes = {process.pid: self._processes.get(process.pid, process) for process in processes}
        cpu_s, rss = [], 0.0
        for process in self._processes.values():
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                cpu_s.append(times.user + times.system)
                rss += process.memory_info().rss
        front_end = {"front_end_cpu_s": cpu_s[0]} if len(cpu_s) > 1 else {}
        return {
            "engine_cpu_s": sum(cpu_s), **front_end, "engine_rss_bytes": rss, "engine_processes": float(len(processes))
        }  # fmt: skip

    def readings(self, t_ns: int, sample: Mapping[str, float]) -> Sequence[Reading]:
        """Return one reading for each value."""
        return common_readings(t_ns, self.name, sample)


class CpuEnergySource(TelemetrySource):
    """RAPL's energy counters of all packages. A counter that falls between two samples has wrapped at its range."""

    name = "rapl"

    def __init__(self, subject: Subject, root: Path = POWERCAP) -> None:
        """Keep the subject; `open` reads the counters. `root` is the kernel's folder of zones."""
        super().__init__(subject)
        self._root = root
        self._last: dict[Path, int] = {}
        self._total_uj: dict[Path, int] = {}

    def open(self) -> str | None:
        """Check that the counters can be read."""
        if self.subject.running.pid is None:
            return "the engine does not run on this machine"
        zones = sorted(self._root.glob("*rapl:[0-9]")) if self._root.is_dir() else []
        for zone in zones:
            with contextlib.suppress(OSError, ValueError):
                self._last[zone] = int((zone / "energy_uj").read_text())
                self._total_uj[zone] = 0
        if self._last:
            return None
        return "no RAPL counters" if not zones else "this user may not read the RAPL counters"

    def sample(self) -> float:
        """Return the joules of all packages since `open`."""
        for zone, last in self._last.items():
            now = int((zone / "energy_uj").read_text())
            used = now - last
            if used < 0:
                used += int((zone / "max_energy_range_uj").read_text())
            self._total_uj[zone] += used
            self._last[zone] = now
        return sum(self._total_uj.values()) * MICRO

    def readings(self, t_ns: int, sample: float) -> Sequence[Reading]:
        """Return one reading."""
        return common_readings(t_ns, self.name, {"cpu_energy_j": sample})


def common_readings(t_ns: int, source: str, values: Mapping[str, float], labels: str = "") -> list[Reading]:
    """Return readings whose raw name is the common name."""
    return [
        Reading(t_ns=t_ns, source=source, name=name, raw_name=name, labels=labels, value=value)
        for name, value in values.items()
    ]
