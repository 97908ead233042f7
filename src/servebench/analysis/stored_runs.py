"""From stored runs to what is judged and shown: sides, entrants, pages, timelines, panels, shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from servebench.analysis.compare import ComparedPoint, Side
from servebench.analysis.recommend import Entrant, RankedLevel
from servebench.analysis.repeats import OverRepeats, over_repeats
from servebench.analysis.slo import SloLimits
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData, mapping
from servebench.measure.columns import in_window, request_metrics, token_slices
from servebench.util.errors import StoreError

if TYPE_CHECKING:
    from servebench.analysis.parity import Parity
    from servebench.analysis.rightness import Agreement
    from servebench.contracts.results import QualitySummary


def quality_summaries(run: RunData) -> list[QualitySummary]:
    """The figures of a run's quality table; none where there is no table, or one that cannot be read."""
    from servebench.analysis.rightness import summaries

    try:
        return summaries(run.quality)
    except (StoreError, KeyError):
        return []


def quality_agreements(a: RunData, b: RunData) -> list[Agreement]:
    """Two runs' answers compared, question by question; none where one has no table."""
    from servebench.analysis.rightness import agreements

    try:
        return agreements(a.quality, b.quality)
    except (StoreError, KeyError):
        return []


def quality_parities(a: RunData, b: RunData) -> list[Parity]:
    """Two runs' answers to the same prompts, set side by side; none where one has none."""
    from servebench.analysis.parity import parities

    try:
        return parities(a.quality, b.quality)
    except (StoreError, KeyError, ValueError):
        return []


def side_of(run: RunData) -> Side:
    """A run as one side of a comparison: its points with the requests in their windows."""
    metrics = request_metrics(run.requests)
    samples = []
    for row in run.point_rows:
        of_point = metrics[metrics["point"] == row.point]
        start, end = row.window_start_ns, row.window_end_ns
        facts: dict[str, Any] = {
            "level": row.level_label,
            "repeat": row.repeat,
            "verdict": str(row.verdict),
            "doubts": row.doubts,
        }
        if start is None or end is None or of_point.empty:
            samples.append(ComparedPoint(**facts))
            continue
        inside = in_window(of_point, int(start), int(end))
        failed = ~inside["ok"].to_numpy(dtype=bool)
        own = run.requests[run.requests["point"] == row.point]
        latencies: dict[str, Any] = {
            name: np.where(failed, np.inf, inside[name].to_numpy(dtype=np.float64))
            for name in ("ttft_ms", "tpot_ms", "e2e_ms")
        }
        samples.append(
            ComparedPoint(
                **facts,
                request_ids=tuple(inside["request_id"]),
                sizes=np.nan_to_num(
                    inside["planned_prompt_tokens"].to_numpy(dtype=np.float64, na_value=np.nan), nan=-1
                ),
                failed=failed,
                throughput_tok_s=token_slices(own, int(start), int(end)),
                **latencies,
            )
        )
    return Side(name=run.run_id, samples=tuple(samples))


def repeats_of(run: RunData) -> OverRepeats:
    """What the repeats of a run's levels say together."""
    return over_repeats(run.point_rows)


def entrant_of(run: RunData) -> Entrant:
    """A run as it takes part in a recommendation: its levels, repeats pooled."""
    side = side_of(run)
    levels: dict[str, list[tuple[PointRow, ComparedPoint]]] = {}
    for row, sample in zip(run.point_rows, side.samples, strict=True):
        levels.setdefault(sample.level, []).append((row, sample))
    start = mapping(run.manifest.get("cold_start"))
    gpu = mapping(run.config.get("gpu"))
    return Entrant(
        name=run.run_id,
        engine=run.fact("engine") or "",
        model=run.fact("model") or "",
        gpu=run.fact("gpu") or "",
        workload=run.fact("workload") or "",
        levels=tuple(_level(label, parts) for label, parts in levels.items()),
        cold_start_s=None if start.get("shared") else start.get("seconds"),
        own_limits=own_limits(run),
        price_usd_per_hour=gpu.get("price_usd_per_hour"),
        gpu_count=int(gpu.get("count") or 0),
        manifest=run.manifest,
    )


def own_limits(run: RunData) -> SloLimits | None:
    """The SLO that a run was given; None when it set no limit."""
    slo = mapping(run.config.get("slo"))
    known = {
        name: float(slo[name]) for name in ("ttft_ms", "tpot_ms", "e2e_ms") if isinstance(slo.get(name), (int, float))
    }
    if not known:
        return None
    share = slo.get("attainment")
    return SloLimits(**known, **({"attainment": float(share)} if isinstance(share, (int, float)) else {}))


WORST_LAST = ("valid", "doubtful", "void")


def _level(label: str, parts: Sequence[tuple[PointRow, ComparedPoint]]) -> RankedLevel:
    row = parts[0][0]
    # a verdict that is not known counts as the worst
    verdicts = [s.verdict if s.verdict in WORST_LAST else "void" for _, s in parts]
    load = row.rate if row.rate is not None else row.concurrency
    return RankedLevel(
        row=row,
        label=label,
        load=float(load or 0),
        verdict=max(verdicts, key=WORST_LAST.index),
        doubts=tuple(dict.fromkeys(code for _, s in parts for code in s.doubts)),
        samples=tuple(s for _, s in parts),
    )


def limits_of(runs: Sequence[RunData]) -> dict[str, float]:
    """The SLO of the runs, where they have one and the same."""
    found: dict[str, float] = {}
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        values = {mapping(run.config.get("slo")).get(name) for run in runs if run.config}
        value = values.pop() if len(values) == 1 else None
        if isinstance(value, (int, float)):
            found[name] = float(value)
    return found
