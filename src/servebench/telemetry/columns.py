"""Compute the telemetry columns of a point from its readings. Pure.

Counters that belong to requests (cache lookups, preemptions, queue time, drafted tokens) are taken over the whole phase,
from before its first request to after its last, so that they include all of its requests; the engine must have no other
clients. CPU, energy and gauges are taken inside the measurement window, counters interpolated linearly at its ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.contracts.telemetry import Reading
from servebench.util.stretches import Spans, between, length
from servebench.util.units import NS_PER_S

GPU_LIBRARIES = {"gpu": "nvml", "amd_gpu": "amdsmi"}
"""The library that a GPU source reads."""
GB = 1e9
MS_PER_S = 1000


@dataclass
class _Series:
    """The values of one name over time, one line for each label (GPU). `began_ns` is when its source was first read."""

    began_ns: int
    source: str
    lines: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    def add(self, reading: Reading) -> None:
        self.lines.setdefault(reading.labels, []).append((reading.t_ns, reading.value))

    def arrays(self) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Return the times in ns and the values of each line; a float would round a time to 256 ns."""
        return [
            (np.array([t for t, _ in line], dtype=np.int64), np.array([v for _, v in line], dtype=np.float64))
            for line in self.lines.values()
        ]

    def growth(self) -> float | None:
        """Return how much a counter grew from the first sample to the last; None with fewer than two, or if it fell. A counter
        that is missing at first was 0: some engines show a counter only once it has counted."""
        total = 0.0
        for times, values in self.arrays():
            late = times[0] > self.began_ns
            first = 0.0 if late else float(values[0])
            if (times.size < 2 and not late) or values[-1] < values[0]:
                return None
            total += float(values[-1]) - first
        return total

    def growth_inside(self, pieces: Spans) -> float | None:
        """Return how much a counter grew in stretches of time; None if the samples do not enclose them."""
        total = 0.0
        for times, values in self.arrays():
            if times.size < 2 or values[-1] < values[0] or times[0] > pieces[0][0] or times[-1] < pieces[-1][1]:
                return None
            edges = np.array(pieces, dtype=np.int64) - times[0]
            total += float(np.diff(np.interp(edges, times - times[0], values)).sum())
        return total

    def inside(self, pieces: Spans) -> list[NDArray[np.float64]]:
        """Return the values of each line in stretches of time, or all of a line's values if none lies in them."""
        lines = []
        for times, values in self.arrays():
            within = np.concatenate([values[(times >= low) & (times <= high)] for low, high in pieces])
            lines.append(within if within.size else values)
        return lines

    def integral(self, pieces: Spans) -> float | None:
        """Return the integral of a rate over stretches of time (trapezoids); None if the samples do not enclose them."""
        total = 0.0
        for times, values in self.arrays():
            if times.size < 2 or times[0] > pieces[0][0] or times[-1] < pieces[-1][1]:
                return None
            for low, high in pieces:
                at = np.concatenate(([low], times[(times > low) & (times < high)], [high]))
                total += float(np.trapezoid(np.interp(at, times, values), at) / NS_PER_S)
        return total


def telemetry_columns(
    readings: Sequence[Reading], start_ns: int | None, end_ns: int | None, left_out: Spans = ()
) -> dict[str, Any]:
    """Return the telemetry columns of a point's row, by name. Columns of the window (without the stretches left out) are
    missing where there is none."""
    by_name: dict[str, _Series] = {}
    began: dict[str, int] = {}
    for reading in readings:
        began[reading.source] = min(reading.t_ns, began.get(reading.source, reading.t_ns))
    for reading in readings:
        if reading.name is not None:
            by_name.setdefault(reading.name, _Series(began[reading.source], reading.source)).add(reading)
    columns: dict[str, Any] = {
        "telemetry_samples": len({reading.t_ns for reading in readings}),
        **_phase_columns(by_name),
    }
    pieces = between(left_out, start_ns, end_ns) if start_ns is not None and end_ns is not None else []
    if pieces:
        columns.update(_window_columns(by_name, pieces))
    return columns


def held_requests(readings: Sequence[Reading]) -> list[tuple[int, float]]:
    """Return (CLOCK_REALTIME ns, requests running and waiting) of each sample that has both."""
    samples: dict[int, dict[str, float]] = {}
    for reading in readings:
        if reading.name in ("requests_running", "requests_waiting"):
            sample = samples.setdefault(reading.t_ns, {})
            sample[reading.name] = sample.get(reading.name, 0.0) + reading.value
    return [(at, sum(sample.values())) for at, sample in sorted(samples.items()) if len(sample) == 2]


def _phase_columns(by_name: dict[str, _Series]) -> dict[str, float | None]:
    def growth(name: str) -> float | None:
        return by_name[name].growth() if name in by_name else None

    def share(part: str, whole: str) -> float | None:
        grown, of = growth(part), growth(whole)
        return grown / of if grown is not None and of else None

    mean_wait_s = share("queue_time_s_sum", "queue_time_s_count")
    return {
        "server_prefix_cache_hit_rate": share("prefix_cache_hits_tokens", "prefix_cache_queries_tokens"),
        "server_preemptions": growth("preemptions"),
        "server_queue_time_ms_mean": mean_wait_s * MS_PER_S if mean_wait_s is not None else None,
        "server_generation_tokens": growth("generation_tokens"),
        "spec_acceptance_rate": share("spec_accepted_tokens", "spec_draft_tokens"),
    }


def _window_columns(by_name: dict[str, _Series], pieces: Spans) -> dict[str, float | str | None]:
    def over(name: str, of: Callable[[NDArray[np.float64]], Any] = np.mean, by: float = 1.0) -> float | None:
        """Return the mean over time (or the maximum), summed over the lines (several GPUs) and divided by `by`."""
        return float(sum(map(of, by_name[name].inside(pieces)))) / by if name in by_name else None

    def cores(name: str) -> float | None:
        cpu_s = by_name[name].growth_inside(pieces) if name in by_name else None
        return cpu_s / (length(pieces) / NS_PER_S) if cpu_s is not None else None

    gpus = len(by_name["gpu_utilization"].lines) if "gpu_utilization" in by_name else 1
    energy_j, source = _energy(by_name, pieces)
    return {
        "server_running_mean": over("requests_running"),
        "server_waiting_mean": over("requests_waiting"),
        "server_waiting_max": over("requests_waiting", np.max),
        "server_kv_cache_usage_max": over("kv_cache_usage", np.max),
        "engine_cpu_cores_mean": cores("engine_cpu_s"),
        "front_end_cores_mean": cores("front_end_cpu_s"),
        "engine_memory_gb_max": over("engine_rss_bytes", np.max, GB),
        "gpu_power_w_mean": over("gpu_power_w"),
        "gpu_utilization_mean": over("gpu_utilization", by=gpus),
        "gpu_memory_gb_max": over("gpu_memory_used_bytes", np.max, GB),
        "gpu_sm_clock_mhz_mean": over("gpu_sm_clock_mhz", by=gpus),
        "energy_j": energy_j,
        "energy_source": source,
    }


def _energy(by_name: dict[str, _Series], pieces: Spans) -> tuple[float | None, str | None]:
    if "gpu_energy_j" in by_name:
        counted = by_name["gpu_energy_j"].growth_inside(pieces)
        powered = by_name["gpu_power_w"].lines if "gpu_power_w" in by_name else {}
        # not every GPU of a machine has a counter
        if counted is not None and len(by_name["gpu_energy_j"].lines) >= len(powered):
            return counted, f"{GPU_LIBRARIES.get(by_name['gpu_energy_j'].source, 'nvml')}_counter"
    if "gpu_power_w" in by_name:
        drawn = by_name["gpu_power_w"].integral(pieces)
        library = GPU_LIBRARIES.get(by_name["gpu_power_w"].source, "nvml")
        return drawn, f"{library}_power" if drawn is not None else None
    if "cpu_energy_j" in by_name:
        used = by_name["cpu_energy_j"].growth_inside(pieces)
        return used, "rapl" if used is not None else None
    return None, None
