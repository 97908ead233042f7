"""What the warm-up of a level says to later starts."""

import pytest

from servebench.run.measure import says_enough
from servebench.run.session import Warmed
from support.records import record_ms


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
