"""The age that a server has to have."""

import pytest

from servebench.contracts.age import WARM_REQUESTS, is_too_young, round_requests, seconds_of_age


@pytest.mark.parametrize(
    ("age", "age_s", "served", "young"),
    [
        (None, 1.0, 0, False),
        ("fresh", 1.0, 0, False),
        ("warm", 1.0, WARM_REQUESTS - 1, True),
        ("warm", None, WARM_REQUESTS, False),
        ("60m", 3599.0, 10_000, True),
        ("60m", 3600.0, 0, False),
        ("90s", None, 0, False),
    ],
)
def test_a_server_serves_until_it_is_old_enough(age, age_s, served, young):
    """A warm one by its requests, another by its time; where that is unknown nothing can be waited for."""
    assert is_too_young(age, age_s, served) is young


def test_an_unknown_age_is_an_error():
    """And says its key."""
    with pytest.raises(ValueError, match=r"^engine\.age "):
        seconds_of_age("old")


def test_a_round_is_long_enough_for_the_streams():
    """Ten requests each, and not too few."""
    assert [round_requests(streams) for streams in (1, 8)] == [50, 80]
