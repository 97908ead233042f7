"""Where the cache is: never in the current folder, which may be a stranger's."""

from pathlib import Path

import pytest

from servebench.util.cache import CACHE_VARIABLE, cache_folder
from servebench.util.errors import ConfigError


@pytest.mark.parametrize(
    ("own", "xdg", "expected"),
    [
        ("/big/cache", "/xdg", "/big/cache"),
        ("~/big", None, "/home/me/big"),
        (None, "/xdg", "/xdg/servebench"),
        (None, "xdg", "/home/me/.cache/servebench"),
        (None, None, "/home/me/.cache/servebench"),
    ],
)
def test_where_the_cache_is(monkeypatch, own, xdg, expected):
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in ((CACHE_VARIABLE, own), ("XDG_CACHE_HOME", xdg)):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    assert cache_folder() == Path(expected)


def test_a_relative_cache_is_refused(monkeypatch):
    """A planted key in the current folder would make a stranger's study one's own."""
    monkeypatch.setenv(CACHE_VARIABLE, "cache")
    with pytest.raises(ConfigError, match="SERVEBENCH_CACHE=cache"):
        cache_folder()
