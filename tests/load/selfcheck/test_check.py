"""The self-check on exchanges whose truth is known, one short real check, and its result, which is used for a day."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from servebench.contracts.exchange import ClientFloor, Exchange, FloorStage
from servebench.load.selfcheck import check
from servebench.load.selfcheck.check import (
    FILE_NAME,
    MAX_AGE_S,
    Stage,
    build_floor,
    chunk_stamps,
    client_floor,
    format_floor,
    measure_stage,
    read_stored_floor,
    read_truth,
    self_check,
    store_floor,
)
from servebench.load.selfcheck.null_server import EVENT, HEADER
from servebench.protocol.framing import LAST_CHUNK

MS = 1_000_000
STAGE = FloorStage(
    streams=50, events_s=2000.0, ttft_error_ms=0.04, itl_error_ms=0.01, lateness_ms=1.1, merged_share=0.0
)
FLOOR = ClientFloor(
    stages=(STAGE,),
    streams=50,
    events_s=2000.0,
    limit_seen=False,
    stamp_source="kernel",
    measured_s=1000.0,
    seconds=2.5,
)


def exchange(reads, *, sent_ns=0, scheduled_ns=0, outcome="complete"):
    return Exchange(
        request_id="0",
        session_id=None,
        scheduled_ns=scheduled_ns,
        connect_started_ns=None,
        connected_ns=None,
        sent_ns=sent_ns,
        ended_ns=9,
        outcome=outcome,
        error=None,
        stamp_source="kernel",
        reads=reads,
    )


@pytest.mark.parametrize(
    ("reads", "stamps", "merged"),
    [
        ([(1, HEADER + EVENT), (2, EVENT), (3, EVENT + LAST_CHUNK)], [1, 2, 3], 0),
        ([(1, HEADER + EVENT + EVENT), (2, EVENT + LAST_CHUNK)], [1, 1, 2], 1),
        ([(1, HEADER[:9]), (2, HEADER[9:] + EVENT[:50]), (3, EVENT[50:] + EVENT + LAST_CHUNK)], [3, 3], 1),
        ([], [], 0),
    ],
)
def test_chunks_are_found_however_the_bytes_are_cut(reads, stamps, merged):
    """A chunk has arrived with its last byte."""
    assert chunk_stamps(reads) == (stamps, merged)


def test_a_stage_is_compared_with_its_truth():
    """TTFT from sent against arrived, gaps against gaps, lateness against the schedule."""
    late = exchange([(12 * MS, HEADER + EVENT), (23 * MS, EVENT + LAST_CHUNK)], sent_ns=2 * MS, scheduled_ns=1 * MS)
    cut = exchange([(5, HEADER)], outcome="closed")
    found = measure_stage([(late, [2 * MS, 11 * MS, 21 * MS]), (cut, [0, 1])])
    assert found == FloorStage(
        streams=1,
        events_s=pytest.approx(2 / 0.011),
        ttft_error_ms=1.0,
        itl_error_ms=1.0,
        lateness_ms=1.0,
        merged_share=0.0,
    )
    assert measure_stage([(cut, [0, 1])]) is None


def stage(events_s, error_ms, streams=10):
    return FloorStage(
        streams=streams, events_s=events_s, ttft_error_ms=error_ms, itl_error_ms=0.01, lateness_ms=0.0, merged_share=0.0
    )


@pytest.mark.parametrize(
    ("stages", "streams", "events_s", "limit_seen"),
    [
        ([stage(1e3, 0.1), stage(2e4, 0.2, 1000)], 1000, 2e4, False),
        ([stage(1e3, 0.1), stage(2e4, 3.0, 1000), stage(4e4, 0.1, 1000)], 10, 1e3, True),
        ([stage(1e3, 1.5)], 0, 0.0, True),
    ],
)
def test_the_floor_ends_at_the_first_stage_that_fails(stages, streams, events_s, limit_seen):
    """Later stages that pass were lucky."""
    floor = build_floor(stages, "kernel", seconds=1.0)
    assert (floor.streams, floor.events_s, floor.limit_seen) == (streams, events_s, limit_seen)


@pytest.mark.parametrize(("events_s", "expected"), [(None, 1e3), (10, 1e3), (1e3, 1e3), (1.5e3, 2e4), (1e9, 2e4)])
def test_a_point_is_compared_with_the_stage_of_its_load(events_s, expected):
    """The first stage with as many events a second, else the last."""
    floor = build_floor([stage(1e3, 0.1), stage(2e4, 0.2)], "kernel", seconds=1.0)
    assert floor.at(events_s).events_s == expected
    assert ClientFloor(**{**vars(floor), "stages": ()}).at(1.0) is None


def test_the_truth_file_is_read_back():
    """Index, number of chunks, arrival, chunks; one request after another."""
    data = array("q", [7, 2, 100, 101, 102, 9, 1, 200, 201]).tobytes()
    assert {k: list(v) for k, v in read_truth(data).items()} == {7: [100, 101, 102], 9: [200, 201]}


def test_a_short_real_check():
    """Every stage is measured in full."""
    stages = (
        Stage(streams=5, itl_us=5000, events=6, over_s=0.05),
        Stage(streams=40, itl_us=10_000, events=5, over_s=0.05),
    )
    floor = self_check(stages)
    assert [found.streams for found in floor.stages] == [5, 40]
    assert floor.stamp_source == "kernel"
    for found in floor.stages:
        assert found.ttft_error_ms >= 0
        assert found.itl_error_ms >= 0
        assert found.events_s > 0


@pytest.mark.parametrize(("age_s", "there"), [(0, True), (MAX_AGE_S - 1, True), (MAX_AGE_S, False), (-1, False)])
def test_a_result_is_valid_for_a_day(tmp_path, age_s, there):
    """A result of the future comes from another clock."""
    store_floor(tmp_path / "cache", FLOOR)
    assert read_stored_floor(tmp_path / "cache", now_s=1000.0 + age_s) == (FLOOR if there else None)


def test_a_busy_moment_is_not_kept_for_a_day(tmp_path):
    store_floor(tmp_path, replace(FLOOR, stages=(replace(STAGE, itl_error_ms=20.0),)))
    assert read_stored_floor(tmp_path, now_s=1000.0) is None


def test_another_machine_has_another_floor(tmp_path, monkeypatch):
    """A cache folder may be shared over a network."""
    store_floor(tmp_path, FLOOR)
    monkeypatch.setattr(check.platform, "node", lambda: "other")
    assert read_stored_floor(tmp_path, now_s=1000.0) is None


@pytest.mark.parametrize("text", ["", "{}", '{"floor": 1}', "[]", '{"machine": "x", "floor": {"stages": []}}'])
def test_a_corrupt_file_is_ignored(tmp_path, text):
    """The client is measured again."""
    (tmp_path / FILE_NAME).write_text(text)
    assert read_stored_floor(tmp_path, now_s=1000.0) is None


def test_never_measures_nothing(tmp_path):
    """And writes no file."""
    assert client_floor("never", tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    """A file is where the folder should be."""
    (tmp_path / "cache").write_text("")
    store_floor(tmp_path / "cache", FLOOR)
    assert read_stored_floor(tmp_path / "cache", now_s=1000.0) is None


def test_the_last_line_gives_the_limits():
    """Streams, events per second and where the stamps came from."""
    last = format_floor(FLOOR)[-1]
    assert all(part in last for part in ("50 streams", "2,000 events/s", "kernel"))
