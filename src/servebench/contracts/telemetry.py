"""What is watched while load runs: the engine's own metrics, its processes and the GPU, in one vocabulary."""

from __future__ import annotations

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
    "engine_rss_bytes": "resident memory of the engine's processes",
    "engine_processes": "how many processes the engine is",
    "gpu_power_w": "electrical power of a GPU",
    "gpu_energy_j": "energy a GPU has used so far, by its own counter",
    "gpu_memory_used_bytes": "memory in use on a GPU, by whomever",
    "gpu_utilization": "share of time in which a GPU had work, 0 to 1",
    "gpu_sm_clock_mhz": "clock of a GPU's processors",
    "gpu_temperature_c": "temperature of a GPU",
    "cpu_energy_j": "energy the CPU packages have used so far, by RAPL",
}
"""The names under which readings of all engines can be compared; those that say so far are counters: take differences."""

Combine = Literal["sum", "max"]
COMBINE: Mapping[str, Combine] = {"kv_cache_usage": "max"}
"""How one engine's series of one name (a rank or data-parallel replica each) become one number; `sum` unless named here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One value: a row of telemetry.parquet. `t_ns` is CLOCK_REALTIME, as all stamps of a run.

    `name` is the word of VOCABULARY, null for what has none; `raw_name` and `labels` are what the source calls it.
    """

    t_ns: int
    source: str
    name: str | None
    raw_name: str
    labels: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is watched."""

    engine: Engine
    running: RunningEngine
    gpu: GpuSettings


class TelemetrySource:
    """Base of every source. `open` once, `sample` at each interval from one thread of its own, `close` once.

    `sample` must be quick and keep no reference to what it gave; `readings` turns what it gave into rows after the load
    is over, so that nothing is parsed while it runs.
    """

    name: ClassVar[str]

    def __init__(self, subject: Subject) -> None:
        """Keep the subject; open nothing yet."""
        self.subject = subject

    def open(self) -> str | None:
        """Get ready. A line that says why there is nothing to read here, or null when there is. Never raises."""
        return None

    def sample(self) -> Any:
        """What is to be kept of now; null when nothing could be read. May raise: that sample is then missing."""
        raise NotImplementedError

    def readings(self, t_ns: int, sample: Any) -> Sequence[Reading]:
        """The rows of a sample."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what `open` took. Never raises."""
