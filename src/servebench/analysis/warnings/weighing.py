"""What the warnings of points can do to one metric: the largest error, where there is a bound, or that there is none.

A bound is a share of the measured value. It follows from the columns of the point; each function of BOUNDS says how. A warning
whose size is not known makes what is concluded from the metric provisional; one that does not concern the metric does nothing.

What befalls one start and not most of the others, such as streams that fall into step, is part of the spread between starts, and
so of every interval over starts already: of several starts, only warnings of more than half of them count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from servebench.analysis.warnings.catalog import AFFECTS_ALL, CATALOG
from servebench.analysis.warnings.load import CPU_SHARE_MAX, QUEUE_BYTES_MAX
from servebench.contracts.point_row import PointRow

VALUES_MIN = 12
"""Requests from which on an interval covers what their number leaves open; with fewer there is none."""
PROMPT_TOKENS_APART = 0.02
"""Runs whose prompts differ by more, by the servers' counts, are not compared at all (`fairness.WORK`)."""


@dataclass(frozen=True)
class Weight:
    """How wrong a metric may be by its warnings: at most the share `bound`, by the warnings `bounded`; but for those in
    `unbounded`, whose size is unknown."""

    bound: float = 0.0
    bounded: tuple[str, ...] = ()
    unbounded: tuple[str, ...] = ()


def weigh(points: Iterable[tuple[Sequence[str], PointRow]], metric: str) -> Weight:
    """Return what the warnings of points (their codes, and their row) can do to the mean of a metric over them."""
    listed = list(points)
    lasting = _lasting_codes(listed)
    factors, bounded, unbounded = [], [], []
    for codes, row in listed:
        factor = 1.0
        for code in codes:
            if code not in lasting or (code in CATALOG and CATALOG[code].mark):
                continue
            errors = [_error(code, row, part) for part in parts_of(metric) if _affects(code, part)]
            if None in errors:
                unbounded.append(code)
            elif worst := max((error for error in errors if error is not None), default=0.0):
                factor *= 1 + worst
                bounded.append(code)
        factors.append(factor)
    bound = sum(factors) / len(factors) - 1 if factors else 0.0
    return Weight(bound, tuple(dict.fromkeys(bounded)), tuple(dict.fromkeys(unbounded)))


def _lasting_codes(points: Sequence[tuple[Sequence[str], PointRow]]) -> set[str]:
    """Return the warnings of more than half of the starts."""
    starts: dict[str | None, set[str]] = {}
    for codes, row in points:
        starts.setdefault(row.start_id, set()).update(codes)
    every = set().union(*starts.values())
    return {code for code in every if 2 * sum(code in codes for codes in starts.values()) > len(starts)}


def parts_of(metric: str) -> tuple[str, ...]:
    """Return what a metric is made of, in the words of `WarningType.affects`."""
    if metric.startswith("cost_"):
        return ("throughput", "cost")
    if metric.startswith("goodput"):
        return ("throughput", "ttft", "tpot", "e2e")
    known = ("ttft", "tpot", "itl", "e2e", "failed", "cold_start")
    return (next((part for part in known if metric.startswith(part)), "throughput"),)


def _affects(code: str, part: str) -> bool:
    """Whether a warning concerns a part; one of another version may concern everything, and none a cold start."""
    affected = CATALOG[code].affects if code in CATALOG else AFFECTS_ALL
    return part in affected


def _error(code: str, row: PointRow, part: str) -> float | None:
    bound = BOUNDS.get(code)
    return None if bound is None else bound(row, part)


def _too_few_requests(row: PointRow, _part: str) -> float | None:
    """The interval says what few requests leave open, where there is one."""
    return 0.0 if (row.ttft_ms_n or 0) >= VALUES_MIN else None


def _errors(row: PointRow, part: str) -> float | None:
    """Failed requests are infinite latencies and no tokens in every conclusion. What remains is that the engine had less load:
    with n of m requests a loop of constant size does at most m / n of the work (Little's law)."""
    ok, failed = row.requests_ok, row.requests_failed
    if part == "failed":
        return 0.0
    return None if not ok or failed is None else failed / ok


def _not_stationary(row: PointRow, part: str) -> float | None:
    """The mean lies between the values before and after the change. Latencies of a growing queue have no bound."""
    grew = row.rate is not None and part in ("ttft", "e2e")
    names = {"tpot": ("itl",), "e2e": ("itl", "ttft")}.get(part, (part,))
    changes = [row.get(f"{name}_trend") for name in names]
    if part == "throughput" and row.rate is not None:
        return None if row.kept_up is None else 1 / row.kept_up - 1 if row.kept_up else None
    if grew or any(change is None or change <= -1 for change in changes):
        return None
    return float(sum(max(abs(change), abs(1 / (1 + change) - 1)) for change in changes if change is not None))


def _client_bound(row: PointRow, part: str) -> float | None:
    """The client's own error by its self-check and how late it sent, relative to the median. A client without CPU left, or
    that leaves data in the kernel, may have limited the engine by any amount."""
    if (row.client_cpu_share or 0.0) > CPU_SHARE_MAX or (row.receive_queue_bytes_max or 0) >= QUEUE_BYTES_MAX:
        return None
    late, e2e = row.lateness_ms_p99, row.e2e_ms_p50
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
    waited = (late or 0.0) if part not in {"itl", "tpot"} else 0.0
    return (error + lag + waited) / value if error is not None and value else None


def _cache_contaminated(row: PointRow, _part: str) -> float | None:
    """Prompts found in the cache cost nothing, so without it the work grows at most by 1 / (1 - share)."""
    rate = row.prefix_cache_hit_rate
    return None if rate is None or rate >= 1 else rate / (1 - rate)


def _prompt_size_approximate(row: PointRow, _part: str) -> float | None:
    """Both runs of a comparison sent prompts of the same length by the servers' counts, or they are not compared."""
    return None if row.input_tokens_mean is None else PROMPT_TOKENS_APART


def _cancelled_not_freed(row: PointRow, _part: str) -> float | None:
    """The engine held more requests than were in flight."""
    excess, flying = row.server_excess_requests_mean, row.average_in_flight
    return excess / flying if excess is not None and flying else None


BOUNDS: Mapping[str, Callable[[PointRow, str], float | None]] = {
    "too_few_requests": _too_few_requests,
    "errors": _errors,
    "not_stationary": _not_stationary,
    "client_bound": _client_bound,
    "cache_contaminated": _cache_contaminated,
    "prompt_size_approximate": _prompt_size_approximate,
    "cancelled_not_freed": _cancelled_not_freed,
}
"""The bound of the error that a warning means for a part of a metric; None where the columns do not bound it."""
