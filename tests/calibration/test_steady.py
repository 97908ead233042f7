"""The comparison of two detectors of a steady state says what both see."""

import pytest

from calibration.steady import COURSES, Course, _step, detected, steady_page


@pytest.mark.slow
def test_a_large_late_step_is_seen_by_both():
    late = detected(Course(name="late", planted=_step(0.5, 0.8)), seed=1)
    assert late.warned
    assert late.flagged


@pytest.mark.slow
def test_a_large_step_in_the_middle_passes_for_a_ramp_by_the_rules():
    middle = detected(Course(name="middle", planted=_step(0.5, 0.5)), seed=1)
    assert middle.warned
    assert middle.left_out


@pytest.mark.slow
def test_the_table_has_a_row_for_each_course_asked_for():
    told = []
    text = steady_page(1, 0, told.append, cell="20%")
    assert len(told) == 1
    assert COURSES[6].name in text
