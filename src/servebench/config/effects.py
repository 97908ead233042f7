"""Settings that have an effect only together with others: a value that somebody has set is never ignored silently."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from servebench.config.problems import format_value
from servebench.contracts.settings import RunSettings
from servebench.protocol.kinds.table import kind_named


@dataclass(frozen=True)
class Dependency:
    """Keys that have an effect only where `holds`; `needs` says what to set for it. A key that ends in `.` is a whole section."""

    keys: tuple[str, ...]
    needs: str
    holds: Callable[[RunSettings], Any]


def _closed(settings: RunSettings) -> bool:
    """Whether a level is a number of requests in flight."""
    load = settings.load
    return load.concurrency is not None or (load.search is not None and load.search.of == "concurrency")


def _counted(settings: RunSettings) -> bool:
    """Whether points end after a fixed number of requests or a fixed time."""
    return isinstance(settings.load.requests, int) or settings.load.duration_s is not None


def _own(name: str, of: str, value: Any) -> Callable[[RunSettings], bool]:
    """Return whether a key that only some classes of a section have is not `value`; true for the others."""
    return lambda settings: getattr(getattr(settings, of), name, ...) != value


DEPENDENCIES: tuple[Dependency, ...] = (
    Dependency(("load.arrival", "load.burstiness"), "arrivals at a rate (load=rate)",
        lambda s: s.load.rate is not None or (s.load.search is not None and s.load.search.of == "rate")),
    Dependency(("load.burstiness",), "load.arrival=gamma", lambda s: s.load.arrival == "gamma"),
    Dependency(("load.stagger", "load.hold_level"), "a closed loop (load.concurrency)", _closed),
    Dependency(("load.max_concurrency",), "an open loop (load.rate or load=replay)", lambda s: not _closed(s)),
    Dependency(("load.time_scale",), "load=replay", lambda s: s.load.replay is not None),
    Dependency(("load.repeats", "load.order"), "a list of levels: a search chooses its own points (load.search.probes_per_level)",
        lambda s: s.load.search is None),
    Dependency(("load.while_growing",), "rising levels in a list, each measured once (study.starts=1 load.repeats=1)",
        lambda s: s.load.concurrency is not None and s.study.most_starts == s.load.repeats == 1),
    Dependency(("load.ramp.steps",), "load.ramp.shape=steps", lambda s: not s.load.ramp or s.load.ramp.shape == "steps"),
    Dependency(
        ("load.until", "load.max_duration_s", "load.min_requests"),
        "a point without a fixed length: load.requests=auto and load.duration_s=null",
        lambda s: not _counted(s),
    ),
    Dependency(("load.max_duration_s", "load.min_requests"), "load.until", lambda s: _counted(s) or s.load.until is not None),
    Dependency(("load.drain_s",), "a point that ends by time: load.duration_s or load.until",
        lambda s: s.load.duration_s is not None or (s.load.until is not None and not _counted(s))),
    Dependency(("load.cancel_after_s",), "load.cancel_fraction above 0", lambda s: s.load.cancel_fraction),
    Dependency(("workload.hit_rate",), "a warm-up, which primes the cache (load.warmup_requests)",
        lambda s: s.load.warmup_requests),
    Dependency(("workload.adapter_skew",), "a list of several workload.adapters",
        lambda s: len(s.workload.adapters or ()) > 1 and not isinstance(s.workload.adapters, Mapping)),
    Dependency(("workload.images.",), "messages (workload.api=chat)",
        lambda s: s.workload.images is None or kind_named(s.workload.api).takes_messages),
    Dependency(("workload.sub_steps",), "workload.fan_out above 0", _own("fan_out", "workload", 0)),
    Dependency(("workload.skew",), "several workload.documents", _own("documents", "workload", 1)),
    Dependency(("workload.depths",), "workload.needles above 0", _own("needles", "workload", 0)),
    Dependency(("workload.subset", "workload.split"), "a workload.dataset of the hub, such as hf:NAME",
        lambda s: str(getattr(s.workload, "dataset", "hf:")).startswith("hf:")),
    Dependency(("workload.tiers",), "workload.path=null", lambda s: getattr(s.workload, "path", None) is None),
    Dependency(("launch.wander_s",), "launch.wander_sd above 0", _own("wander_sd", "launch", 0.0)),
    Dependency(("launch.machine_s", "launch.machine_seed"), "launch.machine_sd above 0", _own("machine_sd", "launch", 0.0)),
    Dependency(("launch.shift_s", "launch.shift_over_s"), "launch.shift", _own("shift", "launch", 0.0)),
    Dependency(("launch.failure_burst",), "launch.failure_rate above 0", _own("failure_rate", "launch", 0.0)),
    Dependency(("engine.spans_address",), "engine.request_timings=spans", lambda s: s.engine.request_timings == "spans"),
    Dependency(("quality.",), "a scorer (quality=NAME)", lambda s: s.quality.name != "none"),
    Dependency(("tracking.",), "tracking=mlflow", lambda s: s.tracking.name != "none"),
    Dependency(("telemetry.interval_s",), "telemetry.enabled=true", lambda s: s.telemetry.enabled),
    Dependency(("slo.attainment",), "a limit such as slo.ttft_ms", lambda s: s.slo.limited),
    Dependency(("study.margin", "study.budget"), "study.until=decided", lambda s: s.study.until or s.study.starts == "auto"),
    Dependency(("study.metrics",), "study.until=gate", lambda s: s.study.until == "gate"),
)  # fmt: skip
"""Which settings need which others. A key with two entries needs both; only the first that fails is reported."""


def ignored(settings: RunSettings, is_set: Callable[[str], bool]) -> dict[str, str]:
    """Return a line for each setting that has no effect, by its key; those with the same cause share one. `is_set` says whether a
    user has set a key: a preset may have more than a run needs."""
    found: dict[str, str] = {}
    for dependency in DEPENDENCIES:
        if dependency.holds(settings):
            continue
        unused = [one for one in _values(settings, dependency.keys) if one[0] not in found and is_set(one[0])]
        shown = ", ".join(f"{path}={format_value(value)}" for path, value in unused)
        has, them = ("has", "it") if len(unused) == 1 else ("have", "them")
        line = f"{shown} {has} no effect without {dependency.needs}; set that, or leave {them} out"
        found.update(dict.fromkeys((path for path, _ in unused), line))
    return found


def has_effect(settings: RunSettings, path: str) -> bool:
    """Return whether a value of this key would have an effect in a run."""
    return all(one.holds(settings) for one in DEPENDENCIES if any(_names(key, path) for key in one.keys))


def _names(key: str, path: str) -> bool:
    return path.startswith(key) if key.endswith(".") else path == key


def _values(settings: RunSettings, keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        *parents, name = key.split(".")
        owner: Any = settings
        for part in parents:
            owner = getattr(owner, part, None)
        for one in fields(owner) if is_dataclass(owner) else ():
            default = one.default_factory() if one.default_factory is not MISSING else one.default
            value = getattr(owner, one.name)
            if one.name == (name or one.name) and one.name != "name" and value != default:
                yield ".".join((*parents, one.name)), value
