"""How the time of each reader of strangers' text grows with the text: four times the text may not take sixteen times as long."""

import re
import zlib

import pytest

from servebench.registry.registry import registry
from support.long_lines import SHAPES, long_text, seconds
from support.text_readers import READERS, read_with

SMALL, LARGE = 1 << 13, 1 << 17
GROWTH = LARGE / SMALL
QUICK_S = 0.4
"""What takes less CPU time for LARGE is not quadratic in a way that matters: a megabyte takes a few seconds at most."""
SHARE = 8
"""The default suite tries one of so many shapes with each reader, `make fuzz` all of them."""


def grows(reader, shape):
    """Return by how much more than linearly the time grows; 0 where it is too short to tell."""
    large = seconds(reader, long_text(shape, LARGE))
    if large < QUICK_S:
        return 0.0
    # a busy machine slows any of them, so the best of several counts
    large = min(large, *(seconds(reader, long_text(shape, LARGE)) for _ in range(2)))
    small = min(seconds(reader, long_text(shape, SMALL)) for _ in range(5))
    return 0.0 if large < QUICK_S else large / small / GROWTH


def check(name, shapes):
    read_with(name, "x")  # what is imported and cached at first
    slow = {shape: found for shape in shapes if (found := grows(lambda text: read_with(name, text), shape)) > 4}
    assert slow == {}, f"{name}: more than linear"


@pytest.mark.parametrize("name", READERS)
def test_the_time_grows_with_the_text(name):
    start = zlib.crc32(name.encode()) % SHARE
    check(name, list(SHAPES)[start::SHARE])


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_the_time_grows_with_the_text_of_every_shape(name):
    check(name, SHAPES)


LOG_PATTERNS = [
    (name, one.pattern)
    for name in sorted(registry().kinds["engine"])
    for one in (*registry().engine(name).phases, *registry().engine(name).hints)
]


@pytest.mark.parametrize(("engine", "pattern"), LOG_PATTERNS, ids=range(len(LOG_PATTERNS)))
def test_patterns_of_logs_have_no_repeat_without_end(engine, pattern):
    """`A .*B` takes quadratic time for a line of many `A`."""
    compiled = re.compile(pattern, re.MULTILINE)
    for word in re.split(r"[^\w :,']+", re.sub(r"\\.|\[[^]]*\]|\{[^}]*\}", " ", pattern)):
        text = word * (LARGE // max(1, len(word)))
        assert seconds(compiled.search, text) < QUICK_S, (engine, word)
