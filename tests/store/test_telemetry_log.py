"""The log of a running point's telemetry: whole after a kill, bounded, and never an error for the point."""

import math
import os
from dataclasses import replace

import pytest

from servebench.contracts.telemetry import Reading
from servebench.store import telemetry_log
from servebench.store.layout import RunFolder
from servebench.store.telemetry_log import TelemetryLog, read_log
from servebench.util.errors import StoreError

READING = Reading(t_ns=5, source="engine", name="preemptions", raw_name="vllm:n", labels='a="é\n"', value=1.5)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


@pytest.fixture
def path(folder):
    return folder.telemetry_log("q2.5-r0")


def test_what_was_added_is_read_in_order_of_time(folder, path):
    log = TelemetryLog(folder, "q2.5-r0")
    later = replace(READING, t_ns=7, name=None, value=math.inf)
    log.add([later])
    log.add([READING, replace(READING, t_ns=6, value=2)])
    assert folder.telemetry_logs() == [path]
    assert path.stem == "q2.5-r0"
    assert read_log(path) == [READING, replace(READING, t_ns=6, value=2.0), later]


def test_the_log_goes_with_its_context_also_when_nothing_was_written(folder, path):
    with TelemetryLog(folder, "q2.5-r0") as log:
        log.add([READING])
        assert path.exists()
    assert not path.exists()
    with TelemetryLog(folder, "q2.5-r0"):
        pass


def test_a_line_that_was_cut_off_is_ignored_and_harms_no_later_one(folder, path):
    log = TelemetryLog(folder, "q2.5-r0")
    log.add([READING])
    with path.open("ab") as file:
        file.write(b'[6,"engine",nul')
    log.add([replace(READING, t_ns=7)])
    assert [one.t_ns for one in read_log(path)] == [5, 7]


@pytest.mark.parametrize(
    "line",
    [
        '["5","a",null,"b","",1]',
        '[true,"a",null,"b","",1]',
        '[-1,"a",null,"b","",1]',
        '[9223372036854775808,"a",null,"b","",1]',
        '[5,"a",7,"b","",1]',
        '[5,"a",null,"b","","1"]',
        '[5,"a",null,"b","\\ud800",1]',
        '[5,"a",null,"b","",1,1]',
        '{"t_ns":5}',
        "[" * 100_000,
    ],
)
def test_lines_of_a_stranger_that_are_no_readings_are_ignored(path, line):
    path.parent.mkdir()
    path.write_text(f'{line}\n[5,"a",null,"b","",1]\n')
    (reading,) = read_log(path)
    assert reading == Reading(t_ns=5, source="a", name=None, raw_name="b", labels="", value=1.0)


def test_a_log_is_bounded_for_who_writes_and_who_reads(folder, path, monkeypatch):
    log = TelemetryLog(folder, "q2.5-r0")
    log.add([READING])
    monkeypatch.setattr(telemetry_log, "LOG_BYTES_MAX", path.stat().st_size)
    log.add([READING])
    assert read_log(path) == [READING]
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(StoreError, match="limit"):
        read_log(path)


def test_a_pipe_in_place_of_a_log_is_an_error(path):
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="regular"):
        read_log(path)


def test_what_cannot_be_written_raises_nothing(folder, path):
    path.parent.write_text("a file in the place of the folder")
    with TelemetryLog(folder, "q2.5-r0") as log:
        log.add([READING])
    path.parent.unlink()
    log.add([replace(READING, labels=object())])
    assert not path.exists()


def test_the_log_of_an_earlier_attempt_is_not_continued(folder, path):
    TelemetryLog(folder, "q2.5-r0").add([READING])
    TelemetryLog(folder, "q2.5-r0").add([replace(READING, t_ns=6)])
    assert [one.t_ns for one in read_log(path)] == [6]
