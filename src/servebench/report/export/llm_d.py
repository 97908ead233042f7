"""Exports points as the Benchmark Report of llm-d (version 0.2), one for each load level."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData, mapping
from servebench.report.files import write_file
from servebench.util.errors import ConfigError

LLM_D_VERSION = "0.2.1"
STATISTICS = ("mean", "min", "p50", "p90", "p95", "p99", "max")
ROLE = "replica"


def write_reports(runs: Sequence[RunData], out: Path | None) -> str:
    """Write the reports of all points as YAML to a file, or one file each to a folder, and return what to print: without `out`
    the documents themselves. Raises ConfigError where nothing was measured, StoreError."""
    texts = [
        (f"{run.study_id}_{run.name}_{stage:02d}.yaml", yaml.safe_dump(report, sort_keys=False, allow_unicode=True))
        for run in runs
        for stage, report in enumerate(llm_d_reports(run))
    ]
    if not texts:
        raise ConfigError("export: there are no measured points to export")
    if out is None:
        return "---\n".join(text for _, text in texts)
    if len(texts) == 1 and out.suffix in (".yaml", ".yml"):
        write_file(out, texts[0][1])
        return ""
    for name, text in texts:
        write_file(out / name, text)
    return f"{len(texts)} reports in {out}\n"


def llm_d_reports(run: RunData) -> list[dict[str, Any]]:
    """Return a Benchmark Report for each point of a run: llm-d describes one load level at a time.

    llm-d has no fields for verdict, warnings, intervals and goodput: they are in the load's native configuration.
    """
    return [_llm_d(run, row, stage) for stage, row in enumerate(run.point_rows)]


def _digest(value: Any) -> str:
    return hashlib.md5(json.dumps(value, sort_keys=True, default=str).encode(), usedforsecurity=False).hexdigest()


def _stamp(nanoseconds: int | None) -> str | None:
    if nanoseconds is None:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(nanoseconds / 1e9))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


def _statistics(row: PointRow, name: str, units: str) -> dict[str, Any] | None:
    """A distribution; None without a mean, which llm-d requires."""
    if row.get(f"{name}_mean") is None:
        return None
    return {"units": units, **{statistic: row.get(f"{name}_{statistic}") for statistic in STATISTICS}}


def _single(value: float | None, units: str) -> dict[str, Any] | None:
    return None if value is None else {"units": units, "mean": value}


def _length(value: Any, seen: float | None) -> dict[str, Any] | None:
    """A length as llm-d describes it: as configured, otherwise as measured."""
    if isinstance(value, (int, float)):
        return {"distribution": "fixed", "value": value}
    if isinstance(value, Mapping) and value.get("mean") is not None:
        known = {"fixed": "fixed", "normal": "gaussian", "uniform": "uniform"}
        return {
            "distribution": known.get(str(value.get("kind")), "other"),
            "value": value["mean"],
            "std_dev": value.get("stdev"),
            "min": value.get("min"),
            "max": value.get("max"),
        }
    return None if seen is None else {"distribution": "other", "value": seen}


def _llm_d(run: RunData, row: PointRow, stage: int) -> dict[str, Any]:
    config = run.config
    load = {key: dict(mapping(config.get(key))) for key in ("workload", "load", "slo") if config.get(key)}
    report = {
        "version": LLM_D_VERSION,
        "run": {
            "uid": _digest([run.run_id, row.point, run.started_s]),
            "eid": _digest(run.study_id),
            "time": {
                "start": _stamp(row.window_start_ns),
                "end": _stamp(row.window_end_ns),
                "duration": None if row.window_s is None else f"PT{row.window_s:.6f}S",
            },
            "description": f"{run.title}, load {row.level}: {row.verdict}",
            "keywords": [str(word) for word in (row.verdict, *row.doubts) if word],
        },
        "scenario": {"stack": [_engine(run, row)], "load": _load(run, row, stage, load)},
        "results": {"request_performance": {"aggregate": _aggregate(row)}},
    }
    cleaned: dict[str, Any] = _without_none(report)
    return cleaned


def _engine(run: RunData, row: PointRow) -> dict[str, Any]:
    engine = dict(mapping(run.config.get("engine")))
    command = mapping(run.manifest.get("command"))
    count = int(row.gpu_count or 0)
    argv = [str(word) for word in command.get("argv") or ()]
    return {
        "metadata": {"label": run.fact("engine") or "engine", "cfg_id": _digest(engine)},
        "standardized": {
            "kind": "inference_engine",
            "tool": run.fact("engine") or "unknown",
            "tool_version": run.fact("engine_version") or "unknown",
            "role": ROLE,
            "replicas": 1,
            "model": {"name": run.fact("model") or "unknown"},
            "accelerator": {
                "model": run.fact("gpu") or "none",
                "count": count,
                "parallelism": {"tp": engine.get("tensor_parallel_size") or max(count, 1)},
            },
        },
        "native": {
            "args": {"argv": argv} if argv else None,
            "envars": dict(mapping(command.get("env"))) or None,
            "config": engine or None,
        },
    }


def _load(run: RunData, row: PointRow, stage: int, config: Mapping[str, Any]) -> dict[str, Any]:
    workload = mapping(run.config.get("workload"))
    exact = workload.get("exact_output")
    columns = ("verdict", "doubts", "goodput_req_s", "output_throughput_tok_s_low", "output_throughput_tok_s_high")
    servebench = {name: row.get(name) for name in columns}
    version = mapping(run.manifest.get("packages")).get("servebench-suite") or run.manifest.get("servebench_version")
    return {
        "metadata": {"cfg_id": _digest(config), "description": run.fact("workload")},
        "standardized": {
            "tool": run.foreign or "servebench",
            "tool_version": str(version or "unknown"),
            "stage": stage,
            "source": "random" if run.fact("workload") == "unique" else "sampled",
            "input_seq_len": _length(workload.get("input_tokens"), row.input_tokens_mean)
            or {"distribution": "other", "value": 0},
            "output_seq_len": _length(workload.get("output_tokens"), None) if exact else None,
            "rate_qps": row.rate,
            "concurrency": row.concurrency,
        },
        "native": {"config": {**config, "servebench": _without_none(servebench)}},
    }


def _aggregate(row: PointRow) -> dict[str, Any]:
    ok, failed = row.requests_ok or 0, row.requests_failed or 0
    request_rate, tokens_in = row.request_throughput_req_s, row.input_tokens_mean
    tokens_out = row.output_throughput_tok_s
    input_rate = None if request_rate is None or tokens_in is None else request_rate * tokens_in
    total = None if input_rate is None or tokens_out is None else input_rate + tokens_out
    return {
        "requests": {
            "total": ok + failed,
            "failures": failed,
            "input_length": _single(tokens_in, "count"),
            "output_length": _single(row.output_tokens_mean, "count"),
        },
        "latency": {
            "time_to_first_token": _statistics(row, "ttft_ms", "ms"),
            "time_per_output_token": _statistics(row, "tpot_ms", "ms/token"),
            "inter_token_latency": _statistics(row, "itl_ms", "ms/token"),
            "request_latency": _statistics(row, "e2e_ms", "ms"),
        },
        "throughput": {
            "input_token_rate": _single(input_rate, "tokens/s"),
            "output_token_rate": _single(tokens_out, "tokens/s"),
            "total_token_rate": _single(total, "tokens/s"),
            "request_rate": _single(request_rate, "queries/s"),
        },
    }
