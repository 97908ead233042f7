"""Who is at work, as a folder tells it."""

from __future__ import annotations

import json
import os
import platform

from servebench.cluster.heartbeat import FILE, SILENT_S, at_work, beating


def test_a_folder_tells_while_somebody_works(tmp_path):
    assert at_work(tmp_path) is None
    with beating(tmp_path, {"job": "12"}):
        found = at_work(tmp_path)
        assert (found.host, found.pid, found.job) == (platform.node(), os.getpid(), "12")
        assert str(found) == f"{platform.node()}, job 12"
    assert at_work(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_another_host_is_believed_as_long_as_it_touches_the_file(tmp_path):
    path = tmp_path / FILE
    path.write_text(json.dumps({"host": "far", "pid": 1, "job": None}))
    assert str(at_work(tmp_path)) == "far, process 1"
    silent = path.stat().st_mtime - SILENT_S - 1
    os.utime(path, (silent, silent))
    assert at_work(tmp_path) is None


def test_a_process_of_this_host_that_is_gone_is_not_at_work(tmp_path):
    (tmp_path / FILE).write_text(json.dumps({"host": platform.node(), "pid": 2**22 + 1, "job": None}))
    assert at_work(tmp_path) is None


def test_a_broken_file_is_nobody(tmp_path):
    (tmp_path / FILE).write_text("{")
    assert at_work(tmp_path) is None
