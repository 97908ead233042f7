"""Telemetry: the engine's own metrics, its processes and the GPU while load runs, in one vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from servebench.contracts.engine import Engine, RunningEngine
from servebench.contracts.settings import GpuSettings

VOCABULARY: Mapping[str, str] = {
    "requests_running": "requests that the engine works on",
    "requests_waiting": "requests that the engine has queued",
    "kv_cache_usage": "share of the KV cache in use, 0 to 1",
    "prefix_cache_queries_tokens": "prompt tokens looked up in the prefix cache so far",
    "prefix_cache_hits_tokens": "prompt tokens found there so far",
    "preemptions": "requests put back to make room so far",
    "queue_time_s_sum": "seconds that requests have waited in the engine's queue, summed",
    "queue_time_s_count": "requests in that sum",
    "prompt_tokens": "prompt tokens processed so far",
    "generation_tokens": "tokens generated so far",
    "spec_draft_tokens": "tokens drafted by speculation so far",
    "spec_accepted_tokens": "drafted tokens that were accepted so far",
    "engine_cpu_s": "CPU seconds of the engine's processes so far",
    "front_end_cpu_s": "CPU seconds of the engine's first process, which takes the requests, if it has others, so far",
    "engine_rss_bytes": "resident memory of the engine's processes",
    "engine_processes": "number of processes of the engine",
    "gpu_power_w": "electrical power of a GPU",
    "gpu_energy_j": "energy a GPU has used so far, by its own counter",
    "gpu_memory_used_bytes": "memory in use on a GPU, by any process",
    "gpu_utilization": "share of time in which a GPU had work, 0 to 1",
    "gpu_sm_clock_mhz": "clock of a GPU's processors",
    "gpu_temperature_c": "temperature of a GPU",
    "cpu_energy_j": "energy the CPU packages have used so far, by RAPL",
    "gpu_throttled": "1 while a GPU is slowed by its temperature or its power supply, else 0",
    "gpu_foreign_utilization": "share of time in which a GPU worked for a process that is not the engine's, by process",
    "machine_cores": "CPU cores that the load and a local engine may use; the first reading of a point begins an interval",
    "own_cores": "CPU cores used by servebench and a local engine since the reading before",
    "foreign_cores": "CPU cores used by another process, or by its short-lived children, by process",
    "unseen_cores": "CPU cores used by processes that came and went, or that this user cannot see",
    "others_cores": "CPU cores used by all processes that are neither servebench's nor the engine's",
    "steal_cores": "CPU cores that the hypervisor gave to other machines",
    "cpu_pressure": "share of time in which a task waited for a CPU (pressure stall information)",
    "memory_pressure": "share of time in which a task waited for memory",
    "io_pressure": "share of time in which a task waited for storage",
    "cpu_mhz": "mean clock of the CPUs",
    "cpu_throttles": "how often a CPU was slowed by its temperature since the reading before",
}
"""Names by which the readings of all engines can be compared. Those described as 'so far' are counters: use differences."""

CLIENT_ONLY = 'scope="client"'
"""The labels of `machine_cores` where the engine is on another machine, so that only the client's is seen."""

Combine = Literal["sum", "max"]
COMBINE: Mapping[str, Combine] = {"kv_cache_usage": "max"}
"""How the series of one name (one a rank or data-parallel replica) are combined into one number; `sum` unless listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One value: a row of telemetry.parquet. `t_ns` is CLOCK_REALTIME, as all stamps of a run.

    `name` is a key of VOCABULARY, null for other metrics; `raw_name` and `labels` are those of the source.
    """

    t_ns: int
    source: str
    name: str | None
    raw_name: str
    labels: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a telemetry source samples."""

    engine: Engine
    running: RunningEngine
    gpu: GpuSettings


class TelemetrySource:
    """Base class of telemetry sources. `open` is called once, `sample` at each interval in a thread, `close` once.

    `sample` must be quick and keep no reference to what it returned. `readings` converts samples some seconds later, in another
    thread, and depends on nothing that `sample` changes.
    """

    name: ClassVar[str]
    interval_s: ClassVar[float | None] = None
    """How often to sample it, in a thread of its own; null: with the others, each `telemetry.interval_s`."""

    def __init__(self, subject: Subject) -> None:
        """Store the subject; opens nothing."""
        self.subject = subject

    def open(self) -> str | None:
        """Open the source. Return a line that says why nothing can be read, or null if it can. Never raises."""
        return None

    def sample(self) -> Any:
        """Return the current values in raw form; null when they cannot be read. May raise: the sample is then missing."""
        raise NotImplementedError

    def readings(self, t_ns: int, sample: Any) -> Sequence[Reading]:
        """Return the readings in a sample."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what `open` opened. Never raises."""
