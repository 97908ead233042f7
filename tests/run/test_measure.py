"""What the warm-up of a level says to later starts."""

import pytest

from calibration.simulate import Plant, job_of, open_simulated
from servebench.contracts.phase import SliceFacts
from servebench.load.plan.levels import level_at
from servebench.run.measure import measure_level, says_enough
from servebench.run.session import Warmed
from servebench.run.steps import Progress, WarmLevel
from support.records import record_ms

SLICES = SliceFacts(slices=((0.0, 3.0),), slice_drain_s=1.0, slice_requests=200, slice_lead_s=0.5)


@pytest.mark.parametrize(
    ("warm_up_s", "point_s", "enough"),
    [
        (1.0, [1.0, 1.0], True),
        (1.4, [0.8, 1.2], True),
        # kernels that are compiled for a batch size make first answers wait
        (1.6, [0.8, 1.2], False),
        (9.0, [1.0], False),
        (None, [1.0], False),
        (1.0, [], False),
    ],
)
def test_later_starts_need_no_warm_up_where_first_answers_are_as_fast_as_others(warm_up_s, point_s, enough):
    records = [record_ms(sent=0, ended=1000 * seconds) for seconds in point_s]
    assert says_enough(Warmed(2.0, warm_up_s), records) is enough


@pytest.mark.parametrize(
    ("served", "known", "slices", "steps"),
    [
        (9, True, SLICES, ["level", "point"]),
        # measured alone after all, without the lead-in of a slice
        (9, True, None, ["level", "warm-up", "point"]),
        # an engine that has not answered yet, and a level that no earlier start has measured in slices
        (0, True, SLICES, ["warm-up", "level", "point"]),
        (9, False, SLICES, ["warm-up", "level", "point"]),
    ],
)
def test_a_later_start_has_no_warm_up_where_an_earlier_one_told_what_it_says(served, known, slices, steps):
    settings = job_of(("load.concurrency=[2]", "load.duration_s=4")).settings
    session, _ = open_simulated(settings, Plant(), "k", 1)
    session.lease.running.requests_served = served
    if known:
        session.request.seen.warmed[session.request.run_id, "c2"] = Warmed(9.0, 0.2)
    run, taken = Progress(measure_level(session, level_at(settings.load, 2, 1, of="concurrency"))), []
    while run.step is not None:
        if isinstance(run.step, WarmLevel):
            taken.append("level")
            run.answer(slices)
        else:
            taken.append("warm-up" if run.step.facts.warmup else "point")
            run.go_alone()
    assert taken == steps
    point, _ = run.result
    assert point.row.requests_ok > 0
