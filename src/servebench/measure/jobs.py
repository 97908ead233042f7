"""Jobs: an agent with its sub-agents, or a conversation, from its first request to its last answer.

A job is complete when all of its requests are ok. Jobs an hour count each answered request by its share of its job, as far as it
was answered inside the window: whole jobs are too few and too long to be counted. A job of which a request failed counts nothing.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from servebench.contracts.phase import PhaseFacts
from servebench.contracts.results import Record, SessionRow
from servebench.util.arrays import percentile
from servebench.util.units import NS_PER_S

SECONDS_PER_HOUR = 3600


def job_shares(measured: Sequence[Record], facts: PhaseFacts) -> dict[str, float]:
    """Return which part of its job each request is, by its id; 0 if a request of the job failed."""
    sizes = dict(facts.jobs.values())
    return {
        record.request_id: all(one.outcome == "ok" for one in records) / sizes[job]
        for job, records in _grouped(measured, facts, by_job=True).items()
        for record in records
    }


def job_columns(
    measured: Sequence[Record], facts: PhaseFacts, answered: float, window_s: float, gpus: int
) -> dict[str, float | None]:
    """Return the columns of jobs. `answered` are the jobs that were answered inside the window,
    as a sum of the shares of requests."""
    sizes = dict(facts.jobs.values())
    jobs = _grouped(measured, facts, by_job=True).items()
    ok = {job: [one for one in records if one.outcome == "ok"] for job, records in jobs}
    seconds = np.array([_seconds(records) for job, records in jobs if len(ok[job]) == len(records) == sizes[job]])
    per_h = answered / window_s * SECONDS_PER_HOUR if window_s > 0 else None
    return {
        "jobs": len(seconds),
        "jobs_per_h": per_h,
        "jobs_per_gpu_h": per_h / gpus if per_h is not None and gpus else None,
        "job_s_p50": float(percentile(seconds, 50)) if seconds.size else None,
        "job_s_p90": float(percentile(seconds, 90)) if seconds.size else None,
    }


def session_rows(
    measured: Sequence[Record], facts: PhaseFacts, ideal: Mapping[str, tuple[int, int]]
) -> tuple[SessionRow, ...]:
    """Return a row for each session of a point whose workload has jobs. `ideal` are the tokens of each prompt that the best cache
    would have found, and all of them, by request id."""
    return tuple(
        SessionRow(
            point=facts.point,
            job=facts.jobs[name][0],
            session=name,
            requests=len(records),
            requests_ok=len(ok),
            seconds=_seconds(records),
            input_tokens=sum(one.prompt_tokens or 0 for one in ok),
            output_tokens=sum(one.output_tokens or 0 for one in ok),
            prefix_cache_hit_rate=_rate(
                [(one.cached_tokens, one.prompt_tokens or 0) for one in ok if one.cached_tokens is not None]
            ),
            prefix_cache_hit_rate_ideal=_rate([ideal[one.request_id] for one in ok if one.request_id in ideal]),
        )
        for name, records in _grouped(measured, facts, by_job=False).items()
        for ok in [[one for one in records if one.outcome == "ok"]]
    )


def _grouped(measured: Sequence[Record], facts: PhaseFacts, *, by_job: bool) -> dict[str, list[Record]]:
    """Return the records of each job, or of each of their sessions."""
    found: dict[str, list[Record]] = {}
    for record in measured:
        if record.session_id in facts.jobs:
            found.setdefault(facts.jobs[record.session_id][0] if by_job else record.session_id, []).append(record)
    return found


def _seconds(records: Sequence[Record]) -> float:
    """Return how long it took from the first request sent to the last answer."""
    return (max(one.ended_ns for one in records) - min(one.sent_ns or one.ended_ns for one in records)) / NS_PER_S


def _rate(hits: Sequence[tuple[int, int]]) -> float | None:
    total = sum(tokens for _, tokens in hits)
    return sum(found for found, _ in hits) / total if total else None
