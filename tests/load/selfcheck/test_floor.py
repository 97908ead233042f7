"""The stored result of the self-check: used for a day on the same machine, and never a reason to fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servebench.contracts.exchange import ClientFloor, FloorStage
from servebench.load.selfcheck import floor as selfcheck
from servebench.load.selfcheck.floor import (
    FILE_NAME,
    MAX_AGE_S,
    client_floor,
    format_floor,
    read_stored_floor,
    store_floor,
)

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
    monkeypatch.setattr(selfcheck.platform, "node", lambda: "other")
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
