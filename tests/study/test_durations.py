"""How long engines take, by earlier runs."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from servebench.config import compose_jobs
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData
from servebench.load.plan.slices import AddedStarts, seconds_in_slices
from servebench.registry.registry import registry
from servebench.store.manifest import capture_machine
from servebench.study.outlook import start_time, usual_start_s

WORDS = (
    "engine=vllm",
    "gpu=h100",
    "model=llama-3.1-8b-instruct",
    "load.until=null",
    "load.duration_s=60",
    "load.concurrency=[1,4]",
)
BEGAN_S, COLD_S = 1_700_000_000, 90.0
NS = 1_000_000_000


def job_of(*words):
    (job,) = compose_jobs([*WORDS, *words], registry())
    return job


def run_of(job, *seconds, start_id=None, **cold):
    """A stored run whose levels took so long, one after the other, from the end of a cold start of 90 s."""
    start_id = datetime.fromtimestamp(BEGAN_S, UTC).isoformat() if start_id is None else start_id
    rows, ended_s = [], BEGAN_S + COLD_S
    for level, each in zip(job.settings.load.concurrency or (2, 3), seconds, strict=False):
        # a fifth of the time of a level is before its window
        times = {"window_start_ns": int((ended_s + each / 5) * NS), "window_end_ns": int((ended_s + each) * NS)}
        rows.append(PointRow(point=f"c{level}-r0", concurrency=level, start_id=start_id, **times))
        ended_s += each
    manifest = {"config": job.resolved, "machine": capture_machine(), "cold_start": {"seconds": COLD_S, **cold}}
    return RunData(
        study_id="s", name="r", path=Path("none"), manifest=manifest, rows=lambda: rows, tables=lambda *_: None
    )  # fmt: skip


@pytest.mark.parametrize(
    ("earlier", "now", "start_s", "load_s", "known"),
    [
        ((), (), COLD_S, 170.0, True),
        # another workload has the same cold start, but not the same load
        (("workload=unique",), (), COLD_S, 120.0, False),
        # one level of two is known
        (("load.concurrency=[4,8]",), (), COLD_S, 60.0 + 70.0, False),
        (("load.duration_s=10",), (), COLD_S, 120.0, False),
        (("load.concurrency=[4,1,8]",), (), COLD_S, 170.0, True),
    ],
)
def test_earlier_runs_say_how_long_starts_and_levels_take(earlier, now, start_s, load_s, known):
    found = start_time(job_of(*now), [run_of(job_of(*earlier), 70.0, 100.0, 1.0)])
    assert (found.start_s, found.load_s, found.earlier) == (start_s, pytest.approx(load_s), known)


def test_slices_of_long_answers_take_longer():
    job = job_of()
    run = run_of(job, 70.0, 100.0)
    slow = replace(run, rows=lambda: [replace(row, e2e_ms_mean=4000.0) for row in run.point_rows])
    quick, long = (start_time(job, [one], in_turns=True).load_s for one in (run, slow))
    # 15 slices of 4 s, or six of 10 s with the lead-in and the end of answers of 4 s, and a warm-up of one
    assert (quick, long) == (pytest.approx(2 * 73.5), pytest.approx(2 * (108.0 + 4.0)))


def test_where_nothing_is_known_answers_take_time_all_the_same():
    job = job_of("load.until=10%", "load.duration_s=null", "load.max_duration_s=20", "study.until=decided")
    found = start_time(job, [], in_turns=True)
    levels = [AddedStarts(levels=2, start_s=found.start_s, users=users) for users in job.settings.load.concurrency]
    assert not found.earlier
    assert found.load_s > 1.05 * sum(seconds_in_slices(20.0, until=True, added=one) for one in levels)


@pytest.mark.parametrize("words", [("model=qwen2.5-7b-instruct",), ("engine=sglang",), ("launch=emulated",)])
def test_runs_of_other_engines_and_models_say_nothing(words):
    job = job_of()
    found = start_time(job, [run_of(job_of(*words), 70.0, 100.0)])
    assert (found.start_s, found.load_s, found.earlier) == (usual_start_s(job), 120.0, False)


def test_an_engine_that_was_running_before_has_no_start_of_its_own_here():
    job = job_of("launch=attach", "launch.base_url=http://127.0.0.1:9/v1")
    assert usual_start_s(job) == 0
    for run in (run_of(job, 70.0, 100.0, start_id="attached"), run_of(job, 70.0, 100.0, shared=True)):
        assert start_time(job, [run]).load_s == pytest.approx(0.8 * 70 + 100)


def test_a_run_that_was_killed_has_no_cold_start_in_its_manifest():
    job = job_of()
    killed = run_of(job, 70.0, 100.0)
    killed = replace(killed, manifest={**killed.manifest, "cold_start": {"phases": []}})
    found = start_time(job, [killed])
    assert (found.start_s, found.load_s) == (usual_start_s(job), pytest.approx(0.8 * 70 + 100))


def test_levels_to_where_throughput_stops_growing_are_those_that_were_measured():
    job = job_of("load=climb", "load.concurrency=[1,4,16,64]", "load.until=10%", "load.duration_s=null")
    assert start_time(job, []).load_s == 4 * 20
    assert start_time(job, [run_of(job, 30.0, 40.0)]).load_s == pytest.approx(70.0)


def test_a_search_takes_its_budget_or_what_earlier_ones_took():
    job = job_of("load=slo", "slo=interactive", "load.concurrency=null", "load.duration_s=20")
    assert start_time(job, []).load_s == job.settings.load.search.budget_s
    found = start_time(job, [run_of(job, 30.0, 40.0)])
    assert (found.load_s, found.earlier) == (pytest.approx(70.0), True)


def test_requests_that_end_a_level_have_no_time_before_one_was_measured():
    job = job_of("load.duration_s=null", "load.requests=100")
    assert start_time(job, []).load_s is None
    assert start_time(job, [run_of(job, 30.0, 40.0)]).load_s == pytest.approx(70.0)
