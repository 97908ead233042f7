import pytest

from servebench.contracts.level import Level
from servebench.contracts.point_id import PointId


@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("c8-r0", PointId("c8", 0)),
        ("c8-r0-a10", PointId("c8", 0, 10)),
        ("q2.5-r1-a2", PointId("q2.5", 1, 2)),
        ("q1e-05-r0", PointId("q1e-05", 0)),
        ("replay-r3", PointId("replay", 3)),
        ("p0", PointId("p0")),
        ("c8", PointId("c8")),
    ],
)
def test_names_are_read_and_written_the_same(name, point):
    assert PointId.parse(name) == point
    assert point.format() == str(point) == name


def test_a_level_says_its_load():
    assert PointId.parse("c8-r0").load == Level(8)
    assert PointId.parse("q2.5-r0").load == Level(rate=2.5)
    assert PointId.parse("replay-r0").load == PointId.parse("c8x").load == Level()


def test_attempts_at_a_point_share_the_first():
    assert PointId.parse("c8-r1-a2").first == PointId.at(Level(8), 1)
    assert PointId.at(Level(rate=2.5), 0).with_attempt(1).format() == "q2.5-r0-a1"


@pytest.mark.parametrize(
    "name", ["c" + "1" * 6000, "q1e+-.", "c1-r" + "1" * 6000, "c1-r0-a" + "9" * 6000, "c", "q", "q1e999"]
)
def test_any_name_is_that_of_a_point(name):
    """Tables of others may have any."""
    point = PointId.parse(name)
    assert point.format() == name
    assert point.load.load >= 0
