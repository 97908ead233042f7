"""A cluster that executes orders in the process of the test, and jobs in processes of their own."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from servebench.cluster.agent import execute_order
from servebench.contracts.cluster import JobEnd
from support.orchestration import FakeCluster
from support.waiting import caught


def job_within_point(study: Path, spools: str) -> int | None:
    """Stop a job of a study within a point, one of those whose spools are meant, and return its process id; None if there is none
    now."""
    for spool in study.glob(spools):
        with suppress(OSError, ValueError):
            pid = int(json.loads((spool.parents[1] / "at_work.json").read_text())["pid"])
            if caught(pid, spool.exists):
                return pid
    return None


class InProcess(FakeCluster):
    """Executes an order when its job is polled, so all that are submitted together are open at once; `lost` jobs are lost."""

    def __init__(self, lost=lambda job, order: None):
        super().__init__(places=4)
        self.lost = lost
        self.batches = []

    def submit(self, orders):
        self.batches.append([order.run for order in orders])
        return super().submit(orders)

    def poll(self, job):
        if self.cancelled:
            return super().poll(job)
        reason = self.lost(job, self.orders[job])
        self.end(job, JobEnd(lost=reason) if reason else JobEnd(reply=execute_order(self.orders[job])))
        return super().poll(job)


def cluster_commands(run_main, tmp_path, monkeypatch):
    """A function that executes a command on such a cluster, and returns what it has printed and the cluster."""
    pytest.importorskip("submitit")
    monkeypatch.setenv("SERVEBENCH_LEASES", str(tmp_path / "leases"))
    monkeypatch.setattr("servebench.cluster.dispatcher.POLL_S", 0.0)

    def run(*words, cluster=None):
        cluster = cluster or InProcess()
        monkeypatch.setattr("servebench.cluster.dispatcher.open_cluster", lambda *_: cluster)
        return run_main(*words), cluster

    return run
