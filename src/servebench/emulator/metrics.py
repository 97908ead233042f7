"""The metrics of an emulated engine, under that engine's own names, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from servebench.emulator.core import Core, Histogram

COUNTERS = frozenset(
    {"prompt_tokens", "generation_tokens", "cached_tokens", "prefix_queries", "prefix_hits", "preemptions", "requests"}
)


def facts(core: Core) -> dict[str, float | Histogram]:
    """What is known of the engine at this moment, by the names that an `Emulation` uses."""
    totals = core.totals
    return {
        "running": core.in_engine(),
        "waiting": core.queued(),
        "kv_usage": core.memory.used() / core.memory.capacity,
        "prompt_tokens": totals.prompt_tokens,
        "generation_tokens": totals.generation_tokens,
        "cached_tokens": totals.cached_tokens,
        "prefix_queries": totals.prompt_tokens,
        "prefix_hits": totals.cached_tokens,
        "hit_rate": totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0,
        "preemptions": totals.preemptions,
        "requests": totals.requests,
        "ttft": totals.ttft,
        "e2e": totals.e2e,
    }


def exposition(core: Core, names: Mapping[str, str], labels: str, lateness_ms: Mapping[str, float]) -> str:
    """The text of the metrics page. `labels` is what stands in the braces of each line, or nothing."""
    known = facts(core)
    lines: list[str] = []
    for name, fact in names.items():
        value = known.get(fact)
        if isinstance(value, Histogram):
            lines += _histogram(name, value, labels)
        elif value is not None:
            kind = "counter" if fact in COUNTERS else "gauge"
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
        lines.append(f"{name}_bucket{_braces(labels, _le(bound))} {count}")
    return [*lines, f"{name}_sum{_braces(labels)} {value.total:.6f}", f"{name}_count{_braces(labels)} {counts[-1]}"]


def _le(bound: str) -> str:
    return f'le="{bound}"'
