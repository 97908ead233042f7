import pytest

from servebench.util.proportions import wilson


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(0, 0, 0.0, 1.0), (10, 10, 0.7225, 1.0), (0, 10, 0.0, 0.2775), (50, 100, 0.4038, 0.5962), (8, 8, 0.6756, 1.0)],
)
def test_wilson_is_the_textbooks(count, of, low, high):
    """Against published 95% intervals."""
    assert wilson(count, of) == pytest.approx((low, high), abs=1e-4)
