"""Compute the row of a point from its records.

Which requests count for which column:

- latencies (TTFT, ITL, TPOT, E2E, TTFO, connect), token means, hit rate: ok requests sent inside the window;
- output throughput: tokens of ok requests whose event's stamp lies inside the window, over the window's length; the
  tokens of an event are those in the stream, else an equal share of the request's output tokens;
- output throughput of the whole run: all tokens of ok requests, from the first request sent to the last one ended;
- request throughput: ok requests, each by the share of its content events that lie inside the window, as for tokens;
- goodput: ok requests sent inside the window that met every SLO limit that is set, a second; where requests arrive at a
  given rate, their share of all that were sent inside it, or refused, times the rate, for how many just arrive is chance, and
  TTFT and E2E count from the schedule. A request without a TPOT (one token, or all in one event) does not fail that limit;
- `_p50_all` and `_p99_all`: every request sent inside the window, failed ones being infinitely slow; infinite where the
  percentile is a failed one. Requests that the client itself ended (`cancelled`, `abandoned`) are left out;
- stretches in which others took the machine (`disturbed`) are left out if at least half of the window and of its
  requests, and 12 of them, remain: rates are over the rest of the window, and a request counts only if it was sent after each
  stretch, or before the oldest request that a stretch touched;
- a point in slices (`slices`) has its load in turns with other engines: the time between its slices and the lead of each is
  left out, and does not count for rates of the client and the whole run; a request counts only if it was sent in the rest, a
  mean answer before the end of its slice or sooner; what requests streamed that were given up after it counts in throughput;
- cost: the GPUs' price for the window's time, over a million output tokens, or over a million requests that met the SLO;
  `output_tok_s_per_w` is the output throughput over the power drawn, so tokens a joule;
- lateness: every request sent inside the window, failed ones too;
- `slo_good` of `slo_requests`: every request sent inside the window, a failed one never good; in an open loop TTFT and
  E2E are tested from the schedule, when a user starts to wait;
- `client_error_ms_ttft` and `client_error_ms_itl`: the client's error in TTFT and ITL (p99), as measured by the self-check at as
  many events a second. Where the client stamped instead of the kernel, the loop's lag (p99) is added. ITL adds, for the
  share of events that shared a read and so lost their stamps, how long the client may have left them unread (nap and lag);
- `kept_up` (open loop only): 1 less the growth of the requests in flight (from their schedule on) over the rate of
  arrivals, as far as the growth is certain (`in_flight.in_flight_growth`), times the share of requests that are ok or were
  abandoned as planned: 1 while the engine keeps up, smaller as its queue grows.

Percentiles interpolate linearly between order statistics (Hyndman and Fan 1996, type 7). What is unknown is None.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.contracts.exchange import ClientFloor, PhaseReport
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.point_row import POINT_COLUMNS, PointRow
from servebench.contracts.results import OURS, Record, refused
from servebench.contracts.settings import RunSettings, SloSettings
from servebench.measure import derive
from servebench.measure.columns import EventColumns, events_of
from servebench.measure.cost import usd_per_million
from servebench.measure.in_flight import in_flight_at, in_flight_growth, lock_step, mean_in_flight, sent_and_ended
from servebench.measure.jobs import job_columns, job_shares
from servebench.measure.window import Window, find_window, given_up, leave_out, pauses_of, slice_values, steady_slices
from servebench.util.arrays import Floats, Ints, percentile
from servebench.util.stretches import Spans, compressed, covered, outside
from servebench.util.units import NS_PER_MS, NS_PER_S

LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
ALL_LATENCIES = ("ttft_ms", "e2e_ms")
"""Latencies that also have `_all` columns, with failed requests counted as infinitely slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The requests of an open loop that count and have a TTFT, in the order sent, on a clock that stands still in what is left
    out; `rate_req_s` is the rate at which they were planned.

    `in_flight` is how many others were in flight when each was sent, `waiting` how many of them had no first content yet, and
    `in_flight_mean` how many were in flight over its life, itself included. `tpot_ms` is NaN where it is not known.
    """

    rate_req_s: float
    sent_s: Floats
    in_flight: Ints
    waiting: Ints
    in_flight_mean: Floats
    ttft_ms: Floats
    tpot_ms: Floats
    e2e_ms: Floats
    prompt_tokens: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLengths:
    """The `tokens` of the answers of a closed loop, as many as were asked for: one for each of `e2e_ms` of the sample. `mean` is
    that of the distribution from which they were drawn."""

    tokens: Floats
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSample:
    """The data for the intervals of a point's headline numbers.

    All are in the order sent. One entry a request in `ttft_ms`, `ttfo_ms`, `tpot_ms` and `e2e_ms`, requests without the
    metric are left out. `itl_ms` are all gaps, request after request, `itl_counts` how many each request has. `arrival_s`
    and `arrival_tokens` are the events of ok requests inside the window, in seconds from its start without what is left out,
    and the tokens of each; None when a count is unknown.
    """

    ttft_ms: Floats
    ttfo_ms: Floats
    tpot_ms: Floats
    e2e_ms: Floats
    itl_ms: Floats
    itl_counts: Ints
    arrival_s: Floats
    arrival_tokens: Floats | None
    window_s: float
    arrivals: Arrivals | None = None
    """None in a closed loop, and where the rate is not the same at all times."""
    lengths: AnswerLengths | None = None
    """None where their mean in the long run is unknown, and where something is left out of the window."""


def summarize(
    records: Sequence[Record],
    facts: PhaseFacts,
    report: PhaseReport,
    settings: RunSettings,
    *,
    offered_req_s: float | None = None,
    floor: ClientFloor | None = None,
    disturbed: Spans = (),
    crowded: Spans = (),
    cut_s: float = 0.0,
) -> tuple[PointRow, PointSample]:
    """Return the row of a point without intervals (`_low` and `_high` are None), and the sample to compute them from.

    `records` are all of the point; those of the warm-up and fillers are ignored. There may be none. `offered_req_s` is the rate
    if requests are sent at it on average at all times, which those of a trace, and of a limited number in flight, are not.
    `floor` is the client's error by its self-check; without it those columns are null. In the stretches `disturbed` others took
    the machine; the slices `crowded`, of which they took a little, are not compared. `cut_s` is cut from the window's front,
    beside what the settings cut.
    """
    load, slo, open_loop = settings.load, settings.slo, facts.concurrency is None
    measured = [r for r in records if r.measured]
    if facts.slices:
        sent, ended = sent_and_ended(measured)
        report = replace(report, elapsed_s=covered(zip(sent.tolist(), ended.tolist(), strict=True)) / NS_PER_S)
    ok = [r for r in measured if r.outcome == "ok" and r.sent_ns is not None]
    streamed = [*ok, *given_up(pauses_of(facts, report), measured)]
    # the window of a closed loop begins when its level is reached; that of a rising rate must be cut
    ramp_s = load.ramp.over_s if load.ramp is not None and open_loop else 0.0
    window = find_window(
        measured,
        facts.concurrency,
        load.warmup_s + ramp_s + cut_s,
        cooldown_s=load.cooldown_s,
        cooldown_requests=load.cooldown_requests,
        pauses=pauses_of(facts, report),
    )
    window, inside, sample = _sampled(
        *(measured, streamed, window, disturbed, offered_req_s),
        open_loop=open_loop,
        mean_tokens=facts.mean_tokens,
        limited=slo.limited,
    )
    found: dict[str, Any] = {
        **_identity(facts, report, settings),
        "requests_planned": report.planned,
        "requests_ok": len(ok),
        "requests_refused": sum(map(refused, measured)),
        "requests_failed": len(measured) - len(ok) - sum(r.outcome == "abandoned" for r in measured),
        **_latencies(sample),
        **_means(inside),
        "ended_by": report.ended_by,
        **_client(report),
        "events": sum(len(r.event_ns) for r in ok),
        "events_merged": sum(r.reads_merged for r in ok),
    }
    found |= _client_error(found, report, floor)
    if facts.jobs:
        seconds = window.seconds if window is not None else 0.0
        answered = _answered(ok, window, job_shares(measured, facts)) if window is not None else 0.0
        found |= job_columns(measured, facts, answered, seconds, settings.gpu.count)
    if facts.slices:
        found |= {"slices": len(facts.slices), "slice_group": facts.slice_group}
    if window is not None:
        found |= _window_columns(window) | _throughput(measured, streamed, window, sample) | _lateness(measured, window)
        found |= _with_failed(measured, inside, window)
        if window.left_out:
            found["output_throughput_n"] = sum(
                bool(_inside(np.array(r.event_ns, dtype=np.int64), window).any()) for r in ok
            )
        if slo.limited:
            found["goodput_req_s"] = _goodput(measured, inside, window, slo, offered_req_s, open_loop=open_loop)
            found |= _attained(measured, window, slo, from_schedule=open_loop)
        if facts.concurrency is None:
            found["kept_up"] = _kept_up(measured, window)
        elif inside:
            sent, ended = sent_and_ended(inside)
            answer_ns = float((ended - sent).mean())
            found["lock_step"] = lock_step(compressed(sent, window.not_counted), answer_ns, facts.concurrency)
        if facts.slices:
            arrived = sample.arrival_s, sample.arrival_tokens
            found["slice_values"] = slice_values(steady_slices(facts, report), inside, window, arrived, crowded)
            found |= _without_pauses(found, inside, window, report.elapsed_s)
    price = settings.gpu.price_usd_per_hour, settings.gpu.count
    found["cost_usd_per_mtok"] = usd_per_million(found.get("output_throughput_tok_s"), *price)
    found["cost_usd_per_mgood"] = usd_per_million(found.get("goodput_req_s"), *price)
    return PointRow(**found), sample


def point_sample(
    records: Sequence[Record],
    concurrency: int | None,
    *,
    warmup_s: float = 0.0,
    disturbed: Spans = (),
    offered_req_s: float | None = None,
    mean_tokens: float | None = None,
) -> PointSample:
    """Return the sample of a point from its measured records, as `summarize` does; the window is empty without any."""
    ok = [r for r in records if r.outcome == "ok" and r.sent_ns is not None]
    window = find_window(records, concurrency, warmup_s)
    open_loop = concurrency is None
    return _sampled(records, ok, window, disturbed, offered_req_s, open_loop=open_loop, mean_tokens=mean_tokens)[2]


def _sampled(
    measured: Sequence[Record],
    streamed: Sequence[Record],
    window: Window | None,
    disturbed: Spans,
    offered_req_s: float | None,
    *,
    open_loop: bool,
    mean_tokens: float | None,
    limited: bool = False,
) -> tuple[Window | None, list[Record], PointSample]:
    """Return the window without what is left out, the ok requests sent inside it, and their sample. The tokens of those
    `streamed` count."""
    if window is not None and disturbed:
        window = leave_out(window, disturbed, measured, open_loop=open_loop, limited=limited)
    # several workers' records lie one after another
    counted = (r for r in streamed if r.outcome == "ok" and window is not None and window.counts(r.sent_ns))
    inside = sorted(counted, key=lambda r: r.sent_ns or 0)
    sample = _sample(streamed, inside, window)
    if offered_req_s is not None and window is not None:
        sample = replace(sample, arrivals=_arrivals(measured, inside, window, offered_req_s))
    if mean_tokens is not None and not open_loop and window is not None and not window.left_out:
        sample = replace(sample, lengths=_lengths(inside, mean_tokens))
    return window, inside, sample


def with_intervals(row: PointRow, intervals: Mapping[str, tuple[float, float] | None]) -> PointRow:
    """Return the row with `_low` and `_high` of each named headline number."""
    ends: dict[str, Any] = {}
    for name, interval in intervals.items():
        ends[f"{name}_low"], ends[f"{name}_high"] = interval if interval is not None else (None, None)
    return replace(row, **ends)


def _counts(record: Record, window: Window) -> bool:
    """Whether a request was sent inside the window, or nothing of it at a time that counts: the user got nothing all the same."""
    refused_now = record.sent_ns is None and bool(outside(np.array([record.scheduled_ns]), window.not_counted)[0])
    return refused_now or window.counts(record.sent_ns)


_OF_FACTS = (
    *("run_id", "engine_version", "concurrency", "rate", "repeat", "point", "cache_state", "start_id"),
    "server_requests_before",
)


def _identity(facts: PhaseFacts, report: PhaseReport, settings: RunSettings) -> dict[str, object]:
    return {
        **{name: getattr(facts, name) for name in _OF_FACTS},
        "engine": settings.engine.name,
        "launch": settings.launch.name,
        "server_age_s": None
        if facts.server_started_ns is None
        else (report.started_ns - facts.server_started_ns) / NS_PER_S,
        "model": settings.model.name,
        "gpu": settings.gpu.name,
        "gpu_count": settings.gpu.count,
        "workload": settings.workload.name,
        "prefix_cache_hit_rate_asked": getattr(settings.workload, "hit_rate", None),
    }


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([value for value in values if value is not None], dtype=np.float64)


def _events(records: Sequence[Record]) -> EventColumns:
    output = [math.nan if r.output_tokens is None else r.output_tokens for r in records]
    return events_of(
        [r.event_ns for r in records], [r.event_tokens for r in records], np.array(output, dtype=np.float64)
    )


def _sample(streamed: Sequence[Record], inside: Sequence[Record], window: Window | None) -> PointSample:
    own, arrival_s = _events(inside), np.empty(0)
    tokens: Floats | None = np.empty(0)
    if window is not None:
        every = _events(streamed)
        within = _inside(every.stamp_ns, window)
        arrival_s = (compressed(every.stamp_ns[within], window.left_out) - window.start_ns) / NS_PER_S
        tokens = None if every.tokens is None else every.tokens[within]
    return PointSample(
        ttft_ms=_floats([derive.ttft_ms(r) for r in inside]),
        ttfo_ms=_floats([derive.ttfo_ms(r) for r in inside]),
        tpot_ms=_floats([derive.tpot_ms(r) for r in inside]),
        e2e_ms=_floats([derive.e2e_ms(r) for r in inside]),
        itl_ms=own.gaps_ms,
        itl_counts=np.maximum(own.counts - 1, 0),
        arrival_s=arrival_s,
        arrival_tokens=tokens,
        window_s=window.seconds if window is not None else 0.0,
    )


def _arrivals(records: Sequence[Record], inside: Sequence[Record], window: Window, rate_req_s: float) -> Arrivals:
    """Return the arrivals of an open loop: those `inside` among all `records` that were in flight."""
    stamps = [(r.sent_ns, r.first_event_ns or r.ended_ns, r.ended_ns) for r in records if r.sent_ns is not None]
    begun, first, over = np.array(stamps, dtype=np.int64).reshape(-1, 3).T
    known = [r for r in inside if derive.ttft_ms(r) is not None and derive.e2e_ms(r) is not None]
    sent = np.array([r.sent_ns for r in known], dtype=np.int64)
    ended = np.array([r.ended_ns for r in known], dtype=np.int64)
    return Arrivals(
        rate_req_s=rate_req_s,
        sent_s=(compressed(sent, window.not_counted) - window.start_ns) / NS_PER_S,
        in_flight=np.maximum(in_flight_at(sent, begun, over) - 1, 0),
        waiting=np.maximum(in_flight_at(sent, begun, first) - 1, 0),
        in_flight_mean=mean_in_flight(sent, ended, begun, over),
        ttft_ms=_floats([derive.ttft_ms(r) for r in known]),
        tpot_ms=np.array([math.nan if (tpot := derive.tpot_ms(r)) is None else tpot for r in known]),
        e2e_ms=_floats([derive.e2e_ms(r) for r in known]),
        prompt_tokens=np.array([r.planned_prompt_tokens or r.prompt_tokens or 0 for r in known], dtype=np.float64),
    )


def _lengths(inside: Sequence[Record], mean: float) -> AnswerLengths | None:
    """Return the lengths of the answers; None where one is not as long as it was asked to be, or has no E2E."""
    if any(not r.output_tokens or r.output_tokens != r.asked_output_tokens or derive.e2e_ms(r) is None for r in inside):
        return None
    return AnswerLengths(tokens=_floats([r.output_tokens for r in inside]), mean=mean)


def _inside(stamps: Ints, window: Window) -> NDArray[np.bool_]:
    return (stamps > window.start_ns) & (stamps <= window.end_ns) & outside(stamps, window.left_out)


def _percentiles(name: str, values: Floats) -> dict[str, float]:
    if not values.size:
        return {}
    known = [found for found in map(re.compile(rf"{name}_p(\d+)").fullmatch, POINT_COLUMNS) if found]
    shares = np.percentile(values, [int(found[1]) for found in known]).tolist()
    return dict(zip((found[0] for found in known), shares, strict=True))


def _latencies(sample: PointSample) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in LATENCIES:
        values: Floats = getattr(sample, name)
        found[f"{name}_n"] = int(values.size)
        if values.size:
            found |= _percentiles(name, values)
            found |= {f"{name}_{what}": float(getattr(values, what)()) for what in ("mean", "min", "max")}
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = _floats(values)
    return float(known.mean()) if known.size else None


def _means(inside: Sequence[Record]) -> dict[str, float | None]:
    hits = [
        (r.cached_tokens, r.prompt_tokens)
        for r in inside
        if r.cached_tokens is not None and r.prompt_tokens is not None
    ]
    prompt = sum(tokens for _, tokens in hits)
    return {
        **_percentiles("ttft_from_schedule_ms", _floats([derive.ttft_from_schedule_ms(r) for r in inside])),
        "ttfo_ms_mean": _mean([derive.ttfo_ms(r) for r in inside]),
        "connect_ms_mean": _mean([derive.connect_ms(r) for r in inside]),
        "input_tokens_mean": _mean([r.prompt_tokens for r in inside]),
        "output_tokens_mean": _mean([r.output_tokens for r in inside]),
        "input_tokens_planned_mean": _mean_of_all([r.planned_prompt_tokens for r in inside]),
        "output_tokens_asked_mean": _mean_of_all([r.asked_output_tokens for r in inside]),
        "hidden_tokens_mean": _mean([r.hidden_tokens for r in inside]),
        "prefix_cache_hit_rate": sum(cached for cached, _ in hits) / prompt if prompt else None,
    }


def _mean_of_all(values: Sequence[int | None]) -> float | None:
    return None if None in values else _mean(values)


def _window_columns(window: Window) -> dict[str, object]:
    return {
        "window_s": window.seconds,
        "window_start_ns": window.start_ns,
        "window_end_ns": window.end_ns,
        "left_out_ns": tuple(chain.from_iterable(window.left_out)),
        "not_counted_ns": tuple(chain.from_iterable(window.not_counted)),
        "average_in_flight": window.average_in_flight,
        "level_reached": window.reached,
    }


def _throughput(
    measured: Sequence[Record], streamed: Sequence[Record], window: Window, sample: PointSample
) -> dict[str, object]:
    ok = [r for r in streamed if r.outcome == "ok"]
    counts = [r.output_tokens for r in ok]
    total = None if None in counts else sum(count for count in counts if count is not None)
    first_ns = min(r.sent_ns for r in measured if r.sent_ns is not None)
    whole_s = (max(r.ended_ns for r in measured) - first_ns) / NS_PER_S
    arrived = None if sample.arrival_tokens is None else float(sample.arrival_tokens.sum())
    return {
        "output_tokens_total": total,
        "output_throughput_tok_s": _rate(arrived, window.seconds),
        "output_throughput_whole_run_tok_s": _rate(total, whole_s),
        "request_throughput_req_s": _rate(_answered(streamed, window, _worth(streamed, ok)), window.seconds),
    }


def _worth(streamed: Sequence[Record], ok: Sequence[Record]) -> dict[str, float] | None:
    """Return which part of a request each is, by its id: less than one if it was given up before it had as many tokens as were
    asked for, or as others have. None where all are whole."""
    if len(streamed) == len(ok):
        return None
    usual = _mean([r.output_tokens for r in ok]) or 1.0
    parts = {r.request_id: (r.output_tokens or 0) / (r.asked_output_tokens or usual) for r in streamed}
    return {r.request_id: 1.0 if r.outcome == "ok" else min(1.0, parts[r.request_id]) for r in streamed}


def _without_pauses(
    found: Mapping[str, Any], inside: Sequence[Record], window: Window, busy_s: float
) -> dict[str, Any]:
    """Return the rates of a point in slices that would be wrong with its pauses."""
    columns = {"output_throughput_whole_run_tok_s": _rate(found.get("output_tokens_total"), busy_s)}
    if (good := found.get("goodput_req_s")) is not None and inside:
        # fewer count than are sent while the load is steady: their share of good ones, at the rate of answers
        good *= window.sending_seconds / len(inside)
        columns["goodput_req_s"] = good * (found["request_throughput_req_s"] or 0.0)
    return columns


def _answered(ok: Sequence[Record], window: Window, worth: Mapping[str, float] | None = None) -> float:
    """Return how many requests were answered inside the window, by the share of each one's content events inside it; one
    without events counts where it ended. With `worth` each counts as much as that says of its id, or nothing."""
    every = _events(ok)
    each = np.array([1.0 if worth is None else worth.get(r.request_id, 0.0) for r in ok])
    shares = np.repeat(each / np.maximum(every.counts, 1), every.counts)[_inside(every.stamp_ns, window)]
    ended = _inside(np.array([r.ended_ns for r in ok], dtype=np.int64), window)
    return float(shares.sum() + (each * (every.counts == 0) * ended).sum())


def _goodput(
    measured: Sequence[Record],
    inside: Sequence[Record],
    window: Window,
    slo: SloSettings,
    offered: float | None,
    *,
    open_loop: bool,
) -> float | None:
    good = sum(_is_good(r, slo, from_schedule=open_loop) for r in inside)
    if offered is None:
        return _rate(good, window.sending_seconds)
    sent = sum(_counts(r, window) for r in measured)
    return offered * good / sent if sent else None


def _rate(amount: float | None, seconds: float) -> float | None:
    return amount / seconds if amount is not None and seconds > 0 else None


def _attained(
    measured: Sequence[Record], window: Window, slo: SloSettings, *, from_schedule: bool
) -> dict[str, float | None]:
    """Return how many requests were tested against the SLO and how many met it, without those that the client ended."""
    tested = [r for r in measured if r.outcome not in OURS and _counts(r, window)]
    tested.sort(key=lambda r: r.scheduled_ns)
    flags = [r.outcome == "ok" and _is_good(r, slo, from_schedule=from_schedule) for r in tested]
    good, effect = sum(flags), design_effect(flags)
    return {"slo_requests": len(tested), "slo_good": good, "slo_design_effect": effect}


BURST_GAP, BURST_GAP_MAX, BURST_JOINED = 2, 30, 0.1
"""Bad requests with few good ones between them belong to one burst. How many good ones: chance puts a tenth of the bad ones as
near; at least BURST_GAP and at most BURST_GAP_MAX."""


def design_effect(good: Sequence[bool]) -> float | None:
    """Return the mean size of the burst that a bad request belongs to, for requests in the order sent; None without bad ones.

    The variance of a share of requests that fail in bursts is larger by this factor than that of independent ones (the design
    effect of unequal clusters: Rao and Scott 1992, Biometrics 48).
    """
    bad = [index for index, is_good in enumerate(good) if not is_good]
    if not bad:
        return None
    gap = min(BURST_GAP_MAX, max(BURST_GAP, BURST_JOINED * len(good) / len(bad)))
    cuts = np.flatnonzero(np.diff(bad) > gap + 1)
    sizes = np.diff(np.concatenate([[0], cuts + 1, [len(bad)]]))
    return float((sizes**2).sum() / sizes.sum())


def _kept_up(measured: Sequence[Record], window: Window) -> float:
    """Return the share of the arrivals that the engine kept up with: 1 less what of them certainly stayed in flight."""
    ended = sum(r.outcome in ("ok", "abandoned") for r in measured)
    wanted = np.array([r.scheduled_ns for r in measured], dtype=np.int64)
    ends = np.array([r.ended_ns for r in measured], dtype=np.int64)
    growth = in_flight_growth(compressed(wanted, window.left_out), compressed(ends, window.left_out), *window.ends())
    seconds = (int(wanted.max()) - int(wanted.min())) / NS_PER_S
    staying = max(0.0, growth) * seconds / max(len(measured) - 1, 1)
    # what was dropped was not kept up with
    return ended / len(measured) * (1 - min(staying, 1.0))


def _is_good(record: Record, slo: SloSettings, *, from_schedule: bool = False) -> bool:
    """Return whether an ok request meets every limit; `from_schedule` includes its wait in the client."""
    waited = (derive.lateness_ms(record) or 0.0) if from_schedule else 0.0
    for limit, value in ((slo.ttft_ms, derive.ttft_ms(record)), (slo.e2e_ms, derive.e2e_ms(record))):
        if limit is not None and (value is None or value + waited > limit):
            return False
    tpot = derive.tpot_ms(record)
    return slo.tpot_ms is None or tpot is None or tpot <= slo.tpot_ms


def _lateness(measured: Sequence[Record], window: Window) -> dict[str, float | None]:
    late = [derive.lateness_ms(r) for r in measured if window.counts(r.sent_ns)]
    return {**_percentiles("lateness_ms", _floats(late)), "lateness_ms_mean": _mean(late)}


def _client(report: PhaseReport) -> dict[str, object]:
    return {
        "client_cpu_share": _rate(report.cpu_s / report.workers, report.elapsed_s),
        "connections_failed": report.connections_failed,
        "receive_queue_bytes_max": report.receive_queue_bytes_max,
        "loop_lag_ms_p99": report.loop_lag_ms_p99,
        "clock_step_ms": report.clock_step_ns / NS_PER_MS,
        "stamp_source": report.stamp_source,
    }


def _client_error(found: Mapping[str, Any], report: PhaseReport, floor: ClientFloor | None) -> dict[str, float]:
    stage = floor.at(_rate(found["events"], report.elapsed_s)) if floor is not None else None
    if stage is None:
        return {}
    lag_ms = report.loop_lag_ms_p99 or 0.0
    late_ms = lag_ms if report.stamp_source == "user" else 0.0
    merged_share = found["events_merged"] / found["events"] if found["events"] else 0.0
    return {
        "client_error_ms_ttft": stage.ttft_error_ms + late_ms,
        "client_error_ms_itl": stage.itl_error_ms + late_ms + merged_share * (report.nap_ms + lag_ms),
    }


def _with_failed(measured: Sequence[Record], inside: Sequence[Record], window: Window) -> dict[str, float | None]:
    """Return percentiles over all requests sent inside the window, failed ones being infinitely slow."""
    failed = sum(r.outcome not in ("ok", *OURS) and _counts(r, window) for r in measured)
    found: dict[str, float | None] = {}
    for name, derived in zip(ALL_LATENCIES, (derive.ttft_ms, derive.e2e_ms), strict=True):
        values = np.concatenate([_floats([derived(r) for r in inside]), np.full(failed, np.inf)])
        for percent in (50, 99):
            found[f"{name}_p{percent}_all"] = float(percentile(values, percent)) if values.size else None
    return found
