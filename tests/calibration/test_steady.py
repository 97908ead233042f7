"""The comparison of two detectors of a steady state says what both see."""

import pytest

from calibration.steady import COURSES, Course, _drift, _step, detected, steady_page


@pytest.mark.slow
def test_a_large_drift_is_seen_by_both():
    drifting = detected(Course(name="drift", planted=_drift(0.5)), seed=1)
    assert drifting.warned
    assert drifting.flagged


@pytest.mark.slow
def test_a_step_that_leaves_less_than_four_passes_is_seen_by_servebench_only():
    late = detected(Course(name="late", planted=_step(0.5, 0.85)), seed=1)
    assert late.warned
    assert not late.flagged


@pytest.mark.slow
@pytest.mark.parametrize(("size", "cut"), [(-0.3, True), (0.5, False)])
def test_a_step_before_the_middle_ends_a_warm_up_if_the_engine_becomes_faster(size, cut):
    """One that makes it slower is a warning; MLPerf's takes either for a ramp."""
    middle = detected(Course(name="middle", planted=_step(size, 0.4)), seed=1)
    assert (middle.cut, middle.warned) == (cut, not cut)
    assert middle.ramp


@pytest.mark.slow
def test_the_table_has_a_row_for_each_course_asked_for():
    lines = []
    text = steady_page(1, 0, lines.append, cell="20%")
    assert len(lines) == 1
    assert COURSES[6].name in text
