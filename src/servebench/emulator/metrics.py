"""The Prometheus metrics of an emulated engine, under that engine's own names."""

from collections.abc import Mapping
from itertools import accumulate

from servebench.emulator.scheduler import BatchScheduler, Histogram

GAUGES = frozenset({"requests_running", "requests_waiting", "kv_cache_usage", "hit_rate"})


def current_values(scheduler: BatchScheduler, now_s: float) -> dict[str, float | Histogram]:
    """Return the current values of the metrics in `contracts.telemetry.VOCABULARY`, and of those that only emulations name:
    `prompt_tokens_computed`, `hit_rate`, `requests` and the histograms `ttft` and `e2e`."""
    totals = scheduler.totals
    return {
        "requests_running": scheduler.in_engine(),
        "requests_waiting": scheduler.waiting_at(now_s),
        "kv_cache_usage": min(1.0, scheduler.memory.used() / scheduler.memory.capacity),
        "prompt_tokens": totals.prompt_tokens,
        "prompt_tokens_computed": totals.prompt_tokens - totals.cached_tokens,
        "generation_tokens": totals.generation_tokens,
        "prefix_cache_queries_tokens": totals.prompt_tokens,
        "prefix_cache_hits_tokens": totals.cached_tokens,
        "queue_time_s_sum": totals.queue_s,
        "queue_time_s_count": totals.admitted,
        "spec_draft_tokens": totals.drafted,
        "spec_accepted_tokens": totals.accepted,
        "hit_rate": totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0,
        "preemptions": totals.preemptions,
        "requests": totals.requests,
        "ttft": totals.ttft,
        "e2e": totals.e2e,
    }


def metrics_page(
    scheduler: BatchScheduler, now_s: float, names: Mapping[str, str], labels: str, lateness_ms: Mapping[str, float]
) -> str:
    """Return the text of the metrics page. `labels` are the labels of every line, or empty."""
    values = current_values(scheduler, now_s)
    lines: list[str] = []
    for name, meaning in names.items():
        value = values.get(meaning)
        if isinstance(value, Histogram):
            lines += _histogram(name, value, labels)
        elif value is not None:
            kind = "gauge" if meaning in GAUGES else "counter"
            lines += [f"# TYPE {name} {kind}", f"{name}{_braces(labels)} {value:g}"]
    for name, value in lateness_ms.items():
        lines.append(f'servebench_emulator_lateness_ms{{statistic="{name}"}} {value:.4f}')
    return "\n".join(lines) + "\n"


def _braces(*labels: str) -> str:
    inside = ",".join(label for label in labels if label)
    return f"{{{inside}}}" if inside else ""


def _histogram(name: str, value: Histogram, labels: str) -> list[str]:
    counts = list(accumulate(value.counts))
    bounds = [*(f"{bound:g}" for bound in value.bounds), "+Inf"]
    lines = [f"# TYPE {name} histogram"]
    for bound, count in zip(bounds, counts, strict=True):
        le = f'le="{bound}"'
        lines.append(f"{name}_bucket{_braces(labels, le)} {count}")
    return [*lines, f"{name}_sum{_braces(labels)} {value.total:.6f}", f"{name}_count{_braces(labels)} {counts[-1]}"]
