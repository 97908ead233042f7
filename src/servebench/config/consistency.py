"""Check settings against each other, and derive settings from others."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from servebench.config.problems import format_value
from servebench.contracts.precision import precision_targets, seconds_of, share_of
from servebench.contracts.settings import (
    RATE_AUTO_S,
    REQUESTS_MAX,
    EngineSettings,
    GpuSettings,
    LaunchSettings,
    LengthSettings,
    LoadSettings,
    ModelSettings,
    QualitySettings,
    RunSettings,
    SearchSettings,
    SloSettings,
    StudySettings,
    WorkloadSettings,
)
from servebench.protocol.kinds.table import api_problems

_URL_EXAMPLE = "launch.base_url=http://HOST:PORT/v1"


def with_derived_values(settings: RunSettings) -> RunSettings:
    """Return the settings with derived values: no number of requests for a point with `duration_s`, no `load.until` for one of
    a fixed length, and a tensor parallelism of `gpu.count` for several GPUs unless it is set.
    """
    load, engine = settings.load, settings.engine
    if isinstance(load.requests, int) or load.duration_s is not None:
        load = replace(load, until=None)
    if load.duration_s is not None and load.requests == "auto":
        load = replace(load, requests=None)
    if settings.gpu.count >= 2 and engine.tensor_parallel_size is None:
        engine = replace(engine, tensor_parallel_size=settings.gpu.count)
    return replace(settings, load=load, engine=engine)


def section_problems(sections: Mapping[str, Any], *, launchable: bool = True, local: bool = True) -> list[str]:
    """Return one line for each contradiction between these sections; checks of missing sections are skipped.

    `launchable` is that of the engine's class, `local` that of the launcher's.
    """
    problems: list[str] = []
    for names, check in _CHECKS:
        if all(name in sections for name in names):
            problems.extend(check(*(sections[name] for name in names)))
    if local and not launchable and "engine" in sections and "launch" in sections:
        problems.append(_unlaunchable(sections["engine"], sections["launch"]))
    if local and "engine" in sections and "gpu" in sections:
        problems.extend(_parallelism(sections["engine"], sections["gpu"]))
    if not local and hasattr(sections.get("launch"), "base_url"):
        problems.extend(_address(sections["launch"]))
        if "study" in sections and (key := _asks_for_starts(sections["study"])):
            problems.append(
                f"{key} needs an engine that servebench starts, but "
                f"launch={sections['launch'].name} measures a running server: restart it between runs, and leave that out"
            )
    return problems


def _levels(load: LoadSettings) -> list[str]:
    if load.trace is not None:
        return _trace(load)
    if load.search is not None:
        return _search(load, load.search)
    if load.rate is not None and load.concurrency is not None:
        return [
            "load.rate and load.concurrency cannot be used together; use load=rate load.rate=[...], or set load.concurrency=null"
        ]
    if load.rate is None and load.concurrency is None:
        return [
            "load.concurrency or load.rate is required, such as load.concurrency=[1,2,4] or load=rate load.rate=[1,2,4]"
        ]
    name, listed = ("load.rate", load.rate) if load.concurrency is None else ("load.concurrency", load.concurrency)
    if not listed:
        return [f"{name} must have at least one level, such as {name}=[1,2,4]"]
    twice = [level for level, times in Counter(listed).items() if times > 1]
    return [f"{name} has {level:g} more than once; use load.repeats to repeat levels" for level in twice]


def _search(load: LoadSettings, search: SearchSettings) -> list[str]:
    problems = [
        f"load.{name} and load.search cannot be used together; leave out load.{name}, or choose another load"
        for name in ("concurrency", "rate")
        if getattr(load, name) is not None
    ]
    if search.lower > search.upper:
        problems.append(f"load.search.lower={search.lower:g} must not be above load.search.upper={search.upper:g}")
    if search.of == "concurrency":
        problems += [
            f"load.search.{name} must be an integer, because it is a concurrency (got {value:g})"
            for name, value in (("lower", search.lower), ("upper", search.upper))
            if value != int(value)
        ]
    for name, value in (("repeats", load.repeats), ("order", load.order)):
        if value not in (1, "ascending"):
            problems.append(
                f"load.{name}={value} has no effect in a search, which chooses its own points; use load.search.probes_per_level"
            )
    return problems


def _trace(load: LoadSettings) -> list[str]:
    problems = [
        f"load.{name} and load.trace cannot be used together; leave out load.{name}, or choose another load"
        for name in ("concurrency", "rate", "search", "ramp")
        if getattr(load, name) is not None
    ]
    if load.trace is not None and load.trace.point is not None and load.trace.path is None:
        problems.append(
            f"load.trace.point={load.trace.point} needs load.trace.path, the requests.parquet that has this point"
        )
    return problems


def _longest(load: LoadSettings) -> tuple[str, float | None]:
    """Return the key that limits the time of a point, and its value."""
    fixed = load.until is None or load.duration_s is not None
    return ("duration_s", load.duration_s) if fixed else ("max_duration_s", load.max_duration_s)


def _shape(load: LoadSettings) -> list[str]:
    problems = []
    ramp = load.ramp
    if ramp is not None and ramp.shape == "exponential" and ramp.start == 0:
        problems.append(
            "load.ramp.start must be greater than 0 for an exponential ramp (got 0); use a share such as 0.05"
        )
    name, longest_s = _longest(load)
    if ramp is not None and longest_s is not None and ramp.over_s >= longest_s:
        problems.append(f"load.ramp.over_s={ramp.over_s:g} must be shorter than load.{name}={longest_s:g}")
    if load.time_scale != 1 and load.trace is None:
        problems.append(f"load.time_scale={load.time_scale:g} only applies to a trace; use load=trace")
    return problems


def _search_goal(load: LoadSettings, slo: SloSettings) -> list[str]:
    if load.search is None or load.search.goal != "slo":
        return []
    if any(limit is not None for limit in (slo.ttft_ms, slo.tpot_ms, slo.e2e_ms)):
        return []
    return [f"load={load.name} needs an SLO to search for: add slo=interactive, or set slo.ttft_ms and slo.tpot_ms"]


def _length_of_a_point(load: LoadSettings) -> list[str]:
    problems: list[str] = []
    if load.duration_s is None and load.requests is None:
        problems.append("load.requests (a number or auto) or load.duration_s is required")
    if load.duration_s is not None and load.requests not in (None, "auto"):
        problems.append(
            f"load.requests={load.requests} and load.duration_s={load.duration_s:g} cannot be used together; "
            "set load.requests=null or load.duration_s=null"
        )
    name, longest_s = _longest(load)
    highest = max(load.rate or (0.0,))
    if load.requests in (None, "auto") and highest * (longest_s or RATE_AUTO_S) > REQUESTS_MAX:
        problems.append(
            f"load.rate={highest:g} sends more than {REQUESTS_MAX:,} requests in {longest_s or RATE_AUTO_S:g} s; lower it, or "
            "set load.requests"
        )
    if load.warmup_s > 0 and longest_s is None:
        problems.append(f"load.warmup_s={load.warmup_s:g} needs a longer load.duration_s; or use load.warmup_requests")
    elif longest_s is not None and load.warmup_s >= longest_s:
        problems.append(f"load.warmup_s={load.warmup_s:g} must be shorter than load.{name}={longest_s:g}")
    return problems


def _until(load: LoadSettings) -> list[str]:
    if load.until is None:
        return []
    other = "load.search" if load.search is not None else "load.trace" if load.trace is not None else None
    if other is not None:
        return [f"load.until={load.until} and {other} cannot be used together; leave out load.until"]
    try:
        targets = precision_targets(load.until, open_loop=load.rate is not None)
    except ValueError as error:
        return [str(error)]
    return [] if targets else ["load.until has no metric; use a share such as 5%, or load.until=null"]


def _max_concurrency(load: LoadSettings) -> list[str]:
    closed = load.concurrency is not None or (load.search is not None and load.search.of == "concurrency")
    if load.max_concurrency is None or not closed:
        return []
    return [f"load.max_concurrency={load.max_concurrency} only applies to open-loop levels (load.rate)"]


def _quality(quality: QualitySettings) -> list[str]:
    problems = api_problems("quality.api", quality.api)
    if quality.name == "none":
        return problems
    if not quality.concurrency:
        problems.append("quality.concurrency must have at least one level, such as quality.concurrency=[8]")
    twice = [str(level) for level, times in Counter(quality.concurrency).items() if times > 1]
    problems += [f"quality.concurrency has {level} more than once" for level in twice]
    if quality.name == "all" and quality.path is not None:
        problems.append(f"quality.path={quality.path} needs one scorer, such as quality=mmlu, not quality=all")
    return problems


def _spans(engine: EngineSettings) -> list[str]:
    try:
        engine.spans_listener  # noqa: B018 - read for its error
    except ValueError as error:
        return [str(error)]
    return []


def _fits(engine: EngineSettings, workload: WorkloadSettings) -> list[str]:
    """Return a problem if even the shortest lengths exceed the engine's limit."""
    limit = engine.max_model_len
    if limit is None:
        return []
    lengths = {key: _least(getattr(workload, key)) for key in ("input_tokens", "output_tokens")}
    if sum(lengths.values()) <= limit:
        return []
    lengths_shown = " and ".join(f"workload.{key}={tokens:g}" for key, tokens in lengths.items() if tokens)
    verb, what = ("do", "them") if all(lengths.values()) else ("does", "the length")
    return [f"{lengths_shown} {verb} not fit engine.max_model_len={limit}; raise it or lower {what}"]


def _least(length: int | LengthSettings | None) -> int:
    """Return the shortest possible length, as far as the settings say."""
    return length.shortest if isinstance(length, LengthSettings) else length or 0


def _address(launch: LaunchSettings) -> list[str]:
    # the attach launcher's own setting: read by name, because its class belongs to a higher layer
    url = getattr(launch, "base_url", None)
    if not url:
        return [f"launch.base_url is required with launch=attach: {_URL_EXAMPLE}"]
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    return [] if good else [f"launch.base_url must be an http(s) URL (got {format_value(url)}), such as {_URL_EXAMPLE}"]


def _unlaunchable(engine: EngineSettings, launch: LaunchSettings) -> str:
    return (
        f"engine={engine.name} is a running server and cannot be started (launch={launch.name}): "
        f"use launch=attach {_URL_EXAMPLE}"
    )


def _no_gpu(gpu: GpuSettings) -> list[str]:
    if gpu.count or not gpu.price_usd_per_hour:
        return []
    return [
        f"gpu.price_usd_per_hour={gpu.price_usd_per_hour:g} has no effect with gpu.count=0; use gpu=none, or set gpu.count "
        "to 1 or more"
    ]


def _parallelism(engine: EngineSettings, gpu: GpuSettings) -> list[str]:
    size = engine.tensor_parallel_size
    if size is None or gpu.count == 0 or size <= gpu.count:
        return []
    return [f"engine.tensor_parallel_size={size} needs {size} GPUs, but gpu.count={gpu.count}; set gpu.count={size}"]


def _model_name(model: ModelSettings) -> list[str]:
    """Return a problem for an empty name, such as that of an unset variable of the shell: `model.name=$MODEL`."""
    return (
        []
        if model.name.strip()
        else [f"model.name must not be empty (got {format_value(model.name)}); set model.name=NAME"]
    )


def _study_name(study: StudySettings) -> list[str]:
    if study.name is None or (study.name not in ("", ".", "..") and "/" not in study.name and "\0" not in study.name):
        return []
    return [
        f"study.name must be a folder name without / (got {format_value(study.name)}); set study.dir for the folder above it"
    ]


def _starts(study: StudySettings, load: LoadSettings) -> list[str]:
    key = _asks_for_starts(study)
    if not key or load.search is None:
        return []
    return [f"{key} has no effect in a search, which chooses its own points; leave it out"]


def _asks_for_starts(study: StudySettings) -> str:
    """Return the words that ask for several starts of an engine; empty if none do."""
    if study.until is not None:
        return f"study.until={study.until}"
    return f"study.starts={study.starts}" if study.starts > 1 else ""


def _decided(study: StudySettings) -> list[str]:
    try:
        share_of("study.margin", study.margin)
        seconds_of("study.budget", study.budget)
    except ValueError as error:
        return [str(error)]
    return []


_CHECKS: tuple[tuple[tuple[str, ...], Callable[..., list[str]]], ...] = (
    (("load",), _levels),
    (("load",), _shape),
    (("load",), _length_of_a_point),
    (("load",), _until),
    (("load",), _max_concurrency),
    (("load", "slo"), _search_goal),
    (("quality",), _quality),
    (("workload",), lambda workload: api_problems("workload.api", workload.api)),
    (("engine", "workload"), _fits),
    (("engine",), _spans),
    (("gpu",), _no_gpu),
    (("model",), _model_name),
    (("study",), _study_name),
    (("study",), _decided),
    (("study", "load"), _starts),
)
