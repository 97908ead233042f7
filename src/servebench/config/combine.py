"""What settings mean together: those that exclude each other, and those that follow from others. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any
from urllib.parse import urlsplit

from servebench.config.faults import show
from servebench.contracts.settings import (
    EngineSettings,
    GpuSettings,
    LaunchSettings,
    LengthSettings,
    LoadSettings,
    QualitySettings,
    RunSettings,
    SearchSettings,
    SloSettings,
    StudySettings,
    WorkloadSettings,
)

_URL_EXAMPLE = "launch.base_url=http://HOST:PORT/v1"
_NEEDED = {
    "fixed": ("mean",),
    "uniform": ("min", "max"),
    "normal": ("mean", "stdev"),
    "lognormal": ("mean", "stdev"),
}


def normalised(settings: RunSettings) -> RunSettings:
    """The settings with what follows from them filled in.

    A point that lasts `duration_s` has no number of requests; several GPUs set the tensor parallelism unless told.
    """
    load, engine = settings.load, settings.engine
    if load.duration_s is not None and load.requests == "auto":
        load = replace(load, requests=None)
    if settings.gpu.count >= 2 and engine.tensor_parallel_size is None:
        engine = replace(engine, tensor_parallel_size=settings.gpu.count)
    return replace(settings, load=load, engine=engine)


def combination_faults(settings: RunSettings, *, launchable: bool = True, local: bool = True) -> list[str]:
    """What makes these settings impossible together, one line each.

    `launchable` is that of the engine's class, `local` that of the launcher's.
    """
    sections = {item.name: getattr(settings, item.name) for item in fields(settings)}
    return section_faults(sections, launchable=launchable, local=local)


def section_faults(sections: Mapping[str, Any], *, launchable: bool = True, local: bool = True) -> list[str]:
    """As `combination_faults`, for as many sections as there are: a check whose section is missing is left out."""
    faults: list[str] = []
    for names, check in _CHECKS:
        if all(name in sections for name in names):
            faults.extend(check(*(sections[name] for name in names)))
    if local and not launchable and "engine" in sections and "launch" in sections:
        faults.append(_unlaunchable(sections["engine"], sections["launch"]))
    if local and "engine" in sections and "gpu" in sections:
        faults.extend(_parallelism(sections["engine"], sections["gpu"]))
    if not local and hasattr(sections.get("launch"), "base_url"):
        faults.extend(_address(sections["launch"]))
    return faults


def _levels(load: LoadSettings) -> list[str]:
    if load.trace is not None:
        return _trace(load)
    if load.search is not None:
        return _search(load, load.search)
    if load.rate is not None and load.concurrency is not None:
        return [
            "load.rate and load.concurrency exclude each other; use load=rate load.rate=[...], or set load.concurrency=null"
        ]
    if load.rate is None and load.concurrency is None:
        return ["load.concurrency: no level is given, such as load.concurrency=[1,2,4], or load=rate load.rate=[1,2,4]"]
    name, listed = ("load.rate", load.rate) if load.concurrency is None else ("load.concurrency", load.concurrency)
    if not listed:
        return [f"{name}: the list is empty; give one level or more, such as {name}=[1,2,4]"]
    twice = [level for level, times in Counter(listed).items() if times > 1]
    return [f"{name}: {level:g} is there more than once; to repeat levels use load.repeats" for level in twice]


def _search(load: LoadSettings, search: SearchSettings) -> list[str]:
    faults = [
        f"load.{name} and load.search exclude each other; leave load.{name} out, or choose another load"
        for name in ("concurrency", "rate")
        if getattr(load, name) is not None
    ]
    if search.lower > search.upper:
        faults.append(f"load.search.lower={search.lower:g} is above load.search.upper={search.upper:g}")
    if search.of == "concurrency":
        faults += [
            f"load.search.{name}={value:g}: a concurrency is a whole number"
            for name, value in (("lower", search.lower), ("upper", search.upper))
            if value != int(value)
        ]
    for name, value in (("repeats", load.repeats), ("order", load.order)):
        if value not in (1, "ascending"):
            faults.append(f"load.{name}={value}: a search chooses its own points; use load.search.probes_per_level")
    return faults


def _trace(load: LoadSettings) -> list[str]:
    faults = [
        f"load.{name} and load.trace exclude each other; leave load.{name} out, or choose another load"
        for name in ("concurrency", "rate", "search", "ramp")
        if getattr(load, name) is not None
    ]
    if load.trace is not None and load.trace.point is not None and load.trace.path is None:
        faults.append(f"load.trace.point={load.trace.point} needs load.trace.path, the requests.parquet that it is in")
    return faults


def _shape(load: LoadSettings) -> list[str]:
    faults = []
    ramp = load.ramp
    if ramp is not None and ramp.shape == "exponential" and ramp.start == 0:
        faults.append("load.ramp.start=0: an exponential ramp cannot begin at nothing; give a share such as 0.05")
    if ramp is not None and load.duration_s is not None and ramp.over_s >= load.duration_s:
        faults.append(
            f"load.ramp.over_s={ramp.over_s:g} leaves nothing of load.duration_s={load.duration_s:g} at the level; "
            "make one smaller or the other larger"
        )
    if load.time_scale != 1 and load.trace is None:
        faults.append(f"load.time_scale={load.time_scale:g} stretches a trace, and there is none: use load=trace")
    return faults


def _search_goal(load: LoadSettings, slo: SloSettings) -> list[str]:
    if load.search is None or load.search.goal != "slo":
        return []
    if any(limit is not None for limit in (slo.ttft_ms, slo.tpot_ms, slo.e2e_ms)):
        return []
    return [f"load={load.name} needs a limit to search for: add slo=interactive, or slo.ttft_ms= and slo.tpot_ms="]


def _length_of_a_point(load: LoadSettings) -> list[str]:
    faults: list[str] = []
    if load.duration_s is None and load.requests is None:
        faults.append("load.requests: a point needs an end; give load.requests (a number or auto) or load.duration_s")
    if load.duration_s is not None and load.requests not in (None, "auto"):
        faults.append(
            f"load.requests={load.requests} and load.duration_s={load.duration_s:g} exclude each other; "
            "set load.requests=null or load.duration_s=null"
        )
    if load.warmup_s > 0 and load.duration_s is None:
        faults.append(
            f"load.warmup_s={load.warmup_s:g} needs load.duration_s, longer than it; or use load.warmup_requests"
        )
    elif load.duration_s is not None and load.warmup_s >= load.duration_s:
        faults.append(
            f"load.warmup_s={load.warmup_s:g} leaves nothing of load.duration_s={load.duration_s:g}; make one smaller "
            "or the other larger"
        )
    return faults


def _not_yet(load: LoadSettings) -> list[str]:
    faults: list[str] = []
    closed = load.concurrency is not None or (load.search is not None and load.search.of == "concurrency")
    if load.max_concurrency is not None and closed:
        faults.append(
            f"load.max_concurrency={load.max_concurrency} bounds open-loop levels only; the levels are load.concurrency"
        )
    return faults


def _quality(quality: QualitySettings) -> list[str]:
    if quality.name == "none":
        return []
    faults = []
    if not quality.concurrency:
        faults.append("quality.concurrency: the list is empty; give one or more, such as quality.concurrency=[8]")
    twice = [str(level) for level, times in Counter(quality.concurrency).items() if times > 1]
    faults += [f"quality.concurrency: {level} is there more than once; name each once" for level in twice]
    if quality.name == "all" and quality.path is not None:
        faults.append(f"quality.path={quality.path} is the data of one scorer; name it, as in quality=mmlu")
    return faults


def _lengths(workload: WorkloadSettings) -> list[str]:
    faults: list[str] = []
    for key in ("input_tokens", "output_tokens"):
        length = getattr(workload, key)
        if isinstance(length, LengthSettings):
            faults.extend(_length(f"workload.{key}", length))
    return faults


def _length(path: str, length: LengthSettings) -> list[str]:
    missing = [name for name in _NEEDED[length.kind] if getattr(length, name) is None]
    if missing:
        return [f"{path}: kind {length.kind} needs {' and '.join(missing)}"]
    if length.min is not None and length.max is not None and length.min > length.max:
        return [f"{path}: min {length.min} is larger than max {length.max}"]
    return []


def _fits(engine: EngineSettings, workload: WorkloadSettings) -> list[str]:
    """Lengths of which even the shortest pass the limit that the engine is given."""
    limit = engine.max_model_len
    if limit is None:
        return []
    lengths = {key: _least(getattr(workload, key)) for key in ("input_tokens", "output_tokens")}
    if sum(lengths.values()) <= limit:
        return []
    told = " and ".join(f"workload.{key}={tokens:g}" for key, tokens in lengths.items() if tokens)
    return [
        f"{told} do not fit engine.max_model_len={limit}: raise it, or lower them"
        if all(lengths.values())
        else f"{told} does not fit engine.max_model_len={limit}: raise it, or lower that"
    ]


def _least(length: int | LengthSettings | None) -> float:
    """The shortest that a length can be, as far as it is told."""
    if isinstance(length, LengthSettings):
        return (length.mean if length.kind == "fixed" else length.min) or 0
    return length or 0


def _address(launch: LaunchSettings) -> list[str]:
    # the attach launcher's own settings: read by name, for they belong to another room
    url = getattr(launch, "base_url", None)
    if not url:
        return [f"launch=attach needs the address of the engine: {_URL_EXAMPLE}"]
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    return [] if good else [f"launch.base_url: {show(url)} is not an http(s) URL, such as {_URL_EXAMPLE}"]


def _unlaunchable(engine: EngineSettings, launch: LaunchSettings) -> str:
    return (
        f"engine={engine.name} is a running server and cannot be started (launch={launch.name}): "
        f"add launch=attach {_URL_EXAMPLE}"
    )


def _parallelism(engine: EngineSettings, gpu: GpuSettings) -> list[str]:
    size = engine.tensor_parallel_size
    if size is None or gpu.count == 0 or size <= gpu.count:
        return []
    return [f"engine.tensor_parallel_size={size} needs {size} GPUs, but gpu.count={gpu.count}: set gpu.count={size}"]


def _study_name(study: StudySettings) -> list[str]:
    if study.name is None or (study.name not in ("", ".", "..") and "/" not in study.name and "\0" not in study.name):
        return []
    return [f"study.name: {show(study.name)} is not the name of a folder; the folder above it is study.dir"]


_CHECKS: tuple[tuple[tuple[str, ...], Callable[..., list[str]]], ...] = (
    (("load",), _levels),
    (("load",), _shape),
    (("load",), _length_of_a_point),
    (("load",), _not_yet),
    (("load", "slo"), _search_goal),
    (("quality",), _quality),
    (("workload",), _lengths),
    (("engine", "workload"), _fits),
    (("study",), _study_name),
)
