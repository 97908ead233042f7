"""How wrong a part of a metric may be by a warning: at most a share of the measured value, by the columns of the point.

A bound is a field of its warning in the catalog. It is None where the columns do not bound the error.
"""

from collections.abc import Callable

from servebench.analysis.within_run import VALUES_MIN
from servebench.contracts.point_row import PointRow
from servebench.util.stretches import length
from servebench.util.units import NS_PER_S

Bound = Callable[[PointRow, str], float | None]
"""Takes a point and the part of a metric, in the words of `WarningType.affects`."""
PROMPT_TOKENS_APART = 0.02
"""Runs whose prompts differ by more, by the servers' counts, are not compared at all (`fairness.WORK`)."""
DISTURBED_SHARE_MAX = 0.1
"""If others took the machine for more of a window, and that is not left out, the point is void."""
CPU_SHARE_MAX = 0.9
"""A load worker with more of a core may have limited the engine."""
QUEUE_BYTES_MAX = 65_536
"""More than one read takes: the client is behind with that stream."""


def too_few_requests(row: PointRow, part: str) -> float | None:
    """The interval says what few requests leave open, where there is one."""
    count = row.ttft_ms_n or 0
    return 0.0 if (rate_requests(row, count) if part == "throughput" else count) >= VALUES_MIN else None


def rate_requests(row: PointRow, inside: int) -> int:
    """Return how many requests a throughput rests on, of which so many lie `inside` the window: of those that ran into what is
    left out the tokens before and after count."""
    return max(inside, row.output_throughput_n or 0)


def failed_requests(row: PointRow, part: str) -> float | None:
    """Failed requests are infinite latencies and no tokens in every conclusion. What remains is that the engine had less load:
    with n of m requests a loop of constant size does at most m / n of the work (Little's law)."""
    ok, failed = row.requests_ok, row.requests_failed
    if part == "failed":
        return 0.0
    return None if not ok or failed is None else failed / ok


def machine_busy(row: PointRow, part: str, *, left_out: str) -> float | None:
    """An engine that stood still for a short while lost no more of its throughput than that. Nothing is lost by what a point with
    the mark `left_out` leaves out."""
    gone_s = length(row.left_out) / NS_PER_S if left_out in row.doubts else 0.0
    share = max(0.0, (row.disturbed_s or 0.0) - gone_s) / max(row.window_s or 0.0, 1e-9)
    return share / (1 - share) if part == "throughput" and share <= DISTURBED_SHARE_MAX else None


def disturbed_share(row: PointRow) -> float:
    """Return the share of the window in which others took the machine."""
    return (row.disturbed_s or 0.0) / max(row.window_s or 0.0, 1e-9)


def not_stationary(row: PointRow, part: str) -> float | None:
    """The mean lies between the values before and after the change. Latencies of a growing queue have no bound."""
    grew = row.rate is not None and part in ("ttft", "e2e")
    names = {"tpot": ("itl",), "e2e": ("itl", "ttft")}.get(part, (part,))
    changes = [row.get(f"{name}_trend") for name in names]
    if part == "throughput" and row.rate is not None:
        return None if row.kept_up is None else 1 / row.kept_up - 1 if row.kept_up else None
    if grew or any(change is None or change <= -1 for change in changes):
        return None
    return float(sum(max(abs(change), abs(1 / (1 + change) - 1)) for change in changes if change is not None))


def client_bound(row: PointRow, part: str) -> float | None:
    """The client's own error by its self-check and how late it sent, relative to the median. A client without CPU left, or
    that leaves data in the kernel, may have limited the engine by any amount. Where streams wait for answers (a closed loop), a
    latency begins when its request is sent, so lateness is no part of it."""
    if (row.client_cpu_share or 0.0) > CPU_SHARE_MAX or (row.receive_queue_bytes_max or 0) >= QUEUE_BYTES_MAX:
        return None
    closed = row.rate is None
    late, e2e = (row.lateness_ms_mean, row.e2e_ms_mean) if closed else (row.lateness_ms_p99, row.e2e_ms_p50)
    lag = (row.loop_lag_ms_p99 or 0.0) if row.stamp_source == "user" else 0.0
    own = {"ttft": row.client_error_ms_ttft, "itl": row.client_error_ms_itl}
    if part == "throughput":
        # a stream that sends so late after each answer does without it for that long
        return late / e2e if late is not None and e2e else None
    if part == "tpot":
        # the errors of the first and last token, over all gaps between
        error, value = own["itl"], (row.tpot_ms_p50 or 0.0) * max((row.output_tokens_mean or 1.0) - 1, 1.0)
    else:
        error, value = own.get(part, own["ttft"]), row.get(f"{part}_ms_p50", 0.0)
    waited = (late or 0.0) if not closed and part not in {"itl", "tpot"} else 0.0
    return (error + lag + waited) / value if error is not None and value else None


def cache_contaminated(row: PointRow, _part: str) -> float | None:
    """Prompts found in the cache cost nothing, so without it the work grows at most by 1 / (1 - share)."""
    rate = row.prefix_cache_hit_rate
    return None if rate is None or rate >= 1 else rate / (1 - rate)


def prompt_size_approximate(row: PointRow, _part: str) -> float | None:
    """Both runs of a comparison sent prompts of the same length by the servers' counts, or they are not compared."""
    return None if row.input_tokens_mean is None else PROMPT_TOKENS_APART


def cancelled_not_freed(row: PointRow, _part: str) -> float | None:
    """The engine held more requests than were in flight."""
    excess, flying = row.server_excess_requests_mean, row.average_in_flight
    return excess / flying if excess is not None and flying else None
