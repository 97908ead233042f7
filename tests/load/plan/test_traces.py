"""Arrival times from the formats in which traces are published."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servebench.contracts.exchange import PlannedRequest
from servebench.contracts.settings import LoadSettings, ReplaySettings
from servebench.load.plan.levels import plan_levels, with_trace_times
from servebench.load.plan.schedule import point_plan, requests_to_prepare, schedule_requests
from servebench.load.plan.traces import read_arrivals, trace_errors
from servebench.util.errors import ConfigError

MOONCAKE = """\
{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}

{"timestamp": 30535, "input_length": 1}
{"timestamp": 28982}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:18:03.9799600,1,1
"""
BURST = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1,2,3,x
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("t.jsonl", MOONCAKE, [0.0, 1.5, 3.053]),
        ("t.csv", AZURE, [0.0, 0.052, 60.0]),
        ("t.csv", "TIMESTAMP,x\n2024-05-10 00:00:00.009930+00:00,1\n2024-05-10 00:00:01.509930+00:00,1\n", [0.0, 1.5]),
        ("t.csv", "TIMESTAMP,x\n2024-05-10 00:00:00.25-05:00,1\n2024-05-10 05:00:01Z,1\n", [0.0, 0.75]),
        ("T.CSV", BURST, [0.0, 40.0]),
        ("t.csv", "\ufeff" + BURST, [0.0, 40.0]),
    ],
)
def test_published_formats(tmp_path, name, text, expected):
    """Seconds from the first arrival, in ascending order."""
    (tmp_path / name).write_text(text)
    assert read_arrivals(str(tmp_path / name)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("t.jsonl", '{"timestamp": 1}\nnonsense\n', "line 2"),
        ("t.jsonl", "\n", "no arrivals"),
        ("t.csv", "a,b\n1,2\n", "columns: a, b"),
        ("t.csv", "Timestamp\nyesterday\n", "line 2: 'yesterday'"),
        ("t.csv", "", "empty"),
        ("t.parquet", "no parquet", "requests.parquet"),
    ],
)
def test_invalid_files(tmp_path, name, text, fault):
    """The error names the file, the line and the accepted formats."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=fault) as caught:
        read_arrivals(str(tmp_path / name))
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read: no such file"):
        read_arrivals(str(tmp_path / "absent.jsonl"))


def test_a_requests_parquet(tmp_path):
    """Warm-up requests and fillers do not count, in files of older versions that do not name them either; one of several
    points must be selected."""
    table = pa.table(
        {
            "point": ["a", "a", "a", "a", "b"],
            "scheduled_ns": [5 * 10**9, 2 * 10**9, 3 * 10**9, 10**9, 0],
            "warmup": [False, True, False, False, False],
            "filler": [False, False, False, True, False],
        }
    )
    path = str(tmp_path / "requests.parquet")
    pq.write_table(table.drop_columns("filler"), path)
    assert read_arrivals(path, "a") == [0.0, 2.0, 4.0]
    pq.write_table(table, path)
    assert read_arrivals(path, "a") == [0.0, 2.0]
    with pytest.raises(ConfigError, match=r"load\.replay\.point=a"):
        read_arrivals(path)
    with pytest.raises(ConfigError, match=r"load\.replay.point=c is not in"):
        read_arrivals(path, "c")


def test_a_missing_file_is_reported_before_the_run(tmp_path):
    """So is a file whose suffix is unknown."""

    def errors(path):
        return trace_errors(LoadSettings(name="replay", replay=ReplaySettings(path=path)))

    assert "no.jsonl" in errors(str(tmp_path / "no.jsonl"))[0]
    assert "trace.txt" in errors("trace.txt")[0]
    assert errors(None) == []


@pytest.mark.parametrize(
    ("settings", "times"),
    [
        ({}, [0.0, 1.0, 4.0]),
        ({"time_scale": 0.5}, [0.0, 0.5, 2.0]),
        ({"requests": 2}, [0.0, 1.0]),
        ({"requests": None, "duration_s": 3.0}, [0.0, 1.0]),
        ({"requests": None, "duration_s": 3.0, "time_scale": 0.5}, [0.0, 0.5, 2.0]),
    ],
)
def test_a_trace_is_an_open_loop(settings, times):
    """Scaled, cut to length, and with its mean rate."""
    load = LoadSettings(name="replay", replay=ReplaySettings(), **settings)
    (level,) = plan_levels(load, 0)
    assert level.open_loop
    assert requests_to_prepare(level, None) == (200 if load.requests in ("auto", None) else 2)
    level = with_trace_times(level, load, [10.0, 11.0, 14.0])
    assert level.times_s == tuple(times)
    assert level.rate == pytest.approx((len(times) - 1) / times[-1])
    requests = [PlannedRequest(request_id=str(i), path="/", body=b"") for i in range(3)]
    sent = schedule_requests(level, load, requests, 0)
    assert [request.scheduled_s for request in sent] == times
    assert point_plan(level, load, sent, warmup=False).concurrency == len(times)
