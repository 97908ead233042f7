import pytest

from servebench.engine.supervisor.started import MARGIN_BYTES, memory_increase, unreleased_memory


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ((0,), (MARGIN_BYTES,), 0),
        ((0,), (MARGIN_BYTES + 1,), 1),
        ((5 << 30, 0), (1 << 30, 2 << 30), 1),
        ((0,), None, 0),
    ],
)
def test_memory_that_was_not_released(before, after, lines):
    assert len(memory_increase(before, after)) == lines


def test_without_a_driver_nothing_is_checked():
    assert unreleased_memory(None) == ()
