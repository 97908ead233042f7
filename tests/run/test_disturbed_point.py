"""A point whose machine others took for a while: what is estimated from the rest, and what is said about it."""

import random
from dataclasses import asdict, replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from servebench.analysis.disturbance import find_disturbances
from servebench.analysis.drift import Drift
from servebench.analysis.stored_runs import samples_of
from servebench.analysis.warnings.catalog import MACHINE_BUSY
from servebench.analysis.warnings.disturbed import not_stationary, taker_of
from servebench.analysis.warnings.weighing import Weight, weigh
from servebench.contracts.point_row import PointRow
from servebench.contracts.telemetry import CLIENT_ONLY
from servebench.load.plan.levels import plan_levels
from servebench.registry.registry import registry
from servebench.run.point import build_point
from servebench.run.preflight import jobs_of
from servebench.store.tables import add_points, add_telemetry, read_readings, read_rows
from support.machines import SECOND, machine_readings
from support.records import phase_facts, phase_report, point_evidence, record

TOKEN_S, STREAMS = 0.02, 4
TRUE_TOK_S = STREAMS / TOKEN_S
WORDS = ["engine=openai", "launch=attach", "launch.base_url=http://203.0.113.7/v1", "model.name=m"]
HOG = (4711, "python")


def on_the_clock(work_s, *hogs):
    """When so much work is done if hogs halve the speed, each between two moments."""
    moment = work_s
    for start, end in hogs:
        moment += min(max(0.0, moment - start), (end - start) / 2)
    return moment


def closed_loop(*hogs, seed=0, work_s=60.0, tokens=None):
    """Records of an engine of constant speed. Long answers are not rare: leaving out what is touched would bias them."""
    rng = random.Random(seed)
    records = []
    for stream in range(STREAMS):
        at = rng.uniform(0, 0.3)
        while at < work_s:
            length = tokens or max(2, round(rng.lognormvariate(3.6, 0.9)))
            moments = [round(SECOND * on_the_clock(at + TOKEN_S * (n + 1), *hogs)) for n in range(length)]
            sent = round(SECOND * on_the_clock(at, *hogs))
            name = f"{stream}-{len(records)}"
            records.append(record(name, sent_ns=sent, event_ns=moments, point="c4"))
            at += TOKEN_S * length
    return records


def open_loop(hog, *, rate=4.0, seed=0, seconds=90.0):
    """Records of one server that is busy 60% of the time, with arrivals at random and a queue."""
    rng = random.Random(seed)
    free, arrived, records = 0.0, 0.0, []
    while (arrived := arrived + rng.expovariate(rate)) < seconds:
        begun = max(free, arrived)
        slowed = (min(max(begun, hog[0]), hog[1]) - hog[0]) / 2
        moments = [on_the_clock(begun - slowed + 0.015 * (n + 1), hog) for n in range(10)]
        free = moments[-1]
        stamps = [round(SECOND * moment) for moment in moments]
        records.append(record(f"r{len(records)}", sent_ns=round(SECOND * arrived), event_ns=stamps, point="r4"))
    return records


@cache
def settings_of(words):
    return jobs_of([*WORDS, *words], registry())[0].settings


def built(records, readings, point="c4", words=("load.concurrency=[4]", "load.requests=100"), *, emulated=False):
    settings = settings_of(words)
    level = plan_levels(settings.load, 0)[0]
    facts = phase_facts(point=point, concurrency=level.concurrency, rate=level.rate)
    ended = max(one.ended_ns for one in records)
    report = phase_report(
        started_ns=0, ended_ns=ended, planned=len(records), sent=len(records), elapsed_s=ended / SECOND
    )
    evidence = point_evidence(
        settings=settings, level=level, facts=facts, records=records, report=report, readings=readings
    )
    return build_point(replace(evidence, emulated=emulated))


def codes(point):
    return {doubt.code for doubt in point.doubts}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_stretch_is_left_out_of_everything(seed):
    hog = (20.0, 32.0)
    records = closed_loop(hog, seed=seed)
    quiet, seen = (
        built(records, machine_readings(70)),
        built(records, machine_readings(70, others={HOG: [(*hog, 0.9)]})),
    )
    truth = built(closed_loop((0.0, 0.0), seed=seed), machine_readings(70)).row
    row = seen.judged_row
    assert quiet.row.output_throughput_tok_s < 0.95 * TRUE_TOK_S
    assert row.output_throughput_tok_s == pytest.approx(TRUE_TOK_S, rel=0.02)
    assert row.request_throughput_req_s == pytest.approx(truth.request_throughput_req_s, rel=0.15)
    assert row.itl_ms_max == pytest.approx(20, rel=0.01)
    assert quiet.row.itl_ms_max == pytest.approx(40, rel=0.01)
    assert row.tpot_ms_p99 == pytest.approx(20, rel=0.01)
    assert row.output_throughput_tok_s_low <= TRUE_TOK_S * 1.01
    assert row.window_s == pytest.approx(quiet.row.window_s - 12, abs=1.1)
    assert row.disturbed_s == pytest.approx(12, abs=1.1)
    assert (
        row.disturbances == ("python, pid 4711, took 0.9 of 2 cores from 19.8 s to 31.8 s",)
        or "python" in row.disturbances[0]
    )
    assert (row.average_in_flight, quiet.row.disturbed_s, quiet.row.disturbances) == (
        pytest.approx(4, abs=0.1),
        0.0,
        (),
    )
    assert {"machine_shared"} == codes(seen) & {"machine_shared", "machine_busy", "not_stationary"}
    assert "machine_shared" not in codes(quiet)
    assert row.requests_ok == len(records)


@pytest.mark.parametrize("seed", range(3))
def test_bursts_that_few_requests_escape_leave_the_rate_between_them(seed):
    """No latency is that of a quiet machine then; the rate is, and is compared as it is."""
    hogs = [(start, start + 1.5) for start in np.arange(5.0, 75.0, 3.5)]
    point = built(closed_loop(*hogs, seed=seed), machine_readings(90, others={HOG: [(*hog, 0.9) for hog in hogs]}))
    row = point.judged_row
    assert row.output_throughput_tok_s == pytest.approx(TRUE_TOK_S, rel=0.03)
    assert {"machine_shared", "machine_busy"} <= codes(point)
    assert row.verdict == "doubtful"
    assert weigh([row], "output_throughput_tok_s") == Weight()
    assert weigh([row], "ttft_ms_p50").unbounded == ("machine_busy",)


def test_bursts_that_no_request_escapes_leave_the_rate_between_them():
    """Four streams of answers of 20 s: each runs into a burst, and none into so many that its speed is unknown."""
    hogs = [(start, start + 1.2) for start in np.arange(5.0, 125.0, 12.0)]
    records = closed_loop(*hogs, work_s=110.0, tokens=1000)
    point = built(records, machine_readings(140, others={HOG: [(*hog, 0.9) for hog in hogs]}))
    row = point.judged_row
    assert row.output_throughput_tok_s == pytest.approx(TRUE_TOK_S, rel=0.03)
    assert (row.e2e_ms_n, row.verdict) == (0, "doubtful")
    assert row.output_throughput_n >= 20
    assert weigh([row], "output_throughput_tok_s") == Weight()
    assert set(weigh([row], "ttft_ms_p50").unbounded) == {"machine_busy", "too_few_requests"}


def test_a_point_with_an_slo_needs_whole_requests():
    hogs = [(start, start + 1.5) for start in np.arange(5.0, 75.0, 3.5)]
    readings = machine_readings(90, others={HOG: [(*hog, 0.9) for hog in hogs]})
    words = ("load.concurrency=[4]", "load.requests=100", "slo.ttft_ms=500")
    row = built(closed_loop(*hogs), readings, words=words).judged_row
    assert (row.verdict, row.left_out_ns, row.slo_requests) == ("void", (), row.e2e_ms_n)


def test_answers_of_the_warm_up_are_no_evidence_of_a_rate():
    records = closed_loop((20.0, 32.0), work_s=40.0, tokens=500)
    point = built(records, machine_readings(60, others={HOG: [(20.0, 32.0, 0.9)]}))
    late = built(records, machine_readings(60, others={HOG: [(20.0, 32.0, 0.9)]}),
                 words=("load.concurrency=[4]", "load.requests=100", "load.warmup_s=15"))  # fmt: skip
    assert late.row.output_throughput_n < point.row.output_throughput_n <= len(records)


@pytest.mark.slow
def test_long_answers_are_not_left_out_more_than_short_ones():
    """The mean length of the answers that count is that of all, over many points."""
    differences = []
    for seed in range(24):
        records = closed_loop((25.0, 35.0), seed=seed)
        row = built(records, machine_readings(70, others={HOG: [(25.0, 35.0, 0.9)]})).row
        every = built(records, ()).row
        differences.append(row.output_tokens_mean - every.output_tokens_mean)
    error = np.std(differences) / len(differences) ** 0.5
    assert abs(np.mean(differences)) < 3 * error + 0.5


def test_the_stored_requests_give_the_same_requests():
    """A comparison reads requests.parquet, which keeps all rows: it leaves out what the point left out."""
    hog = (20.0, 32.0)
    records = closed_loop(hog)
    row = built(records, machine_readings(70, others={HOG: [(*hog, 0.9)]})).judged_row
    frame = pd.DataFrame([asdict(one) | {"point": row.point} for one in records])

    class Run:
        requests, point_rows, run_id, derived = frame, [row], "s/00", {}

    (side,) = samples_of(Run())
    assert len(side.request_ids) == row.ttft_ms_n < len(records)
    assert np.mean(side.throughput_tok_s) == pytest.approx(row.output_throughput_tok_s, rel=1e-6)
    assert np.max(side.e2e_ms) == pytest.approx(row.e2e_ms_max)


@pytest.mark.parametrize("hog", [(3.0, 75.0), (0.0, 99.0)])
def test_too_much_is_a_warning_with_its_cause(hog):
    records = closed_loop(hog)
    point = built(records, machine_readings(100, others={HOG: [(*hog, 0.9)]}))
    (doubt,) = [one for one in point.doubts if one.code == "machine_busy"]
    assert "python, pid 4711, took 0.9 of 2 cores" in doubt.message
    assert point.judged_row.verdict == "void"
    taker = taker_of([point.judged_row])
    assert (taker.who, taker.pid, taker.took) == ("python", 4711, "took 0.9 of 2 cores")
    assert taker.seconds == pytest.approx(point.row.disturbed_s)
    assert point.row.left_out_ns == ()
    assert point.row.ttft_ms_n == built(records, ()).row.ttft_ms_n


def test_only_who_takes_much_of_a_real_engine_s_machine_makes_its_point_void():
    """The throughput of a short stretch that cannot be left out is known to within its share of the window."""
    records = [one for one in closed_loop((0.0, 0.0)) if one.request_id.startswith("0-")][:12]
    one_user = ("load.concurrency=[1]", "load.requests=12")
    short = built(records, machine_readings(30, others={HOG: [(3.0, 4.2, 0.9)]}), words=one_user)
    emulated = built(closed_loop((3.0, 75.0)), machine_readings(100, others={HOG: [(3.0, 75.0, 0.9)]}), emulated=True)
    for point in (short, emulated):
        assert "machine_busy" in codes(point)
        assert point.judged_row.verdict == "doubtful"
        assert taker_of([point.judged_row]) is None
    share = short.row.disturbed_s / short.row.window_s
    assert MACHINE_BUSY.bound(short.row, "throughput") == pytest.approx(share / (1 - share))
    assert MACHINE_BUSY.bound(emulated.row, "throughput") is MACHINE_BUSY.bound(short.row, "ttft") is None


def test_who_took_most_of_a_window_is_named():
    readings = machine_readings(100, others={HOG: [(3, 30, 0.5), (45, 72, 0.5)], (12, "ld"): [(32, 43, 0.9)]})
    taker = taker_of([built(closed_loop((3.0, 72.0)), readings).judged_row])
    assert (taker.who, taker.pid) == ("python", 4711)
    assert taker.seconds == pytest.approx(54, abs=2)


def test_of_few_requests_the_rate_remains():
    records = [one for one in closed_loop((3.0, 8.0)) if one.request_id.startswith("0-")][:14]
    readings = machine_readings(70, others={HOG: [(3.0, 8.0, 0.9)]})
    point = built(records, readings, words=("load.concurrency=[1]", "load.requests=9"))
    assert "machine_shared" in codes(point)
    assert point.row.output_throughput_tok_s == pytest.approx(1 / TOKEN_S, rel=0.05)


def test_the_client_s_machine_is_called_so():
    records = closed_loop((3.0, 75.0))
    readings = machine_readings(100, own=0.3, others={HOG: [(3.0, 75.0, 1.4)]}, scope=CLIENT_ONLY)
    (doubt,) = [one for one in built(records, readings).doubts if one.code == "machine_busy"]
    assert "client's machine" in doubt.message


@pytest.mark.slow
def test_in_an_open_loop_the_queue_is_left_out_with_what_made_it():
    hog, words = (30.0, 42.0), ("load=rate", "load.rate=[4]", "load.duration_s=90")
    errors, naive = [], []
    for seed in range(8):
        records = open_loop(hog, seed=seed)
        truth = built(open_loop((0.0, 0.0), seed=seed), machine_readings(100), "r4", words).row
        seen = built(records, machine_readings(100, others={HOG: [(*hog, 0.9)]}), "r4", words).row
        errors.append(seen.ttft_ms_mean / truth.ttft_ms_mean - 1)
        naive.append(built(records, (), "r4", words).row.ttft_ms_mean / truth.ttft_ms_mean - 1)
        assert seen.left_out[0][1] > 41.5 * SECOND
        assert seen.output_throughput_tok_s == pytest.approx(truth.output_throughput_tok_s, rel=0.15)
    assert np.mean(naive) > 1
    assert abs(np.mean(errors)) < 0.25


def test_a_recovered_point_finds_the_same(tmp_path):
    """All of it follows from telemetry.parquet and the requests."""
    from servebench.store.layout import RunFolder

    folder = RunFolder(tmp_path / "s" / "00")
    folder.path.mkdir(parents=True)
    records = closed_loop((20.0, 32.0))
    readings = machine_readings(70, others={HOG: [(20.0, 32.0, 0.9)]})
    add_telemetry(folder, readings, run_id="s/00", point="c4")
    first = built(records, readings)
    again = built(records, read_readings(folder)["c4"])
    assert again == first
    add_points(folder, [first])
    (row,) = read_rows(folder)
    assert (row.left_out_ns, row.disturbances) == (first.row.left_out_ns, first.row.disturbances)
    assert row.left_out


@pytest.mark.parametrize(("others", "cut"), [({HOG: [(0.0, 99.0, 0.9)]}, False), ({}, True)])
def test_what_others_slowed_is_not_cut_as_a_warm_up(monkeypatch, others, cut):
    monkeypatch.setattr("servebench.run.point.warmup_share", lambda _: 0.3)
    row = built(closed_loop((0.0, 10.0)), machine_readings(100, others=others)).row
    assert (row.warmup_cut_s is not None) == cut


EARLY = Drift(course="early", begin=0.0, end=0.2, before=12.0, after=10.0, p=0.001)


@pytest.mark.parametrize(
    ("others", "words", "not_words"),
    [({HOG: [(0.0, 8.0, 0.9)]}, "python, pid 4711", "warm-up"), ({}, "warm-up", "python")],
)
def test_a_disturbance_is_no_warm_up(others, words, not_words):
    readings = machine_readings(40, others=others)
    row = PointRow(concurrency=8, window_s=40.0, window_start_ns=0, window_end_ns=40 * SECOND)
    point = point_evidence(
        row=row, records=[record(sent_ns=1)], drifts={"itl": EARLY}, readings=readings,
        disturbances=find_disturbances(readings),
    )  # fmt: skip
    message = not_stationary(point).message
    assert words in message
    assert not_words not in message
    moved = replace(point, row=replace(row, left_out_ns=(10 * SECOND, 20 * SECOND), window_s=30.0))
    assert "of a window of 40 s" in not_stationary(moved).message
