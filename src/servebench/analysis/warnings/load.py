"""Checks of the load: whether it was reached, long enough and precise, and whether the client was the limit."""

from collections.abc import Sequence
from statistics import fmean

from servebench.analysis.evidence import PointEvidence
from servebench.analysis.statistics import missing_interval
from servebench.analysis.warnings import catalog
from servebench.analysis.warnings.bounds import CPU_SHARE_MAX, QUEUE_BYTES_MAX, rate_requests
from servebench.analysis.within_run import VALUES_MIN
from servebench.contracts.point_row import PointRow
from servebench.contracts.precision import WHOLE_ANSWERS, WINDOW_S_MIN, half_width, precision_targets
from servebench.contracts.results import Doubt, Record
from servebench.protocol.kinds.table import kind_named
from servebench.util.figures import number, rough, seconds, short_number, short_percent
from servebench.util.units import NS_PER_MS, NS_PER_S

WINDOW_S_SHORT = 0.9 * WINDOW_S_MIN
"""A window is the point without its ramp: that of load.duration_s=5 is a little shorter than 5 s."""
LEVEL_SHARE_MIN = 0.95
"""The average in flight must be at least this share of the requested level."""
SENDING_STRETCH_MAX = 1.05
"""How much longer than planned the sending of an open loop may take: what the 95% of a level are, for a rate."""
LOCK_STEP_MAX = 0.75
"""From here on the streams send within 40% of an answer's time: sin(pi w) / (pi w) of moments spread evenly over a share w of it.
Real engines that read prompts together bring streams nearer than chance (0.55 seen), without TTFT being that of a burst."""
LOCK_STEP_STREAMS_MIN = 4
"""Two or three streams are often in step by chance."""
REQUESTS_MIN = 30
"""Below this many ok requests in the window a mean or median without an interval is weak: the usual rule for a mean to be near
normal."""
HALF_WIDTH_SHARE_MAX = 0.25
"""Half of the throughput's interval as a share of it: two such points differ by half before they differ at all."""
FORECAST_S_MAX = 600.0
"""Nobody waits longer than this for one point, and a forecast of so much is a guess."""
LATENESS_SHARE_MAX = 0.1
"""In an open loop: the p99 of lateness as a share of the TTFT p50, of which it is a part for a user."""
LATENESS_SHARE_CLOSED_MAX = 0.01
"""In a closed loop: the mean of lateness as a share of the mean E2E. Latencies begin when a request is sent, so all that a late
request changes there is how many are in flight, and by this share the throughput."""
LATENESS_FLOOR_MS = 1.0
"""Less lateness than this comes from the operating system."""
LATENESS_ALONE_MS_MAX = 5.0
"""The limit where no TTFT is known."""
CLIENT_ERROR_SHARE_MAX = 0.1
"""The client's own error as a share of the median of what it measures."""
LOOP_LAG_MS_MAX = 5.0


def level_not_reached(point: PointEvidence) -> Doubt | None:
    """Warn when the requested concurrency or rate was not reached."""
    row = point.row
    level = row.concurrency
    if level is None:
        return _rate_not_reached(point)
    if not point.measured or row.average_in_flight is None:
        return catalog.LEVEL_NOT_REACHED.issue(
            f"no request was in flight at any time; concurrency {level} was requested",
            remedy="check the errors and engine.log: the engine accepted no request",
        )
    average, planned = row.average_in_flight, row.requests_planned
    if planned is not None and planned < level:
        return catalog.LEVEL_NOT_REACHED.issue(
            f"only {planned} requests were planned for concurrency {level}, so the level was never reached "
            f"({short_number(average)} in flight on average)",
            remedy=f"plan at least ten requests per stream: load.requests={10 * level}, or load.requests=auto",
        )
    share = average / level
    if row.level_reached and share >= LEVEL_SHARE_MIN:
        return None
    never = "" if row.level_reached else ", and the level was never reached"
    text = f"{short_number(average)} requests were in flight on average, {short_percent(share)} of concurrency {level}{never}"
    pauses = _pauses_s(point.ok)
    if not pauses or sum(pauses) <= sum(one.ended_ns - (one.sent_ns or 0) for one in point.ok) / NS_PER_S:
        return catalog.LEVEL_NOT_REACHED.issue(text)
    return catalog.LEVEL_NOT_REACHED.issue(
        f"{text}; sessions pause {short_number(fmean(pauses))} s between requests, and too few others were there meanwhile",
        remedy="raise load.requests, so that there are more sessions, or shorten pauses (workload.think_s, tool_s, idle_cap_s)",
    )


def _pauses_s(requests: Sequence[Record]) -> list[float]:
    ended: dict[str, int] = {}
    pauses = []
    for one in sorted(requests, key=lambda one: one.sent_ns or 0):
        if one.session_id is not None and one.sent_ns is not None:
            if one.session_id in ended:
                pauses.append((one.sent_ns - ended[one.session_id]) / NS_PER_S)
            ended[one.session_id] = one.ended_ns
    return pauses


def _rate_not_reached(point: PointEvidence) -> Doubt | None:
    sent = [(r.scheduled_ns, r.sent_ns) for r in point.measured if r.sent_ns is not None]
    if len(sent) < 2 or point.row.rate is None:
        return None
    planned_ns = max(scheduled for scheduled, _ in sent) - min(scheduled for scheduled, _ in sent)
    taken_ns = max(stamp for _, stamp in sent) - min(stamp for _, stamp in sent)
    if taken_ns <= SENDING_STRETCH_MAX * planned_ns:
        return None
    return catalog.LEVEL_NOT_REACHED.issue(
        f"sending {len(sent)} requests at {point.row.rate:g}/s took {short_number(taken_ns / NS_PER_S)} s instead of the planned "
        f"{short_number(planned_ns / NS_PER_S)} s",
        remedy="raise load.max_concurrency or set it to null, and leave a core free for the client",
    )


def lock_step(point: PointEvidence) -> Doubt | None:
    """Warn when the streams ran in step."""
    share, streams, ttft_ms = point.row.lock_step, point.row.concurrency, point.row.ttft_ms_p50 or 0.0
    if share is None or streams is None or streams < LOCK_STEP_STREAMS_MIN or share < LOCK_STEP_MAX:
        return None
    return catalog.LOCK_STEP.issue(
        f"the {streams} streams sent their requests in step ({short_percent(share)}, where 0 is at random and 100% all at once "
        f"in each round): prompts waited for one another, and the TTFT p50 of {short_number(ttft_ms)} ms is that of a burst"
    )


def too_few_requests(point: PointEvidence) -> Doubt | None:
    """Warn when too few requests lie in the window for its numbers or intervals; without any the point is void."""
    row, whole = point.row, not kind_named(point.settings.workload.api).answers_text
    count = (row.e2e_ms_n if whole else row.ttft_ms_n) or 0
    known = (
        row.get(f"{name}_low") for name in ((WHOLE_ANSWERS,) if whole else ("output_throughput_tok_s", "ttft_ms_p50"))
    )
    if count >= REQUESTS_MIN or (count >= VALUES_MIN and all(low is not None for low in known)):
        return None
    in_rate = rate_requests(row, count)
    if not count and not row.e2e_ms_n and not in_rate:
        text = (
            "no request was answered that was sent inside the window, so there is nothing that a number could rest on"
        )
        return catalog.TOO_FEW_REQUESTS.issue(text, void=True)
    what = "every latency" if in_rate > count else "every number"
    return catalog.TOO_FEW_REQUESTS.issue(
        f"{what} rests on {count} request{'s' * (count != 1)} (ok and sent inside the window), means and medians too"
    )


def too_short(point: PointEvidence) -> Doubt | None:
    """Warn when the window is short; slices are as long as answers ask for, and several starts make up for what each lacks."""
    window_s = point.row.window_s
    if point.row.slice_group or (window_s is not None and window_s >= WINDOW_S_SHORT):
        return None
    return catalog.TOO_SHORT.issue(
        f"the window is {short_number(window_s or 0.0)} s long, less than {WINDOW_S_SHORT:g} s"
    )


def imprecise(point: PointEvidence) -> Doubt | None:
    """Warn when the throughput's interval is wide."""
    rate, low, high = (point.row.get(f"output_throughput_tok_s{end}") for end in ("", "_low", "_high"))
    if not rate or low is None or high is None or _targets(point):
        return None
    width = half_width(low, high)
    if width <= HALF_WIDTH_SHARE_MAX:
        return None
    return catalog.IMPRECISE.issue(
        f"throughput is only known to ±{short_percent(width)} ({number(low)} to {number(high)} tok/s): it varied slowly, "
        "as on a busy machine, or rests on few answers"
    )


def not_precise(point: PointEvidence) -> Doubt | None:
    """Warn when a metric is less precise than `load.until` asks, or requests are fewer: say how precise
    each is, and what the rest would take."""
    row = point.row
    usable, missed = [], []
    targets, least = _targets(point), point.settings.load.min_requests
    if targets and (row.requests_ok or 0) < least:
        missed.append(f"it has {row.requests_ok or 0} of load.min_requests={least}, which would have taken too long")
    for name, target in targets.items():
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        title = _title(name)
        if low is None or high is None:
            missed.append(f"{title} has no interval: {missing_interval(row, name) or 'it was not measured'}")
            continue
        width = half_width(low, high)
        if width <= target:
            usable.append(f"{title} is good to ±{short_percent(width, 2)}")
            continue
        longer = (width / target) ** 2
        takes_s = longer * (row.window_s or 0.0)
        # 10.04% is not "±10%; ±10% takes ..."
        digits = next((n for n in range(2, 7) if short_percent(width, n) != short_percent(target)), 7)
        takes = f"about {rough(longer * (row.ttft_ms_n or 0))} requests ({seconds(takes_s)})"
        missed.append(
            f"{title} is good to ±{short_percent(width, digits)}; ±{short_percent(target)} "
            + (f"takes {takes}" if takes_s <= FORECAST_S_MAX else "would take too long on this machine as it is")
        )
    return catalog.NOT_PRECISE.issue("; ".join([*missed, *usable])) if missed else None


def _title(column: str) -> str:
    """Return what people call a column: `TTFT p50`, `throughput`."""
    name, _, statistic = column.partition("_ms_")
    return f"{name.upper()} {statistic}" if statistic else "throughput"


def _targets(point: PointEvidence) -> dict[str, float]:
    """Return how precise the point has to be: then `not_precise` says what `imprecise` would. Points in slices are as long as the
    difference of the engines takes, whatever their own precision."""
    if point.row.slices:
        return {}
    return precision_targets(point.settings.load.until, open_loop=point.row.rate is not None)


def client_bound(point: PointEvidence) -> Doubt | None:
    """Warn when the client was late, busy or inexact compared with what it measured."""
    row = point.row
    causes = []
    if (late := _sent_late(row)) is not None:
        causes.append(late)
    cpu = row.client_cpu_share
    if cpu is not None and cpu > CPU_SHARE_MAX:
        causes.append(f"the client used {short_percent(cpu)} of a core per worker")
    queued = row.receive_queue_bytes_max
    if queued is not None and queued >= QUEUE_BYTES_MAX:
        causes.append(f"up to {queued} bytes of one stream were still in the kernel after a read")
    lag = row.loop_lag_ms_p99
    # kernel timestamps stay right while the loop sleeps, and late sending shows in the lateness
    if row.stamp_source == "user" and lag is not None and lag > LOOP_LAG_MS_MAX:
        causes.append(f"the client's loop woke up {short_number(lag)} ms late (p99)")
    for name, title in (("ttft", "TTFT"), ("itl", "ITL")):
        error, value = row.get(f"client_error_ms_{name}"), row.get(f"{name}_ms_p50")
        # a median gap of 0 means that the server sends several events at once, which has a warning of its own
        if error is not None and value and error > CLIENT_ERROR_SHARE_MAX * value:
            causes.append(f"{title} is only exact to {short_number(error)} ms and its p50 is {short_number(value)} ms")
    if not causes:
        return None
    return catalog.CLIENT_BOUND.issue(f"the client may have limited the results: {'; '.join(causes)}")


def _sent_late(row: PointRow) -> str | None:
    if row.rate is None:
        late, e2e = row.lateness_ms_mean, row.e2e_ms_mean
        if late is None or not e2e or late <= LATENESS_SHARE_CLOSED_MAX * e2e:
            return None
        return f"requests were sent {short_number(late)} ms late on average, compared with a mean E2E of {short_number(e2e)} ms"
    late, ttft = row.lateness_ms_p99, row.ttft_ms_p50
    limit = LATENESS_ALONE_MS_MAX if ttft is None else max(LATENESS_FLOOR_MS, LATENESS_SHARE_MAX * ttft)
    if late is None or late <= limit:
        return None
    against = "" if ttft is None else f", compared with a TTFT p50 of {short_number(ttft)} ms"
    return f"1% of the requests were sent at least {short_number(late)} ms late{against}"


def clock_stepped(point: PointEvidence) -> Doubt | None:
    """Warn when the wall clock was set during the point."""
    step_ns = point.report.clock_step_ns
    if not step_ns:
        return None
    return catalog.CLOCK_STEPPED.issue(
        f"the wall clock was set by {'+' if step_ns > 0 else ''}{short_number(step_ns / NS_PER_MS)} ms during the point, "
        "which shifts all later timestamps"
    )
