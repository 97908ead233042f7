"""The heartbeat file of a folder in use."""

import json
import os
import platform

import pytest

from servebench.cluster.heartbeat import FILE, SILENT_S, active_process, heartbeat


def test_a_folder_is_in_use_within_the_context(tmp_path):
    assert active_process(tmp_path) is None
    with heartbeat(tmp_path, job="12"):
        assert active_process(tmp_path) == f"{platform.node()}, job 12"
    with heartbeat(tmp_path):
        assert active_process(tmp_path) == f"{platform.node()}, process {os.getpid()}"
    assert active_process(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_process_of_another_host_counts_as_long_as_it_touches_the_file(tmp_path):
    path = tmp_path / FILE
    path.write_text(json.dumps({"host": "far", "pid": 1, "job": None}))
    assert active_process(tmp_path) == "far, process 1"
    silent = path.stat().st_mtime - SILENT_S - 1
    os.utime(path, (silent, silent))
    assert active_process(tmp_path) is None


def test_a_time_in_the_future_is_no_sign_of_life(tmp_path):
    """A clock that was wrong, or a file made on purpose, must not hold a run for ever."""
    path = tmp_path / FILE
    path.write_text(json.dumps({"host": "far", "pid": 1, "job": None}))
    later = path.stat().st_mtime + 10 * SILENT_S
    os.utime(path, (later, later))
    assert active_process(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"host": platform.node(), "pid": 2**22 + 1, "job": None}),
        "{",
        "null",
        '"text"',
        "[]",
        '{"host": "far", "pid": Infinity, "job": null}',
        '{"host": "far", "pid": NaN, "job": null}',
        '{"host": "far", "pid": null, "job": null}',
        '{"host": "far", "pid": []}',
        "[" * 100_000,
    ],
)
def test_a_dead_process_of_this_host_and_a_broken_file_do_not_count(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert active_process(tmp_path) is None


def test_what_it_says_is_short_text(tmp_path):
    (tmp_path / FILE).write_text(json.dumps({"host": ["x" * 10_000], "pid": 1, "job": {"y": "z" * 10_000}}))
    assert len(active_process(tmp_path)) < 300
