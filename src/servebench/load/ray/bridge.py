"""A load worker on another machine, behind this process, which behaves like a local worker.

    python -m servebench.load.ray.bridge --node ID        speaks the worker's protocol on standard input and output
    python -m servebench.load.ray.bridge --nodes          prints the ids of the cluster's living nodes as JSON

It connects to the Ray cluster at RAY_ADDRESS (else that of this machine), starts an actor on the node, and the actor starts
the same worker there. The node's clock is compared with the local one before the load, and stamps are converted to local
time. The spool is fetched while the worker runs, so that only the last second is lost when a node dies.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from servebench.load.client.job import GO, read_packed_job
from servebench.load.client.progress import WorkerProgress
from servebench.load.client.spool_reader import take_shifted_frames
from servebench.load.ray.actor import RemoteWorker
from servebench.util.signals import leave_stopping_to_the_parent
from servebench.util.units import NS_PER_MS

PINGS = 30
POLL_S = 0.2
CHUNK_BYTES = 8 << 20
ANSWER_TIMEOUT_S = 30.0
"""A node that does not answer a short call within this time is lost."""


def measure_clock_offset(read_clock: Any) -> tuple[int, int]:
    """Return how far another clock is ahead of the local one, and the error of that, in nanoseconds.

    The shortest of several round trips counts, and half of it is the error (Cristian 1989). An offset no larger than its
    error is returned as 0: shifting by it would only add noise.
    """
    best: tuple[int, int] | None = None
    for _ in range(PINGS):
        before = time.time_ns()
        theirs = read_clock()
        after = time.time_ns()
        if best is None or after - before < best[0]:
            best = (after - before, theirs - (before + after) // 2)
    assert best is not None
    error = best[0] // 2
    return (best[1] if abs(best[1]) > error else 0), error


def _connect() -> Any:
    """Connect to the cluster and return the ray module. Raises RuntimeError with one line."""
    try:
        import ray
    except ImportError as error:
        raise RuntimeError("load.workers=ray needs ray: pip install 'servebench-suite[ray]'") from error
    try:
        ray.init(
            address=os.environ.get("RAY_ADDRESS") or "auto",
            logging_level="ERROR",
            log_to_driver=False,
            namespace="servebench",
        )
    except Exception as error:
        where = os.environ.get("RAY_ADDRESS") or "this machine"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RuntimeError(
            f"no Ray cluster at {where}: {reason}; start one with 'ray start --head', or set RAY_ADDRESS"
        ) from error
    return ray


def node_ids(ray: Any) -> list[str]:
    """Return the ids of the living nodes, sorted."""
    return sorted(node["NodeID"] for node in ray.nodes() if node.get("Alive"))


class RemoteWorkerClient:
    """One remote worker, as seen from this machine."""

    def __init__(self, ray: Any, node: str, spool: Path, progress: WorkerProgress) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        placement = NodeAffinitySchedulingStrategy(node, soft=False)
        self._actor = ray.remote(RemoteWorker).options(scheduling_strategy=placement, num_cpus=0).remote()
        self._spool = spool.open("ab", buffering=0)
        self._progress = progress
        self._position = 0
        self._rest = bytearray()
        self.offset_ns, self.error_ns = measure_clock_offset(lambda: self._call("clock"))

    def _call(self, name: str, *arguments: Any, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        return self._ray.get(getattr(self._actor, name).remote(*arguments), timeout=timeout_s)

    def prepare(self, head: dict[str, Any], blobs: list[bytes], timeout_s: float) -> dict[str, Any]:
        """Start the worker on its node and return its first line."""
        line: dict[str, Any] = self._call("prepare", head, blobs, timeout_s, timeout_s=timeout_s + ANSWER_TIMEOUT_S)
        return line

    def send_order(self, order: bytes) -> None:
        """Send an order to the worker."""
        self._call("send_order", order)

    def poll(self) -> dict[str, Any] | None:
        """Fetch counts and new bytes of the spool; return the worker's last line once it has come."""
        counts, line, data = self._call("poll", self._position, CHUNK_BYTES)
        self._position += len(data)
        self._rest += data
        self._spool.write(take_shifted_frames(self._rest, self.offset_ns))
        self._progress.write(**counts)
        if line is not None and data:
            # there may be more to fetch
            return self.poll() or self._in_local_time(line)
        return None if line is None else self._in_local_time(line)

    def _in_local_time(self, report: dict[str, Any]) -> dict[str, Any]:
        if "started_ns" not in report:
            return report
        return {
            **report,
            "started_ns": report["started_ns"] - self.offset_ns,
            "ended_ns": report["ended_ns"] - self.offset_ns,
            "clock_offset_ms": self.offset_ns / NS_PER_MS,
            "clock_offset_error_ms": self.error_ns / NS_PER_MS,
        }

    def close(self) -> None:
        """Kill the actor, and with it its worker."""
        self._spool.close()
        self._ray.kill(self._actor)


OUTPUT = os.dup(1)
"""The pipe to the coordinator. Ray prints to standard output, which is therefore redirected to standard error."""


def _send_line(**facts: Any) -> None:
    os.write(OUTPUT, orjson.dumps(facts) + b"\n")


def _serve(node: str) -> int:
    leave_stopping_to_the_parent()
    orders = sys.stdin.fileno()
    head, blobs = read_packed_job(orders)
    with WorkerProgress.attach(head["progress"]) as progress:
        ray = _connect()
        worker = RemoteWorkerClient(ray, node, Path(head["spool"]), progress)
        try:
            first = worker.prepare(head, blobs, float(head["connect_timeout_s"]) + ANSWER_TIMEOUT_S)
            _send_line(**first)
            if "failed" in first:
                return 1
            if os.read(orders, 1) != GO:
                return 0
            worker.send_order(GO)
            while (last := worker.poll()) is None:
                if select.select([orders], [], [], POLL_S)[0]:
                    order = os.read(orders, 4096)
                    if not order:
                        return 0
                    worker.send_order(order)
            _send_line(**last)
        finally:
            worker.close()
    return 0


def main(words: list[str]) -> int:
    """Run `--nodes` or `--node ID`. A failure is a line `{"failed": ...}`, as of a worker."""
    os.dup2(2, 1)
    try:
        if words == ["--nodes"]:
            _send_line(nodes=node_ids(_connect()))
            return 0
        return _serve(words[1])
    except RuntimeError as error:
        _send_line(failed=str(error))
    except EOFError:
        return 0
    except Exception as error:  # noqa: BLE001 - Ray raises many types; the coordinator needs one line
        reason = str(error).strip().splitlines()
        _send_line(
            failed=f"the load worker on Ray node {words[-1][:12]} is lost: {reason[0] if reason else type(error).__name__}"
        )
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
