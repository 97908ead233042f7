"""Collect what a stored run says about each load level: its points, the stamps and the engine's times of its requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from servebench.analysis.estimate import levels_of
from servebench.analysis.limits.model import LevelFacts
from servebench.analysis.limits.proposals import Knobs, configured, default_running_limit
from servebench.analysis.limits.roofline import compute_share, memory_share
from servebench.analysis.time_parts import TimeParts, server_is_here, time_parts
from servebench.contracts.limits import Limit
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData
from servebench.measure.columns import in_window, measured_rows
from servebench.measure.in_flight import in_flight_at
from servebench.util.stretches import compressed
from servebench.util.units import MS_PER_S, NS_PER_MS

if TYPE_CHECKING:
    import pandas as pd

SAMPLES_MIN = 5
"""Of a point's telemetry, so that CPU time is more than the noise of its ends."""
REPORTED_MIN = 0.95
"""The share of the requests of which the engine's times must be known: some are lost on the way (`timings_missing`)."""
NEAR_MOST = 0.95
"""So much of the most counts as the most: between two steps one of many is already done and the next not begun."""


def level_facts(run: RunData, knobs: Knobs, *, attached: bool = False) -> list[LevelFacts]:
    """Return the facts of each level of a run that has a point which is not void; `knobs` are those of its engine, whose defaults
    say nothing of a server that was `attached`. Raises StoreError."""
    counted = (row for row in run.point_rows if row.verdict != "void" and row.window_ns is not None)
    levels = levels_of(row for row in counted if row.ttft_ms_mean and row.e2e_ms_mean)
    whole = [one for one in time_parts(run) if one.metric == "E2E" and one.group == "all"] if levels else []
    whole_of = {one.level: one for one in whole}
    running_limit = configured(run.config, knobs.get(Limit.RUNNING, ()))
    if running_limit is None and not attached:
        running_limit = default_running_limit(knobs)
    budget = configured(run.config, knobs.get(Limit.TOKEN_BUDGET, ()))
    limits = {"running_limit": running_limit, "token_budget": budget}
    here = server_is_here(run)
    return [_facts(run, rows, whole_of.get(level), limits, same_machine=here) for level, rows in levels.items()]


def _facts(
    run: RunData,
    rows: Sequence[PointRow],
    whole: TimeParts | None,
    limits: Mapping[str, float | None],
    *,
    same_machine: bool,
) -> LevelFacts:
    """Return the facts of a level from its points; `whole` is where the time of all its requests goes, `limits` are those of the
    engine's settings."""
    # without times of the engine its parts are those of the client's stamps
    parts = whole.parts if whole is not None and whole.reported else {}
    requests = run.requests
    stamps = [_stamps(row, requests) for row in rows]
    mean, of_stamps = partial(_mean, rows), partial(_mean, stamps)

    def either(name: str, column: str) -> float | None:
        found = of_stamps(name)
        return mean(column) if found is None else found

    client, rate = of_stamps("client_ms"), mean("request_throughput_req_s")
    waiting = either("waiting", "server_waiting_mean")
    # in the queue by the requests themselves, by the engine's metrics, else by Little's law
    by_metrics = mean("server_queue_time_ms_mean")
    by_waiting = waiting / rate * MS_PER_S if waiting is not None and rate else None
    ttft_ms, e2e_ms = ((mean(name) or 0.0) + (client or 0.0) for name in ("ttft_ms_mean", "e2e_ms_mean"))
    if whole is not None:
        # one mean over all requests, of which the parts are, and not the mean of the points' means
        ttft_ms, e2e_ms = whole.ttft_ms, whole.total_ms
    preempted, answered = mean("server_preemptions"), mean("requests_ok")
    sampled = [row for row in rows if (row.telemetry_samples or 0) >= SAMPLES_MIN]
    cores, front_end = (_mean(sampled, name) for name in ("engine_cpu_cores_mean", "front_end_cores_mean"))
    return LevelFacts(
        level=rows[0].level,
        engine=run.fact("engine") or "the engine",
        requests=sum(row.requests_ok or 0 for row in rows),
        ttft_ms=ttft_ms,
        e2e_ms=e2e_ms,
        parts=parts,
        client_ms=client,
        client_cpu=mean("client_cpu_share"),
        queue_ms=parts.get("queue", by_metrics if by_metrics is not None else by_waiting),
        running=either("running", "server_running_mean"),
        waiting=waiting,
        at_most=of_stamps("at_most"),
        at_limit=of_stamps("at_limit"),
        request_rate=rate,
        itl_ms=mean("itl_ms_mean"),
        input_tokens=mean("input_tokens_mean"),
        output_tokens=mean("output_tokens_mean"),
        kv_usage=mean("server_kv_cache_usage_max"),
        preempted=preempted / answered if preempted is not None and answered else None,
        connect_ms=mean("connect_ms_mean"),
        front_end_ms=of_stamps("front_end_ms"),
        memory_share=memory_share(run.config, mean),
        compute_share=compute_share(run.config, mean),
        idle=of_stamps("idle"),
        open_loop=rows[0].rate is not None,
        kept_up=mean("kept_up"),
        in_flight=mean("average_in_flight"),
        same_machine=same_machine,
        front_end_cores=front_end,
        other_cores=cores - front_end if cores is not None and front_end is not None else None,
        **limits,
    )


def _mean(rows: Iterable[PointRow] | Iterable[Mapping[str, float | None]], name: str) -> float | None:
    known = [float(value) for row in rows if (value := row.get(name)) is not None]
    return fmean(known) if known else None


def _stamps(row: PointRow, requests: pd.DataFrame) -> dict[str, float | None]:
    """Return what the stamps of a point show in its window, under the names of LevelFacts; nothing without any."""
    assert row.window_ns is not None
    start, end = row.window_ns
    if requests.empty:
        return {}
    own = requests[(requests["point"] == row.point) & requests["sent_ns"].notna()]
    # the requests of which the point's own numbers are, without disturbed stretches
    inside = in_window(measured_rows(own), row)
    inside = inside[inside["outcome"] == "ok"]
    if inside.empty or end <= start:
        return {}
    times = own[["sent_ns", "ended_ns"]].to_numpy(dtype=np.int64)
    moments, widths = _pieces(times, row)
    in_flight = in_flight_at(moments, times[:, 0], times[:, 1])
    # without the others too few would seem to run
    enough = 0 < REPORTED_MIN * len(inside) <= len(_timed(inside))
    return {
        "client_ms": float((inside["sent_ns"] - inside["scheduled_ns"]).mean()) / NS_PER_MS,
        "idle": float(widths[in_flight == 0].sum() / widths.sum()),
        "front_end_ms": _front_end_ms(inside),
        **(_activity(_timed(own), row) if enough else {}),
    }


def _timed(requests: pd.DataFrame) -> pd.DataFrame:
    if "network_ms" not in requests:
        return requests[:0]
    return requests[requests["server_prefill_ms"].notna() & requests["server_decode_ms"].notna()]


def _front_end_ms(requests: pd.DataFrame) -> float | None:
    """Return the mean time in the server that is neither queue, prefill nor decode, where the engine reports its E2E."""
    names = ("server_queue_ms", "server_prefill_ms", "server_kv_transfer_ms", "server_decode_ms")
    if "server_e2e_ms" not in requests or requests["server_e2e_ms"].isna().all():
        return None
    left = requests["server_e2e_ms"] - requests[list(names)].fillna(0.0).sum(axis=1)
    return float(left.mean())


def _pieces(edges: Any, row: PointRow) -> tuple[Any, Any]:
    """Return when the pieces between these edges begin that count in the window, and how long they are."""
    assert row.window_ns is not None
    border = np.array([*row.window_ns, *chain.from_iterable(row.left_out)], dtype=np.int64)
    moments = np.unique(np.clip(np.append(edges, border), *row.window_ns))
    widths = np.diff(compressed(moments, row.left_out))
    return moments[:-1][widths > 0], widths[widths > 0]


def _activity(timed: pd.DataFrame, row: PointRow) -> dict[str, float]:
    """Return how many requests ran and waited, from the engine's durations laid out before and after the first token.

    One that reports no queue has its requests wait from when they are sent until its prefill begins.
    """
    first = timed["first_event_ns"].to_numpy(dtype=np.float64)

    def ns(name: str) -> Any:
        return timed[name].fillna(0.0).to_numpy(dtype=np.float64) * NS_PER_MS

    begun = first - ns("server_prefill_ms") - ns("server_kv_transfer_ms")
    reports = timed["server_queue_ms"].notna().any()
    queued = begun - ns("server_queue_ms") if reports else timed["sent_ns"].to_numpy(dtype=np.float64)
    ended = first + ns("server_decode_ms")
    begun, queued, ended = (one.astype(np.int64) for one in (begun, np.minimum(queued, begun), ended))
    moments, widths = _pieces(np.concatenate((begun, queued, ended)), row)
    running, waiting = in_flight_at(moments, begun, ended), in_flight_at(moments, queued, begun)
    # at the edge of a step one request ends and the next begins: what holds for hardly a moment is no maximum
    held = np.bincount(running, weights=widths)
    most = int(np.flatnonzero(held[::-1].cumsum()[::-1] >= MOST_HELD * held.sum()).max())
    all_waiting = float(waiting @ widths)
    at_most = running >= NEAR_MOST * most
    return {
        "running": float(running @ widths / widths.sum()),
        "waiting": all_waiting / float(widths.sum()),
        "at_most": float(most),
        "at_limit": float(waiting[at_most] @ widths[at_most]) / all_waiting if all_waiting else 0.0,
    }


MOST_HELD = 0.05
"""The most that run at once is a number that is reached in at least this share of the time."""
