"""Reads result files of other load generators as rows of points, with only the values that each file contains.

Their percentiles are over all successful requests, not over a window, and their definitions differ (see `report --as`),
so every imported point has the warning `foreign`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servebench.contracts.stored import mapping
from servebench.util.bounded_file import RESULT_BYTES_MAX, LimitError, parse_json, read_bytes
from servebench.util.errors import ConfigError, reason_of

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "min", "max")
SECOND_MS = 1000.0
NUMBER_MAX = 1e15
LINES_MAX = 1_000_000

Row = dict[str, Any]
"""A load level under the names of points.csv; what the file does not contain is missing, or None while it is read."""


@dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """A run from a result file."""

    tool: str
    engine: str | None
    model: str | None
    points: Sequence[Row]
    config: Mapping[str, Any]


def read_foreign(path: Path, tool: str | None = None) -> ForeignRun:
    """Return the run in a result file; the tool is recognized when none is named. Raises ConfigError."""
    try:
        text = read_bytes(path, RESULT_BYTES_MAX).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is not a text file"
        raise ConfigError(f"{path} cannot be read: {reason}") from error
    documents = _documents(text, path)
    if tool is not None and tool not in READERS:
        raise ConfigError(f"--tool must be one of {', '.join(READERS)} (got {tool})")
    name = tool or next((name for name, (fits, _) in READERS.items() if fits(documents[0])), None)
    if name is None:
        raise ConfigError(f"{path} is not a known result file of {', '.join(READERS)}; name the tool with --tool")
    try:
        found = READERS[name][1](documents)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise ConfigError(f"{path} is not a known result file of {name}: {type(error).__name__} {error}") from error
    if not found.points:
        raise ConfigError(f"{path} contains no result of {name}")
    known = [{column: value for column, value in row.items() if value is not None} for row in found.points]
    for row in known:
        if "output_tokens_mean" not in row and row.keys() >= {"input_tokens_mean", "request_throughput_req_s"}:
            row["input_throughput_tok_s"] = row["input_tokens_mean"] * row["request_throughput_req_s"]
    return replace(found, points=known)


def _documents(text: str, path: Path) -> list[dict[str, Any]]:
    try:
        whole = parse_json(text)
        found = whole if isinstance(whole, list) else [whole]
    except LimitError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except ValueError:
        if (lines := text.count("\n")) > LINES_MAX:
            raise ConfigError(f"{path} has {lines:,} lines of JSON, and the limit is {LINES_MAX:,}") from None
        try:
            # one by one: a list of short lines takes a multiple of their text
            parsed = (parse_json(line[0]) for line in re.finditer(r"[^\n]+", text) if not line[0].isspace())
            found = [one for one in parsed if isinstance(one, dict)]
        except ValueError as error:
            raise ConfigError(f"{path} is not valid JSON: {error}") from error
    kept = [one for one in found if isinstance(one, dict)]
    if not kept:
        raise ConfigError(f"{path} contains no JSON object")
    return kept


def _number(value: Any) -> float | None:
    """A number, also from text; None otherwise, and for what no measurement gives."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < NUMBER_MAX else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _load(concurrency: Any, rate: Any) -> dict[str, Any]:
    level = _count(concurrency)
    return {"concurrency": level} if level else {"rate": _number(rate)}


def _flat_point(result: Mapping[str, Any], latency: str, planned: int | None) -> Row:
    completed = _count(result.get("completed")) or 0
    failed = _count(result.get("failed"))
    if failed is None:
        failed = max(0, planned - completed) if planned is not None else 0
    tokens_in, tokens_out = _number(result.get("total_input_tokens")), _number(result.get("total_output_tokens"))
    row = {
        **_load(result.get("max_concurrency"), result.get("request_rate")),
        "requests_planned": planned if planned is not None else completed + failed,
        "requests_ok": completed,
        "requests_failed": failed,
        "window_s": _number(result.get("duration")),
        "output_throughput_whole_run_tok_s": _number(result.get("output_throughput")),
        "output_throughput_tok_s": _number(result.get("output_throughput")),
        "request_throughput_req_s": _number(result.get("request_throughput")),
        "goodput_req_s": _number(result.get("request_goodput")),
        "input_tokens_mean": None if tokens_in is None or not completed else tokens_in / completed,
        "output_tokens_mean": None if tokens_out is None or not completed else tokens_out / completed,
        "output_tokens_total": _count(tokens_out),
    }
    # if no request succeeded they write latencies of zero
    if completed:
        for ours, theirs in {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms", "itl_ms": "itl_ms", "e2e_ms": latency}.items():
            values = {name: result.get(f"{name}_{theirs}") for name in STATISTICS}
            row |= _spread({**values, "p50": result.get(f"median_{theirs}")}, ours)
    return row


def _vllm(documents: list[dict[str, Any]]) -> ForeignRun:
    first = documents[0]
    points = [_flat_point(one, "e2el_ms", _count(one.get("num_prompts"))) for one in documents if "completed" in one]
    engine = _named(first.get("backend") or first.get("endpoint_type"))
    arguments = ("backend", "tokenizer_id", "num_prompts", "request_rate", "burstiness")
    config = {key: first.get(key) for key in arguments}
    return ForeignRun(tool="vllm", engine=engine, model=first.get("model_id"), points=points, config=config)


def _sglang(documents: list[dict[str, Any]]) -> ForeignRun:
    first = documents[0]
    points = [_flat_point(one, "e2e_latency_ms", None) for one in documents if "completed" in one]
    server = mapping(first.get("server_info"))
    model = server.get("served_model_name") or server.get("model_path")
    arguments = ("dataset_name", "random_input_len", "random_output_len", "random_range_ratio", "request_rate")
    config = {key: first.get(key) for key in ("backend", *arguments)}
    engine = _named(first.get("backend"))
    return ForeignRun(tool="sglang", engine=engine, model=model, points=points, config=config)


def _named(backend: Any) -> str | None:
    text = str(backend or "").lower()
    return next((name for name in ("sglang", "vllm", "trt", "lmdeploy", "tgi") if text.startswith(name)), None)


def _spread(values: Mapping[str, Any], ours: str, factor: float = 1.0) -> Row:
    """Return a block of statistics under servebench's names, multiplied by `factor`."""
    values = {"mean": values.get("avg"), **values}
    numbers = {f"{ours}_{name}": _number(values.get(name)) for name in STATISTICS}
    found: Row = {name: value * factor for name, value in numbers.items() if value is not None}
    return {**found, f"{ours}_n": _count(values.get("count"))}


def _guidellm(documents: list[dict[str, Any]]) -> ForeignRun:
    whole = documents[0]
    config = mapping(whole.get("config")) or mapping(whole.get("args"))
    spec = mapping(config.get("spec"))
    backend = mapping(spec.get("backend"))
    points = [_guidellm_point(one) for one in whole["benchmarks"]]
    own = mapping(mapping(mapping(whole["benchmarks"][0]).get("config")).get("backend")) if points else {}
    model = own.get("model") or backend.get("model") or config.get("model")
    return ForeignRun(tool="guidellm", engine=None, model=model, points=points, config=dict(config))


def _guidellm_point(one: Mapping[str, Any]) -> Row:
    metrics = mapping(one.get("metrics"))
    totals = mapping(metrics.get("request_totals"))
    strategy = mapping(mapping(one.get("config")).get("strategy")) or mapping(mapping(one.get("args")).get("strategy"))
    kind = strategy.get("type_") or strategy.get("kind") or strategy.get("type")
    streams = strategy.get("streams") or strategy.get("max_concurrency")

    def good(name: str) -> dict[str, Any]:
        block = mapping(mapping(metrics.get(name)).get("successful"))
        if block.get("count") == 0:
            return {}  # of no values it writes zeros
        return {**mapping(block.get("percentiles")), "mean": block.get("mean"), "p50": block.get("median"),
                "min": block.get("min"), "max": block.get("max"), "count": block.get("count")}  # fmt: skip

    output = good("output_token_count")
    errored = (_count(totals.get("errored")) or 0) + (_count(totals.get("incomplete")) or 0)
    return {
        **_load(1 if kind == "synchronous" else streams, strategy.get("rate")),
        "requests_planned": _count(totals.get("total")),
        "requests_ok": _count(totals.get("successful")),
        "requests_failed": errored,
        "window_s": _number(one.get("duration")),
        # a rate of no tokens is 0 as well
        "output_throughput_tok_s": _number(good("output_tokens_per_second").get("mean")) if output else None,
        "request_throughput_req_s": _number(good("requests_per_second").get("mean")),
        "input_tokens_mean": _number(good("prompt_token_count").get("mean")),
        "output_tokens_mean": _number(output.get("mean")),
        **_spread(good("time_to_first_token_ms"), "ttft_ms"),
        **_spread(good("inter_token_latency_ms"), "tpot_ms"),
        **_spread(good("request_latency"), "e2e_ms", SECOND_MS),
    }


def _aiperf(documents: list[dict[str, Any]]) -> ForeignRun:
    whole = documents[0]
    config = mapping(whole.get("input_config"))
    endpoint = mapping(config.get("endpoint")) or mapping(mapping(config.get("cli_config")).get("endpoint"))
    models = endpoint.get("model_names") or _aiperf_models(config)
    load = mapping(config.get("loadgen"))
    phases = [mapping(one) for one in mapping(config.get("benchmark")).get("phases") or config.get("phases") or ()]
    load_settings = next(
        (one for one in (load, *phases) if one.get("concurrency") or one.get("request_rate") or one.get("rate")), {}
    )

    def average(name: str) -> float | None:
        return _number(mapping(whole.get(name)).get("avg"))

    errors = sum(_count(mapping(one).get("count")) or 0 for one in whole.get("error_summary") or ())
    ok = _count(average("request_count")) or 0
    row = {
        **_load(load_settings.get("concurrency"), load_settings.get("request_rate") or load_settings.get("rate")),
        "requests_planned": ok + errors,
        "requests_ok": ok,
        "requests_failed": errors,
        "window_s": average("benchmark_duration"),
        "output_throughput_tok_s": average("output_token_throughput"),
        "output_throughput_whole_run_tok_s": average("output_token_throughput"),
        "request_throughput_req_s": average("request_throughput"),
        "goodput_req_s": average("goodput"),
        "input_tokens_mean": average("input_sequence_length"),
        "output_tokens_mean": average("output_sequence_length"),
    }
    for theirs, ours in AIPERF_LATENCIES.items():
        block = mapping(whole.get(theirs))
        row |= _spread(block, ours, _to_ms(block.get("unit")))
    model = str(models[0]) if models else None
    return ForeignRun(tool="aiperf", engine=None, model=model, points=[row], config=dict(config))


AIPERF_LATENCIES = {
    "time_to_first_token": "ttft_ms",
    "inter_token_latency": "tpot_ms",
    "inter_chunk_latency": "itl_ms",
    "request_latency": "e2e_ms",
}
"""AIPerf's ITL is one mean per request: TPOT here."""


def _aiperf_models(config: Mapping[str, Any]) -> list[Any]:
    models = config.get("models") or mapping(config.get("benchmark")).get("models")
    if isinstance(models, Mapping):
        models = models.get("items")
    if not isinstance(models, list):
        return []
    return [one.get("name") if isinstance(one, Mapping) else one for one in models]


def _to_ms(unit: Any) -> float:
    """Return what values of this unit are multiplied by, 1 for an unknown one."""
    return {"s": SECOND_MS, "sec": SECOND_MS, "seconds": SECOND_MS, "us": 1e-3, "ns": 1e-6}.get(str(unit), 1.0)


Reader = Callable[[list[dict[str, Any]]], ForeignRun]

READERS: Mapping[str, tuple[Callable[[Mapping[str, Any]], bool], Reader]] = {
    "guidellm": (lambda one: isinstance(one.get("benchmarks"), list), _guidellm),
    "aiperf": (lambda one: "request_latency" in one and "input_config" in one, _aiperf),
    "vllm": (lambda one: "model_id" in one and "completed" in one, _vllm),
    "sglang": (lambda one: "median_e2e_latency_ms" in one or ("backend" in one and "dataset_name" in one), _sglang),
}
