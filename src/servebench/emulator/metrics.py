"""The Prometheus metrics of an emulated engine, under that engine's own names."""

from collections.abc import Mapping

from servebench.emulator.scheduler import BatchScheduler

GAUGES = frozenset({"requests_running", "requests_waiting", "kv_cache_usage"})


def current_values(scheduler: BatchScheduler, now_s: float) -> dict[str, float]:
    """Return the current values of the metrics in `contracts.telemetry.VOCABULARY`, and of `prompt_tokens_computed`, which only
    emulations name."""
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
        "preemptions": totals.preemptions,
    }


def metrics_page(
    scheduler: BatchScheduler, now_s: float, names: Mapping[str, str], labels: str, lateness_ms: Mapping[str, float]
) -> str:
    """Return the text of the metrics page. `labels` are the labels of every line, or empty."""
    values = current_values(scheduler, now_s)
    braces = f"{{{labels}}}" if labels else ""
    lines: list[str] = []
    for name, meaning in names.items():
        value = values.get(meaning)
        if value is not None:
            kind = "gauge" if meaning in GAUGES else "counter"
            lines += [f"# TYPE {name} {kind}", f"{name}{braces} {value:g}"]
    for name, value in lateness_ms.items():
        lines.append(f'servebench_emulator_lateness_ms{{statistic="{name}"}} {value:.4f}')
    return "\n".join(lines) + "\n"
