"""Where the time goes: the parts add up, negative ones too; what the engine does not say is divided by the client's stamps."""

import numpy as np
import pandas as pd
import pytest

from servebench.analysis.limits.facts import level_facts
from servebench.analysis.time_parts import FIRST, REST, TimeParts, request_parts, server_is_here, time_parts
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData
from servebench.report.screens.times import part_title, parts_lines
from support.studies import with_columns

MS = 1_000_000


def bar(metric="E2E", **parts):
    return TimeParts(level=Level(8), metric=metric, n=9, of=9, parts=parts)


def requests(count=60, **columns):
    """Requests that are sent 1 ms late, have their first token 100 ms later and end after 300 ms; the last five: 200, 600."""
    slow = np.where(np.arange(count) >= count - 5, 2, 1)
    sent = np.arange(count) * 1_000 * MS + MS
    null = dict.fromkeys(
        (
            "network_ms",
            "server_queue_ms",
            "server_prefill_ms",
            "server_kv_transfer_ms",
            "server_decode_ms",
            "delivery_ms",
        ),
        np.nan,
    )
    return pd.DataFrame(
        {
            "point": "c8-r0", "request_id": [f"r{i}" for i in range(count)], "outcome": "ok", "warmup": False, "filler": False,
            "scheduled_ns": sent - MS, "sent_ns": sent,
            "first_event_ns": sent + 100 * MS * slow, "ended_ns": sent + 300 * MS * slow, **null, **columns,
        }
    )  # fmt: skip


def run_of(frame):
    row = PointRow(point="c8-r0", concurrency=8, window_start_ns=0, window_end_ns=10**15)
    tables = lambda *_: frame  # noqa: E731
    return RunData(study_id="s", name="r", path=None, state={}, manifest={}, rows=lambda: [row], tables=tables)


@pytest.mark.parametrize(
    ("launch", "here"),
    [
        ({"name": "process"}, True), ({"network_ms": 0.0}, True), ({"network_ms": 5.0}, False),
        ({"base_url": "http://127.0.0.1:8000/v1"}, True), ({"base_url": "http://[::1]:8000"}, True),
        ({"base_url": "http://localhost:8000"}, True), ({"base_url": "http://h:8/v1"}, False), ({"base_url": "http://["}, False),
    ],
)  # fmt: skip
def test_where_there_is_no_network(launch, here):
    run = RunData(
        study_id="s", name="r", path=None, state={}, manifest={"config": {"launch": launch}}, rows=list, tables=None
    )
    assert server_is_here(run) is here


def test_the_rest_is_called_a_network_only_where_there_is_one():
    one = TimeParts(level=Level(8), metric="TTFT", n=9, of=9, parts={"network": 1.0}, here=True)
    assert "network" not in part_title([one], "network")
    assert "queue" in part_title([one], "network")
    assert "network" in part_title([one, bar(network=1.0)], "network")
    assert part_title([bar(network=1.0, queue=1.0)], "network").split(", ") == ["network", "front end"]


def test_without_engine_times_the_clients_stamps_divide():
    """How late it was sent, until the first token, after it: of all, and of the slowest five."""
    found = time_parts(run_of(requests()))
    assert [(one.metric, one.group, one.n) for one in found] == [
        ("TTFT", "all", 60), ("TTFT", "slowest", 5), ("E2E", "all", 60), ("E2E", "slowest", 5),
    ]  # fmt: skip
    assert not any(one.reported for one in found)
    assert found[1].parts == pytest.approx({"client": 1.0, FIRST: 200.0})
    assert found[3].parts == pytest.approx({"client": 1.0, FIRST: 200.0, REST: 400.0})
    assert parts_lines(found, "tgi") == ["at 8 users: 66% of E2E is after the first token"]


def test_requests_with_engine_times_count_where_some_have_them():
    """Half of the requests have times, without those of the decode: their parts add up to E2E all the same."""
    own = {"network_ms": 10.0, "server_queue_ms": 70.0, "server_prefill_ms": 20.0}
    frame = requests(100)
    frame.loc[:59, list(own)] = list(own.values())
    found = {(one.metric, one.group): one for one in time_parts(run_of(frame))}
    assert found["TTFT", "all"].of == 60
    assert found["TTFT", "all"].parts == pytest.approx({"client": 1.0, "network": 10.0, "queue": 70.0, "prefill": 20.0})
    assert found["E2E", "all"].total_ms == pytest.approx(301.0)
    assert parts_lines(list(found.values()), "vllm")[0].startswith("at 8 users: 69% of TTFT is waiting in vllm's queue")


def test_the_parts_of_each_request_add_up():
    frame = requests(10, network_ms=30.0, server_queue_ms=70.0).head(5)
    frame.loc[3, ["network_ms", "server_queue_ms"]] = [np.nan, 5.0]  # a queue alone divides nothing
    total = request_parts(frame).sum(axis=1).to_numpy()
    assert total == pytest.approx(((frame["ended_ns"] - frame["scheduled_ns"]) / MS).to_numpy())


def test_few_requests_have_no_slowest():
    assert {one.group for one in time_parts(run_of(requests(49)))} == {"all"}


def test_absurd_values_in_a_file_break_nothing():
    """Infinite and enormous parts count as unknown; a request without times of its own is left out."""
    frame = requests(60, network_ms=30.0, server_prefill_ms=70.0, delivery_ms=0.0, server_decode_ms=200.0)
    frame.loc[:2, "network_ms"] = [np.inf, -np.inf, 1e308]
    frame.loc[3, "delivery_ms"] = np.nan
    frame = frame.astype({"scheduled_ns": float, "sent_ns": float})
    frame.loc[4, ["scheduled_ns", "sent_ns"]] = np.nan
    found = time_parts(run_of(frame))
    assert {one.of for one in found} == {56, 55}


def test_parts_by_the_clients_stamps_are_no_facts_of_the_engine():
    """What limits an engine is not concluded from parts that it does not report."""
    own = {
        "network_ms": 10.0,
        "server_queue_ms": 70.0,
        "server_prefill_ms": 20.0,
        "server_decode_ms": 199.0,
        "delivery_ms": 1.0,
    }

    def measured(frame):
        run = run_of(frame)
        return with_columns(run, verdict="valid", ttft_ms_mean=100.0, e2e_ms_mean=300.0)

    assert [set(one.parts) for one in level_facts(measured(requests()), {})] == [set()]
    assert [one.parts["queue"] for one in level_facts(measured(requests(**own)), {})] == [70.0]
