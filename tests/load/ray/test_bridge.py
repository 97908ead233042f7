"""Workers on other machines: clock offsets, converted stamps, and a real Ray cluster where Ray is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from servebench.contracts.exchange import PlannedRequest, PointPlan, Target
from servebench.load.client.job import GO, encode_job, read_packed_job
from servebench.load.client.spool import (
    HEAD,
    META,
    SENT,
    STAMPS,
    TIMESPEC,
    end_frame,
    meta_frame,
    reads_frame,
    sent_frame,
)
from servebench.load.client.spool_reader import read_spool, take_shifted_frames
from servebench.load.ray.actor import RemoteWorker
from servebench.load.ray.bridge import measure_clock_offset
from support.streams import stream

SECOND = 1_000_000_000


def test_an_offset_larger_than_its_error_is_found():
    offset, error = measure_clock_offset(lambda: time.time_ns() + 5 * SECOND)
    assert abs(offset - 5 * SECOND) <= error + 100_000


def test_an_offset_within_its_error_is_zero():
    def slow():
        time.sleep(0.002)
        return time.time_ns()

    offset, error = measure_clock_offset(slow)
    assert (offset, error >= 1_000_000) == (0, True)


def frames() -> bytes:
    data = reads_frame(0, [TIMESPEC.pack(70, 5), TIMESPEC.pack(71, 6)], [b"hi", b" there"])
    return (
        meta_frame([("a", None)])
        + sent_frame(0, 60 * SECOND, 0, 0, 61 * SECOND)
        + data
        + end_frame(0, 80 * SECOND, "complete")
    )


@pytest.mark.parametrize("offset_ns", [0, 3 * SECOND + 10, -7])
def test_every_stamp_is_shifted_and_nothing_else(tmp_path, offset_ns):
    buffer = bytearray(frames())
    path = tmp_path / "spool"
    path.write_bytes(take_shifted_frames(buffer, offset_ns))
    assert not buffer
    (one,) = read_spool(path)
    assert (one.scheduled_ns, one.sent_ns, one.ended_ns) == tuple(n * SECOND - offset_ns for n in (60, 61, 80))
    assert one.connected_ns is None
    assert list(one.reads) == [(70 * SECOND + 5 - offset_ns, b"hi"), (71 * SECOND + 6 - offset_ns, b" there")]


def test_an_incomplete_frame_waits_for_its_rest():
    whole = frames()
    for cut in range(len(whole)):
        buffer = bytearray(whole[:cut])
        first = take_shifted_frames(buffer, 1)
        buffer += whole[cut:]
        assert first + take_shifted_frames(buffer, 1) == take_shifted_frames(bytearray(whole), 1)


def test_frames_start_with_kind_index_and_length():
    meta = meta_frame([("a", None)])
    kind, _, length = HEAD.unpack_from(meta)
    assert (kind, length) == (META, len(meta) - HEAD.size)
    assert HEAD.unpack_from(sent_frame(3, 1, 2, 3, 4)) == (SENT, 3, STAMPS.size)


@pytest.fixture
def actor():
    made = RemoteWorker()
    yield made
    made._worker.close()
    made._folder.cleanup()


def job(tmp_path, host, port):
    requests = [PlannedRequest(request_id=f"r{i}", path="/v1/x", body=b"{}") for i in range(4)]
    plan = PointPlan(requests=requests, concurrency=2, timeout_s=60.0, connect_timeout_s=60.0)
    path = tmp_path / "job"
    path.write_bytes(encode_job(Target(host=host, port=port), plan, tmp_path, tmp_path))
    with path.open("rb") as file:
        return read_packed_job(file.fileno())


def test_an_actor_hands_out_the_spool_and_the_last_line_of_its_worker(actor, serve, tmp_path):
    server = serve(lambda connection, request: connection.sendall(stream()))
    data, last = b"", None
    assert "ready" in actor.prepare(*job(tmp_path, server.host, server.port), 60.0)
    actor.send_order(GO)
    while last is None:
        counts, last, part = actor.poll(len(data), 1 << 20)
        data += part
    assert actor.poll(len(data), 1 << 20)[1] == last
    spool = tmp_path / "fetched.spool"
    spool.write_bytes(data)
    assert [one.outcome for one in read_spool(spool)] == ["complete"] * 4
    assert (last["planned"], last["sent"], counts["completed"]) == (4, 4, 4)


def test_an_actor_says_why_its_worker_failed(actor, tmp_path):
    assert "no-such-host" in actor.prepare(*job(tmp_path, "no-such-host.invalid", 1), 60.0)["failed"]


CLUSTER = """
import os, subprocess, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
words = [sys.executable, "-m", "servebench", *sys.argv[1:]]
code = subprocess.run(words, env={**os.environ, "RAY_ADDRESS": cluster.address}).returncode
cluster.shutdown()
sys.exit(code)
"""


@pytest.mark.timeout(200)
def test_a_cluster_drives_one_engine(tmp_path):
    pytest.importorskip("ray")
    words = [
        *("engine=vllm", "workload=unique", "launch=emulated", "launch.time_scale=0.02", "gpu=rtx5090"),
        *("model=qwen2.5-7b-instruct", "tracking=none", "load.self_check=never", "load.workers=ray"),
        *("load.concurrency=[4]", "load.requests=20", "study.name=s"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (manifest,) = tmp_path.glob("outputs/s/*/manifest.json")
    book = json.loads(manifest.read_text())["ledger"]
    assert [(one["sent"], one["ok"], one["stored"]) for one in book if not one["warmup"]] == [(20, 20, 20)]


@pytest.mark.slow
def test_without_ray_or_a_cluster_the_error_is_one_line(tmp_path):
    words = [
        *("engine=vllm", "launch=emulated", "gpu=rtx5090", "model=qwen2.5-7b-instruct", "load.workers=ray"),
        *("tracking=none",),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "servebench", *words, "load.concurrency=[1]", "load.self_check=never"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1"},
        timeout=150,
        check=False,
    )
    assert done.returncode != 0
    last = next(line for line in done.stderr.splitlines() if line.startswith("servebench: "))
    assert "ray" in last.lower()
    assert "Traceback" not in done.stderr
    assert Path(tmp_path).exists()
