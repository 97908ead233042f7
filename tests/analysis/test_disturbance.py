"""Disturbed stretches are named and dated, and ordinary life is not one."""

import random
from dataclasses import asdict

import pandas as pd
import pytest

from servebench.analysis.disturbance import disturbed_spans, find_disturbances, stored_disturbances
from servebench.contracts.point_row import PointRow
from servebench.contracts.telemetry import Reading
from servebench.util.stretches import length
from support.machines import SECOND, machine_readings

HOG = (4711, "python")


def dated(found):
    return [(one.start_ns / SECOND, one.end_ns / SECOND) for one in found]


@pytest.mark.parametrize("seed", range(40))
def test_a_hog_is_named_and_dated_within_a_second(seed):
    rng = random.Random(seed)
    start = rng.uniform(0, 40)
    end = start + rng.uniform(1.6, 19)
    readings = machine_readings(60, step_s=rng.choice((0.5, 1.0)), others={HOG: [(start, end, rng.uniform(0.6, 1.0))]})
    (found,) = find_disturbances(readings)
    assert (found.who, found.pid) == ("python", 4711)
    assert dated([found])[0] == pytest.approx((start, end), abs=0.5)


def test_the_words():
    (found,) = find_disturbances(machine_readings(60, others={HOG: [(12, 31, 0.9)]}, start_ns=7 * SECOND))
    assert found.words(7 * SECOND) == "python, pid 4711, took 0.9 of 2 cores from 12 s to 31 s"


@pytest.mark.parametrize(
    ("slices", "turns", "found"),
    [(10, range(3, 56, 6), set()), (None, range(3, 56, 6), {"engine"}), (10, range(2, 60, 6), {"engine"})],
)
def test_the_other_engine_of_a_stored_point_in_slices_is_no_disturbance(slices, turns, found):
    """It has the machine while nothing is in flight; what takes a core in slices, too, is one."""
    own = pd.DataFrame([(at * SECOND, (at + 3) * SECOND) for at in range(0, 60, 6)], columns=["sent_ns", "ended_ns"])
    others = {(9, "engine"): [(at, at + 3, 1.6) for at in turns]}
    telemetry = pd.DataFrame([{"point": "c1-r0", **asdict(one)} for one in machine_readings(60, others=others)])
    row = PointRow(point="c1-r0", slices=slices)
    assert {one.who for one in stored_disturbances(row, own, telemetry)} == found
    assert stored_disturbances(row, own, telemetry.iloc[:, :2]) == ()


@pytest.mark.parametrize(("on_s", "off_s"), [(0.1, 0.2), (0.3, 0.6), (0.5, 1.0)])
@pytest.mark.parametrize("cores", [0.65, 1.0])
@pytest.mark.parametrize("phase", [0.0, 0.35, 0.7])
def test_who_takes_a_core_for_a_third_of_the_time_in_short_bursts_disturbs_all_of_it(on_s, off_s, cores, phase):
    """No burst of less than a second is a stretch, and a hog that has to share its core gets less."""
    starts = (number * (on_s + off_s) - phase for number in range(80))
    readings = machine_readings(20, own=1.9, others={HOG: [(at, at + on_s, cores) for at in starts]})
    found = find_disturbances(readings)
    assert {(one.who, one.pid) for one in found} == {("python", 4711)}
    assert length(disturbed_spans(found, 0, 20 * SECOND)) > 10 * SECOND


@pytest.mark.parametrize("cores", [0.65, 1.0])
@pytest.mark.parametrize("phase", [0.0, 0.35, 0.7])
def test_bursts_of_a_second_leave_the_time_between_them(cores, phase):
    starts = [3.0 * number - phase for number in range(80)]
    found = find_disturbances(machine_readings(21, own=1.9, others={HOG: [(at, at + 1.0, cores) for at in starts]}))
    assert length(disturbed_spans(found, 0, 21 * SECOND)) / SECOND == pytest.approx(7, abs=1.5)


@pytest.mark.parametrize("seed", range(40))
def test_daemons_are_no_disturbance(seed):
    rng = random.Random(seed)
    bursts = {
        (pid, "daemon"): [(at, at + 0.3, rng.uniform(0.1, 1.0)) for at in (rng.uniform(0, 60) for _ in range(3))]
        for pid in range(10, 13)
    }
    steady = {(9, "agent"): [(0, 60, 0.06)], (0, "steal"): [(0, 60, 0.04)]}
    assert find_disturbances(machine_readings(60, others=bursts | steady)) == ()


def test_short_bursts_that_meet_are_left_out_of_slices_only():
    """Three programs, none of them named alone, take the machine for 1.3 s: a third of a slice, and little of a long point."""
    others = {(pid, name): [(20.0, 21.3, 0.24)] for pid, name in enumerate(("cc", "ld", "as"), 10)}
    readings = machine_readings(60, own=1.9, step_s=0.5, others=others)
    pauses = [(at * SECOND, (at + 5) * SECOND) for at in range(25, 60, 10)]
    found = find_disturbances(readings, pauses)
    assert {one.who for one in found} == {"cc", "ld", "as"}
    ((low, high),) = disturbed_spans(found, 0, 60 * SECOND)
    assert (low / SECOND, high / SECOND) == pytest.approx((20.0, 21.3), abs=0.5)
    assert find_disturbances(readings) == ()


def test_others_beside_enough_free_cores_are_none_and_steal_time_is():
    assert find_disturbances(machine_readings(60, cores=16, own=2.0, others={HOG: [(10, 30, 1.0)]})) == ()
    (found,) = find_disturbances(machine_readings(60, others={(0, "steal"): [(10, 30, 0.8)]}))
    assert "steal" in found.words(0)
    assert found.pid is None


def test_many_small_ones_together_and_two_at_different_times():
    crowd = {(pid, f"cc{pid % 2}"): [(10, 25, 0.06)] for pid in range(100, 116)}
    (found,) = find_disturbances(machine_readings(60, others=crowd))
    assert found.words(0) == "cc0, cc1 together took 1.0 of 2 cores from 10 s to 25 s"
    both = find_disturbances(machine_readings(60, others={HOG: [(10, 20, 0.9)], (5, "rsync"): [(15, 40, 0.5)]}))
    assert [(one.pid, *map(round, dates)) for one, dates in zip(both, dated(both), strict=True)] == [
        (4711, 10, 20),
        (5, 15, 40),
    ]
    assert [[round(edge / SECOND) for edge in span] for span in disturbed_spans(both, 0, 60 * SECOND)] == [[10, 40]]


def test_a_hog_in_a_crowd_is_named_with_its_own_dates():
    crowd = {(pid, "cc"): [(0, 60, 0.2)] for pid in range(100, 107)}
    found = find_disturbances(machine_readings(60, others=crowd | {HOG: [(20, 31, 0.2)]}))
    assert dated([one for one in found if one.pid == 4711])[0] == pytest.approx((20, 31), abs=0.5)


def test_a_hog_that_was_there_before_and_stays():
    (found,) = find_disturbances(machine_readings(30, others={HOG: [(-5, 99, 1.0)]}))
    assert dated([found])[0] == pytest.approx((0, 30))


def test_nothing_where_nothing_was_sampled():
    assert find_disturbances([]) == ()
    assert find_disturbances(machine_readings(0)) == ()


def gpu(t_s, name, value, labels='gpu="0"'):
    return Reading(t_ns=t_s * SECOND, source="gpu", name=name, raw_name=name, labels=labels, value=value)


def test_heat_is_told_and_never_left_out():
    hot = [gpu(t, "gpu_throttled", float(10 < t <= 20)) for t in range(30)]
    counts = [
        Reading(
            t_ns=t * SECOND // 2, source="machine", name="cpu_throttles", raw_name="", labels="", value=float(t > 100)
        )
        for t in range(121)
    ]
    found = find_disturbances([*hot, *counts, *machine_readings(60)])
    assert [one.words(0) for one in found] == [
        "GPU 0 was slowed by heat or power from 10 s to 20 s",
        "the CPU was slowed by its temperature from 50 s to 60 s",
    ]
    assert disturbed_spans(found, 0, 60 * SECOND) == []


def test_another_process_on_the_gpu():
    used = [gpu(t, "gpu_foreign_utilization", 0.4, 'gpu="0",pid="12",program="train"') for t in range(5, 16)]
    idle = [gpu(t, "gpu_throttled", 0.0) for t in range(30)]
    (found,) = find_disturbances([*idle, *used])
    assert found.words(0) == "train, pid 12, used 40% of GPU 0 from 4 s to 15 s"
