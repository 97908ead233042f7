"""The points of a run, their order, and the requests of each: plan/levels.py and plan/schedule.py."""

import pytest

from servebench.contracts.exchange import PlannedRequest
from servebench.contracts.point_id import PointId
from servebench.contracts.settings import LoadSettings, RampSettings
from servebench.load.plan.levels import PlannedPoint, level_of, plan_levels, warmup_in_turns
from servebench.load.plan.schedule import fillers_to_prepare, point_plan, requests_to_prepare, schedule_requests


def load(**settings):
    return LoadSettings(**{"name": "x", "concurrency": (1, 8), **settings})


def test_auto_requests_are_ten_per_stream_and_at_least_fifty():
    """The default of the presets, by level."""
    found = plan_levels(load(concurrency=(1, 5, 6, 100)), 0)
    assert [level.requests for level in found] == [50, 50, 60, 1000]


@pytest.mark.parametrize(("asked", "expected"), [("auto", [2, 16, 32]), (0, [0, 0, 0]), (7, [7, 7, 7])])
def test_warm_up_requests(asked, expected):
    """`auto` is two per stream and at most 32; a number is used as it is."""
    assert [x.warmup_requests for x in plan_levels(load(concurrency=(1, 8, 100), warmup_requests=asked), 0)] == expected


@pytest.mark.parametrize(("asked", "expected"), [("auto", [2, 8, 8, 20, 32]), (0, [0] * 5), (7, [7] * 5)])
def test_warm_up_requests_where_engines_take_turns(asked, expected):
    """`auto` is one per stream, for a slice has a lead-in, or eight if two per stream are as many."""
    settings = load(concurrency=(1, 4, 8, 20, 100), warmup_requests=asked)
    assert [warmup_in_turns(one, settings) for one in plan_levels(settings, 0)] == expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [("ascending", ["c1-r0", "c1-r1", "c8-r0", "c8-r1"]), ("interleaved", ["c1-r0", "c8-r0", "c1-r1", "c8-r1"])],
)
def test_order(order, expected):
    """Repeats stay together, or each round goes through all levels."""
    assert [level.point for level in plan_levels(load(repeats=2, order=order), 0)] == expected


def test_shuffled_is_fixed_by_the_seed():
    """The same seed gives the same order, with every point once."""
    settings = load(concurrency=tuple(range(1, 20)), order="shuffled")
    one, again, other = plan_levels(settings, 1), plan_levels(settings, 1), plan_levels(settings, 2)
    assert one == again != other
    assert sorted(level.concurrency for level in one) == list(range(1, 20))


def timed(concurrency):
    return PlannedPoint(id=PointId("p", 0), concurrency=concurrency, requests=None, duration_s=10.0, warmup_requests=0)


@pytest.mark.parametrize(
    ("level", "rate_req_s", "expected"),
    [
        (PlannedPoint(id=PointId("p", 0), concurrency=4, requests=77, duration_s=None, warmup_requests=0), 3.0, 77),
        (timed(4), 100.0, 2004),
        (timed(4), 0.1, 80),
        (timed(64), None, 1280),
        (timed(1), None, 20),
    ],
)
def test_requests_to_prepare(level, rate_req_s, expected):
    """A timed point gets twice what it would use at the warm-up's rate, and at least twenty per stream."""
    assert requests_to_prepare(level, rate_req_s) == expected


def rated(**settings):
    return load(concurrency=None, rate=(2.0,), **settings)


@pytest.mark.parametrize(
    ("settings", "requests", "supplied"),
    [({}, 60, 60), ({"requests": 7}, 7, 7), ({"duration_s": 50.0, "requests": None}, None, 151)],
)
def test_a_rate_is_a_level(settings, requests, supplied):
    """Half a minute of arrivals, a number, or a duration plus five standard deviations."""
    (level,) = plan_levels(rated(**settings), 0)
    assert (level.point, level.rate, level.concurrency, level.requests) == ("q2-r0", 2.0, None, requests)
    assert requests_to_prepare(level, None) == supplied


def planned(count):
    return [PlannedRequest(request_id=str(i), path="/", body=b"") for i in range(count)]


def test_an_open_loop_is_scheduled_and_bounded():
    """Requests have times up to the end of the point; at most the configured number is in flight."""
    settings = rated(arrival="constant", duration_s=3.0, requests=None, max_concurrency=9)
    (level,) = plan_levels(settings, 0)
    requests = schedule_requests(level, settings, planned(100), 0)
    assert [request.scheduled_s for request in requests] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    plan = point_plan(level, settings, requests, warmup=False)
    assert (plan.concurrency, plan.duration_s, plan.connections) == (9, 3.0, 16)
    warmup = point_plan(level, settings, planned(4), warmup=True)
    assert (warmup.concurrency, warmup.duration_s, warmup.connections) == (4, None, None)


def test_a_closed_loop_has_no_schedule():
    """Requests are sent when a stream is free."""
    settings = load()
    level = plan_levels(settings, 0)[1]
    requests = schedule_requests(level, settings, planned(3), 0)
    assert [request.scheduled_s for request in requests] == [None] * 3
    assert point_plan(level, settings, requests, warmup=False).concurrency == 8


def test_streams_start_at_random_moments_over_one_answer():
    """The same each time, the first at once; not without a known answer time, switched off, or with few requests a stream."""
    settings = load(concurrency=(8,), requests=80)
    (level,) = plan_levels(settings, 0)
    starts = [
        point_plan(level, settings, planned(80), warmup=False, answer_s=2.0, seed=seed).stream_starts_s
        for seed in (1, 1, 2)
    ]
    assert starts[0] == starts[1] != starts[2]
    assert starts[0] is not None
    assert starts[0][0] == 0.0 < starts[0][1]
    assert list(starts[0]) == sorted(starts[0])
    assert 0.5 < starts[0][-1] <= 2.0
    few = load(concurrency=(8,), requests=16)
    for other, answer_s in ((settings, None), (load(concurrency=(8,), requests=80, stagger=False), 2.0), (few, 2.0)):
        (level,) = plan_levels(other, 0)
        plan = point_plan(level, other, planned(80), warmup=False, answer_s=answer_s)
        assert plan.stream_starts_s is None


@pytest.mark.parametrize(
    ("settings", "spread", "sessions", "expected"),
    [
        ({}, 1.0, False, 8),
        ({}, 2.5, False, 20),
        ({}, 99.0, False, 32),
        ({}, 1.0, True, 24),
        ({"duration_s": 9.0, "requests": None}, 1.0, False, 8),
        ({"hold_level": False}, 1.0, False, 0),
        ({"concurrency": (1,)}, 1.0, False, 0),
        ({"requests": 5}, 1.0, False, 0),
        ({"concurrency": None, "rate": (4.0,)}, 1.0, False, 0),
    ],
)
def test_fillers_are_enough_for_the_longest_answer(settings, spread, sessions, expected):
    """One stream needs none, an open loop keeps its arrivals, and fewer requests than streams never reach the level."""
    found = load(**{"concurrency": (8,), **settings})
    (level,) = plan_levels(found, 0)
    assert fillers_to_prepare(level, found, spread, sessions=sessions) == expected


def test_a_ramp_starts_streams_or_raises_the_rate():
    """The warm-up has no ramp."""
    ramp = RampSettings(over_s=10.0, start=0.25)
    settings = load(concurrency=(4,), ramp=ramp)
    (level,) = plan_levels(settings, 0)
    assert point_plan(level, settings, planned(4), warmup=False).stream_starts_s == pytest.approx(
        (0, 10 / 3, 20 / 3, 10)
    )
    assert point_plan(level, settings, planned(4), warmup=True).stream_starts_s is None
    settings = rated(ramp=ramp, arrival="constant")
    (level,) = plan_levels(settings, 0)
    times = [request.scheduled_s for request in schedule_requests(level, settings, planned(40), 0)]
    assert times[0] > 0.8
    assert times[-1] - times[-2] == pytest.approx(0.5)


def test_cancellations_are_a_share_fixed_by_the_seed():
    """In closed and open loops."""
    for settings in (load(cancel_fraction=0.3, cancel_after_s=2.0), rated(cancel_fraction=0.3, cancel_after_s=2.0)):
        level = plan_levels(settings, 0)[0]
        gone = [request.cancel_after_s for request in schedule_requests(level, settings, planned(1000), 0)]
        assert 250 < gone.count(2.0) < 350
        assert gone.count(2.0) + gone.count(None) == 1000
        assert gone == [request.cancel_after_s for request in schedule_requests(level, settings, planned(1000), 0)]


@pytest.mark.parametrize(
    ("point", "expected"), [("c8-r1", (8, None, 1)), ("q2.5-r0", (None, 2.5, 0)), ("replay-r0", None), ("x", None)]
)
def test_a_level_is_known_by_its_name(point, expected):
    """Recovery needs it for the points of a killed search."""
    found = level_of(load(concurrency=None), PointId.parse(point))
    assert (None if found is None else (found.concurrency, found.rate, found.repeat)) == expected
