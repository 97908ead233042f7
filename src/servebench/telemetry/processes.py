"""CPU and memory of the engine's processes, and the energy of the CPU packages where the machine tells."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from servebench.contracts.telemetry import Reading, Subject, TelemetrySource

POWERCAP = Path("/sys/class/powercap")
"""RAPL: `intel-rapl:N/energy_uj` counts microjoules of package N (Documentation/power/powercap in the Linux source)."""

MICRO = 1e-6


class ProcessSource(TelemetrySource):
    """The process tree below the engine's pid. A process that ends takes its CPU time along: the sum may fall."""

    name = "process"

    def __init__(self, subject: Subject) -> None:
        """Nothing is looked up yet."""
        super().__init__(subject)
        self._known: dict[int, psutil.Process] = {}

    def open(self) -> str | None:
        """Only an engine of this machine that we started has a pid."""
        if self.subject.running.pid is None:
            return "the engine's processes are not known"
        return None

    def sample(self) -> Mapping[str, float] | None:
        """CPU seconds, resident bytes and the number of processes."""
        assert self.subject.running.pid is not None
        try:
            root = psutil.Process(self.subject.running.pid)
            living = [root, *root.children(recursive=True)]
        except psutil.Error:
            return None
        # the same object keeps what psutil caches of a process
        self._known = {process.pid: self._known.get(process.pid, process) for process in living}
        cpu_s = rss = 0.0
        for process in self._known.values():
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                cpu_s += times.user + times.system
                rss += process.memory_info().rss
        return {"engine_cpu_s": cpu_s, "engine_rss_bytes": rss, "engine_processes": float(len(living))}

    def readings(self, t_ns: int, sample: Mapping[str, float]) -> Sequence[Reading]:
        """A row a number."""
        return rows(t_ns, self.name, sample)


class CpuEnergySource(TelemetrySource):
    """RAPL's energy counters of all packages. Each wraps at its range; a fall between two samples is such a wrap."""

    name = "rapl"

    def __init__(self, subject: Subject, root: Path = POWERCAP) -> None:
        """Nothing is read yet. `root` is where the kernel shows its zones."""
        super().__init__(subject)
        self._root = root
        self._last: dict[Path, int] = {}
        self._total_uj: dict[Path, int] = {}

    def open(self) -> str | None:
        """See that the counters may be read."""
        if self.subject.running.pid is None:
            return "the engine does not run on this machine"
        zones = sorted(self._root.glob("*rapl:[0-9]")) if self._root.is_dir() else []
        for zone in zones:
            with contextlib.suppress(OSError, ValueError):
                self._last[zone] = int((zone / "energy_uj").read_text())
                self._total_uj[zone] = 0
        if self._last:
            return None
        return "no RAPL counters here" if not zones else "the RAPL counters may not be read by this user"

    def sample(self) -> float:
        """Joules since `open`, all packages together."""
        for zone, last in self._last.items():
            now = int((zone / "energy_uj").read_text())
            used = now - last
            if used < 0:
                used += int((zone / "max_energy_range_uj").read_text())
            self._total_uj[zone] += used
            self._last[zone] = now
        return sum(self._total_uj.values()) * MICRO

    def readings(self, t_ns: int, sample: float) -> Sequence[Reading]:
        """One row."""
        return rows(t_ns, self.name, {"cpu_energy_j": sample})


def rows(t_ns: int, source: str, values: Mapping[str, float], labels: str = "") -> list[Reading]:
    """Readings whose own name is the vocabulary's word."""
    return [
        Reading(t_ns=t_ns, source=source, name=name, raw_name=name, labels=labels, value=value)
        for name, value in values.items()
    ]
