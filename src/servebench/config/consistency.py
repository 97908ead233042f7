"""Check settings against each other, and derive settings from others."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

from servebench.config.problems import format_value
from servebench.contracts.age import WARM, seconds_of_age
from servebench.contracts.labels import setting_text
from servebench.contracts.precision import WHOLE_ANSWERS, precision_targets, seconds_of, share_of
from servebench.contracts.settings import (
    RATE_AUTO_S,
    REQUESTS_MAX,
    TOKENS_MAX,
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
from servebench.protocol.kinds.table import KINDS, api_problems
from servebench.util.secret_patterns import QUERY_NAMES, secret_name
from servebench.util.short_id import LAST

OWN_HEADERS = (
    *("host", "user-agent", "accept", "accept-encoding", "connection", "content-type", "content-length"),
    *("transfer-encoding", "x-request-id"),
)
OWN_FIELDS = (
    *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "stream"),
    *("stream_options", "n"),
)
_URL_EXAMPLE = "launch.base_url=http://HOST:PORT/v1"


def with_derived_values(settings: RunSettings) -> RunSettings:
    """Return the settings with derived values: no number of requests for a point with `duration_s`, no `load.until` for one of
    a fixed length, one of E2E where answers have no tokens, and a tensor parallelism of `gpu.count` for several GPUs unless
    it is set.
    """
    load, engine, api = settings.load, settings.engine, settings.workload.api
    answers_text = api not in KINDS or KINDS[api].answers_text
    if isinstance(load.requests, int) or load.duration_s is not None:
        load = replace(load, until=None)
    elif load.until is not None and not isinstance(load.until, Mapping) and not answers_text:
        load = replace(load, until={WHOLE_ANSWERS: load.until})
    if load.duration_s is not None and load.requests == "auto":
        load = replace(load, requests=None)
    if settings.gpu.count >= 2 and engine.tensor_parallel_size is None:
        engine = replace(engine, tensor_parallel_size=settings.gpu.count)
    return replace(settings, load=load, engine=engine)


def section_problems(sections: Mapping[str, Any], *, launchable: bool = True, local: bool = True) -> list[str]:
    """Return one line for each contradiction between these sections; checks of missing sections are skipped.

    `launchable` is that of the engine's class, `local` that of the launcher's.
    """
    checks = [*CHECKS, *(LOCAL_CHECKS if local else REMOTE_CHECKS)]
    if local and not launchable:
        checks.append(_unlaunchable)
    named = ((check, signature(check).parameters) for check in checks)
    found = (check(*map(sections.get, names)) for check, names in named if all(name in sections for name in names))
    return [problem for problems in found for problem in problems]


def refusals(*reads: Callable[[], object]) -> Iterator[str]:
    """Yield the line of each of these that raises ValueError."""
    for read in reads:
        try:
            read()
        except ValueError as error:
            yield str(error)


def _levels(load: LoadSettings) -> Iterator[str]:
    """Yield what is wrong with the levels of a load, which have one source: a list, a search or a replay."""
    if load.replay is not None:
        yield from _excluded(load, "replay", ("concurrency", "rate", "search", "ramp"))
        if load.replay.point is not None and load.replay.path is None:
            yield f"load.replay.point={load.replay.point} needs load.replay.path, the requests.parquet that has this point"
    elif load.search is not None:
        yield from _excluded(load, "search", ("concurrency", "rate"))
        yield from _search(load.search)
    elif load.rate is not None and load.concurrency is not None:
        both = "load.rate and load.concurrency cannot be used together"
        yield f"{both}; use load=rate load.rate=[...], or set load.concurrency=null"
    elif load.rate is not None or load.concurrency is not None:
        name = "rate" if load.concurrency is None else "concurrency"
        yield from _listed(f"load.{name}", getattr(load, name), "[1,2,4]", "; use load.repeats to repeat levels")
    else:
        yield "load.concurrency or load.rate is required, such as load.concurrency=[1,2,4] or load=rate load.rate=[1,2,4]"


def _listed(name: str, levels: Sequence[float], example: str, advice: str = "") -> Iterator[str]:
    if not levels:
        yield f"{name} must have at least one level, such as {name}={example}"
    for level, times in Counter(levels).items():
        if times > 1:
            yield f"{name} has {level:g} more than once{advice}"


def _excluded(load: LoadSettings, source: str, others: Sequence[str]) -> Iterator[str]:
    for name in others:
        if getattr(load, name) is not None:
            yield f"load.{name} and load.{source} cannot be used together; leave out load.{name}, or choose another load"


def _search(search: SearchSettings) -> Iterator[str]:
    if search.lower > search.upper:
        yield f"load.search.lower={search.lower:g} must not be above load.search.upper={search.upper:g}"
    for name, value in (("lower", search.lower), ("upper", search.upper)):
        if search.of == "concurrency" and value != int(value):
            yield f"load.search.{name} must be an integer, because it is a concurrency (got {value:g})"


def _longest(load: LoadSettings) -> tuple[str, float | None]:
    fixed = load.until is None or load.duration_s is not None
    return ("duration_s", load.duration_s) if fixed else ("max_duration_s", load.max_duration_s)


def _shape(load: LoadSettings) -> Iterator[str]:
    ramp = load.ramp
    if ramp is not None and ramp.shape == "exponential" and ramp.start == 0:
        yield "load.ramp.start must be greater than 0 for an exponential ramp (got 0); use a share such as 0.05"
    name, longest_s = _longest(load)
    if ramp is not None and longest_s is not None and ramp.over_s >= longest_s:
        yield f"load.ramp.over_s={ramp.over_s:g} must be shorter than load.{name}={longest_s:g}"


def _search_goal(load: LoadSettings, slo: SloSettings) -> Iterator[str]:
    if load.search is not None and not slo.limited:
        yield f"load={load.name} needs an SLO to search for: add slo=interactive, or set slo.ttft_ms and slo.tpot_ms"
    if load.search is not None and slo.attainment == 1:
        yield "slo.attainment=1 cannot be searched for: no sample proves that all requests are good; use a share such as 0.999"


def _length_of_a_point(load: LoadSettings) -> Iterator[str]:
    if load.duration_s is None and load.requests is None:
        yield "load.requests (a number or auto) or load.duration_s is required"
    if load.duration_s is not None and load.requests not in (None, "auto"):
        yield (
            f"load.requests={load.requests} and load.duration_s={load.duration_s:g} cannot be used together; "
            "set load.requests=null or load.duration_s=null"
        )
    name, longest_s = _longest(load)
    highest = max(load.rate or (0.0,))
    if load.requests in (None, "auto") and highest * (longest_s or RATE_AUTO_S) > REQUESTS_MAX:
        yield (
            f"load.rate={highest:g} sends more than {REQUESTS_MAX:,} requests in {longest_s or RATE_AUTO_S:g} s; lower it, or "
            "set load.requests"
        )
    if load.warmup_s > 0 and longest_s is None:
        yield f"load.warmup_s={load.warmup_s:g} needs a longer load.duration_s; or use load.warmup_requests"
    elif longest_s is not None and load.warmup_s >= longest_s:
        yield f"load.warmup_s={load.warmup_s:g} must be shorter than load.{name}={longest_s:g}"


def _until(load: LoadSettings) -> Iterator[str]:
    other = "load.search" if load.search is not None else "load.replay" if load.replay is not None else None
    if load.until is None:
        return
    if other is not None:
        yield f"load.until={load.until} and {other} cannot be used together; leave out load.until"
        return
    try:
        if not precision_targets(load.until, open_loop=load.rate is not None):
            yield "load.until has no metric; use a share such as 5%, or load.until=null"
    except ValueError as error:
        yield str(error)


def _quality(quality: QualitySettings) -> Iterator[str]:
    yield from api_problems("quality.api", quality.api)
    if quality.name != "none":
        yield from _listed("quality.concurrency", quality.concurrency, "[8]")
    if quality.name == "all" and quality.path is not None:
        yield f"quality.path={quality.path} needs one scorer, such as quality=mmlu, not quality=all"


def _engine(engine: EngineSettings) -> Iterator[str]:
    return refusals(lambda: engine.spans_listener, lambda: seconds_of_age(engine.age))


def _fits(engine: EngineSettings, workload: WorkloadSettings) -> Iterator[str]:
    limit = engine.max_model_len
    lengths = {key: length for key in ("input_tokens", "output_tokens") if (length := getattr(workload, key))}
    ends = [(one.shortest, one.longest) if isinstance(one, LengthSettings) else (one, one) for one in lengths.values()]
    if limit is not None and sum(shortest for shortest, _ in ends) > limit:
        shown = " and ".join(f"workload.{key}={_shown(length)}" for key, length in lengths.items())
        verb, what = ("do", "them") if len(lengths) > 1 else ("does", "the length")
        longest = sum(longest for _, longest in ends)
        enough = f" to at least {longest}" if longest < TOKENS_MAX else ""
        yield f"{shown} {verb} not fit engine.max_model_len={limit}; raise it{enough} or lower {what}"


def _shown(length: int | LengthSettings) -> str:
    return setting_text(asdict(length) if isinstance(length, LengthSettings) else length)


def _address(launch: LaunchSettings) -> Iterator[str]:
    # the attach launcher's own setting: read by name, because its class belongs to a higher layer
    url = getattr(launch, "base_url", ...)
    if url is ...:
        return
    try:
        parts = urlsplit(url or "")
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not url:
        yield f"launch.base_url is required with launch=attach: {_URL_EXAMPLE}"
    elif not good:
        yield f"launch.base_url must be an http(s) URL (got {format_value(url)}), such as {_URL_EXAMPLE}"


def _headers(launch: LaunchSettings, workload: WorkloadSettings) -> Iterator[str]:
    of_launch = [("launch", name, value) for name, value in getattr(launch, "headers", {}).items()]
    of_launch += [("launch", name, "") for name in getattr(launch, "headers_env", {})]
    of_launch += [("launch", name, "") for name in [getattr(launch, "api_key_header", None)] if name]
    for section, name, value in [*of_launch, *(("workload", *one) for one in workload.headers.items())]:
        if not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) or not (
            (value.isascii() and value.isprintable()) or not value
        ):
            yield f"{section}.headers.{name}: neither this name nor its value may have characters that no header has"
        elif name.lower() in OWN_HEADERS and (section, name.lower()) != ("launch", "host"):
            # an ingress finds the service by the host (KServe, Knative)
            yield f"{section}.headers.{name}: servebench sets this header itself; leave it out"
        elif value and secret_name(name):
            yield (
                f"{section}.headers.{name}: must not hold a secret; export that and name its variable with "
                f"launch.headers_env.{name}=VARIABLE"
            )
    for name in getattr(launch, "query", {}):
        if secret_name(name) or name.lower() in QUERY_NAMES:
            yield f"launch.query.{name}: must not hold a secret, since servers log URLs; send it with launch.headers_env"
    for name in workload.body.keys() & OWN_FIELDS:
        yield f"workload.body.{name}: servebench sets this field itself; use the setting for it, or leave it out"


def _unlaunchable(engine: EngineSettings, launch: LaunchSettings) -> Iterator[str]:
    yield (
        f"engine={engine.name} is a running server and cannot be started (launch={launch.name}): "
        f"use launch=attach {_URL_EXAMPLE}"
    )


def _no_gpu(gpu: GpuSettings) -> Iterator[str]:
    if not gpu.count and gpu.price_usd_per_hour:
        yield (
            f"gpu.price_usd_per_hour={gpu.price_usd_per_hour:g} has no effect with gpu.count=0; use gpu=none, or set gpu.count "
            "to 1 or more"
        )


def _parallelism(engine: EngineSettings, gpu: GpuSettings) -> Iterator[str]:
    size = engine.tensor_parallel_size
    if size is not None and 0 < gpu.count < size:
        yield f"engine.tensor_parallel_size={size} needs {size} GPUs, but gpu.count={gpu.count}; set gpu.count={size}"


def _model_name(model: ModelSettings) -> Iterator[str]:
    # such as that of an unset variable of the shell: model.name=$MODEL
    if not model.name.strip():
        yield f"model.name must not be empty (got {format_value(model.name)}); set model.name=NAME"


def _study(study: StudySettings) -> Iterator[str]:
    name = study.name
    if name is not None and (name in ("", ".", "..") or "/" in name or "\0" in name):
        yield f"study.name must be a folder name without / (got {format_value(name)}); set study.dir for the folder above it"
    if name is not None and LAST.fullmatch(name):
        yield f"study.name={name} is how commands name a study by its age; choose another"
    yield from refusals(
        lambda: share_of("study.margin", study.margin), lambda: seconds_of("study.budget", study.budget)
    )


def _starts(study: StudySettings, load: LoadSettings) -> Iterator[str]:
    if (key := _asks_for_starts(study)) and load.search is not None:
        yield f"{key} has no effect in a search, which chooses its own points; leave it out"


def _running(study: StudySettings, launch: LaunchSettings) -> Iterator[str]:
    if key := _asks_for_starts(study):
        yield (
            f"{key} needs an engine that servebench starts, but "
            f"launch={launch.name} measures a running server: restart it between runs, and leave that out"
        )


def _asks_for_starts(study: StudySettings) -> str:
    if study.until is not None:
        return f"study.until={study.until}"
    return f"study.starts={study.starts}" if study.most_starts > 1 else ""


def _age_of_a_running_server(engine: EngineSettings, launch: LaunchSettings) -> Iterator[str]:
    if engine.age not in (None, WARM):
        yield (
            f"engine.age={engine.age} needs an engine that servebench starts, but launch={launch.name} measures a running "
            "server; set engine.age=warm or leave it out"
        )


CHECKS: Sequence[Callable[..., Iterator[str]]] = (
    *(_levels, _shape, _length_of_a_point, _until, _search_goal, _quality),
    lambda workload: iter(api_problems("workload.api", workload.api)),
    *(_fits, _engine, _headers, _no_gpu, _model_name, _study, _starts),
)
"""The checks; each takes the sections that its parameters are called after."""
LOCAL_CHECKS: Sequence[Callable[..., Iterator[str]]] = (_parallelism,)
REMOTE_CHECKS: Sequence[Callable[..., Iterator[str]]] = (_address, _running, _age_of_a_running_server)
