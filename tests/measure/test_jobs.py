"""Jobs of a point: agents with their sub-agents."""

from servebench.contracts.phase import PhaseFacts
from servebench.measure.jobs import job_columns, job_shares, session_rows
from support.records import record as make

SECOND = 10**9


def facts(**jobs):
    return PhaseFacts(run_id="r", point="c1-r0", warmup=False, concurrency=1, repeat=0, planned={}, jobs=jobs)


def record(name, session, start_s, end_s, **more):
    more = {"outcome": "ok", "prompt_tokens": 100, "output_tokens": 10, "cached_tokens": 50, **more}
    return make(request_id=name, session_id=session, sent_ns=start_s * SECOND, ended_ns=end_s * SECOND, **more)


POINT = facts(a=("a", 3), child=("a", 3), b=("b", 2), c=("c", 1))
RECORDS = [
    record("a0", "a", 10, 12),
    record("ch", "child", 12, 15),
    record("a1", "a", 15, 20),
    record("b0", "b", 11, 13),
    record("c0", "c", 11, 13, outcome="timeout"),
    record("x", None, 11, 13),
]


def test_a_job_is_whole_when_all_its_requests_are_ok():
    """One that lacks requests counts by those that it has, one with a failure not at all."""
    assert job_shares(RECORDS, POINT) == {"a0": 1 / 3, "ch": 1 / 3, "a1": 1 / 3, "b0": 1 / 2, "c0": 0.0}
    found = job_columns(RECORDS, POINT, 1.5, 6.0, 2)
    assert found == {"jobs": 1, "jobs_per_h": 900.0, "jobs_per_gpu_h": 450.0, "job_s_p50": 10.0, "job_s_p90": 10.0}
    assert job_columns(RECORDS, POINT, 0.0, 0.0, 0)["jobs_per_h"] is None


def test_each_session_has_its_hits():
    """Of the requests that were answered: what the engine found, and what the best cache would have."""
    rows = {
        one.session: one for one in session_rows(RECORDS, POINT, {"a0": (0, 100), "a1": (90, 100), "b0": (10, 100)})
    }
    assert rows.keys() == {"a", "child", "b", "c"}
    assert (rows["child"].job, rows["child"].seconds, rows["child"].prefix_cache_hit_rate_ideal) == ("a", 3.0, None)
    assert (rows["a"].prefix_cache_hit_rate, rows["a"].prefix_cache_hit_rate_ideal) == (0.5, 0.45)
    assert (rows["c"].requests, rows["c"].requests_ok, rows["c"].prefix_cache_hit_rate) == (1, 0, None)
