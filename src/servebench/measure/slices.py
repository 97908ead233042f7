"""What a point that is measured in slices, in turns with another engine, shows in each of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from servebench.contracts.exchange import PhaseReport
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.results import Record
from servebench.measure import derive
from servebench.measure.window import Window, steady_slices
from servebench.util.arrays import Floats
from servebench.util.stretches import Spans, between, compressed, length
from servebench.util.units import NS_PER_S

Arrived = tuple[Floats, Floats | None]
"""The events inside a window in seconds from its start, without what is left out, and the tokens of each."""
KEPT_SHARE_MIN = 0.5
"""A slice of which less is left says nothing."""
MEDIANS: Mapping[str, Callable[[Record], float | None]] = {
    "ttft_ms_p50": derive.ttft_ms,
    "tpot_ms_p50": derive.tpot_ms,
    "e2e_ms_p50": derive.e2e_ms,
}
"""The compared columns that are medians of requests."""


def slice_columns(
    facts: PhaseFacts,
    report: PhaseReport,
    inside: Sequence[Record],
    window: Window | None,
    arrived: Arrived,
    *,
    crowded: Spans = (),
) -> dict[str, Any]:
    """Return the columns of a point that say what it shows in each slice, by the requests that count and the tokens inside the
    window. The slices `crowded` have no values."""
    columns: dict[str, Any] = {"slices": len(facts.slices), "slice_group": facts.slice_group}
    if window is not None:
        values = _values(steady_slices(facts, report), inside, window, arrived, crowded)
        columns["slice_values"] = orjson.dumps(values).decode()
    return columns


def _values(
    steady: Spans, inside: Sequence[Record], window: Window, arrived: Arrived, crowded: Spans
) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {name: [] for name in ("output_throughput_tok_s", *MEDIANS)}
    arrival_s, weights = arrived
    sent = np.array([record.sent_ns for record in inside], dtype=np.int64)
    medians = {
        name: np.array([np.nan if (value := metric(record)) is None else value for record in inside])
        for name, metric in MEDIANS.items()
    }
    for low, high in steady:
        pieces = between(window.left_out, max(low, window.start_ns), min(high, window.end_ns))
        enough = length(pieces) >= KEPT_SHARE_MIN * (high - low) and (low, high) not in crowded
        begin, end = (compressed(np.array([low, high]), window.left_out) - window.start_ns) / NS_PER_S
        within = (arrival_s > begin) & (arrival_s <= end)
        tokens = None if weights is None else float(weights[within].sum())
        rate = tokens / (length(pieces) / NS_PER_S) if enough and tokens is not None else None
        found["output_throughput_tok_s"].append(_rounded(rate))
        own = (sent >= low) & (sent <= high)
        for name, values in medians.items():
            known = values[own & ~np.isnan(values)]
            found[name].append(_rounded(float(np.median(known)) if enough and known.size else None))
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
