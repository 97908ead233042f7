"""Requests that are driven against a scripted server."""

from __future__ import annotations

import json
import socket
import time

import pytest

from servebench.contracts.exchange import PlannedRequest, PointPlan, Target
from servebench.load.client.connection import ANCILLARY_BYTES, SO_TIMESTAMPNS
from servebench.load.client.spool import read_spool
from servebench.load.coordinator.drive import drive, worker_spools


@pytest.fixture(scope="session", autouse=True)
def kernel_stamps():
    """The kernel begins to stamp a while after the first socket asks for it, which is late on a busy machine."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        server_side, _ = server.accept()
        with server_side:
            client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            while True:
                server_side.send(b"x")
                if client.recvmsg(1, ANCILLARY_BYTES)[1]:
                    break
            yield


@pytest.fixture
def run(tmp_path):

    def go(
        server,
        count=8,
        *,
        concurrency=2,
        watch=lambda counts: None,
        target=None,
        padding=0,
        at_s=None,
        workers=1,
        facts=lambda index: {},
        **plan,
    ):
        requests = [
            PlannedRequest(
                request_id=f"r{i}",
                path="/v1/x",
                body=json.dumps({"id": f"r{i}", "pad": "x" * padding}).encode(),
                scheduled_s=at_s[i] if at_s else None,
                **facts(i),
            )
            for i in range(count)
        ]
        spool = tmp_path / f"{time.time_ns()}.spool"
        spool.touch()
        # far longer than any server takes that answers at all: a test in which one does not has its own
        plan = {"timeout_s": 60.0, "connect_timeout_s": 60.0, **plan}
        report = drive(
            target or Target(host="127.0.0.1", port=server.port),
            PointPlan(requests=requests, concurrency=concurrency, **plan),
            spool=spool,
            watch=watch,
            workers=workers,
        )
        exchanges = [exchange for path in worker_spools(spool, workers) for exchange in read_spool(path)]
        assert len({exchange.request_id for exchange in exchanges}) == len(exchanges)
        return report, {exchange.request_id: exchange for exchange in exchanges}

    return go
