import pytest

from servebench.util.stretches import covered


@pytest.mark.parametrize(
    ("spans", "time"), [([], 0), ([(0, 2), (1, 3)], 3), ([(5, 6), (0, 1)], 2), ([(0, 9), (1, 2)], 9), ([(4, 4)], 0)]
)
def test_what_stretches_cover_together_has_no_pauses_and_counts_once(spans, time):
    assert covered(spans) == time
