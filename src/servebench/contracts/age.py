"""How old a server has to be before a point is measured on it (`engine.age`). Pure."""

from servebench.contracts.precision import seconds_of

FRESH = "fresh"
"""The age of a server that is started for each point."""
WARM = "warm"
WARM_REQUESTS = 200
"""A warm server has got so many requests: its allocators, graphs and caches have seen the workload."""
ROUND_PER_STREAM, ROUND_MIN = 10, 50
"""The server is kept busy in rounds of so many requests; after each its age is looked at."""


def seconds_of_age(age: str | None) -> float | None:
    """Return the seconds of an age that is a time; None for another one. Raises ValueError with one line for an unknown age."""
    if age in (None, FRESH, WARM):
        return None
    try:
        return seconds_of("engine.age", str(age))
    except ValueError as error:
        raise ValueError(f"engine.age must be {FRESH}, {WARM} or a time such as 60m (got {age})") from error


def is_too_young(age: str | None, age_s: float | None, served: int) -> bool:
    """Return whether a server that started `age_s` ago (None: unknown) and has got `served` requests must serve more first."""
    if age == WARM:
        return served < WARM_REQUESTS
    wanted_s = seconds_of_age(age)
    return wanted_s is not None and age_s is not None and age_s < wanted_s


def round_requests(concurrency: int) -> int:
    """Return how many requests a round has."""
    return max(ROUND_MIN, ROUND_PER_STREAM * concurrency)
