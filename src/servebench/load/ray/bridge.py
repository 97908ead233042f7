"""A load worker on another machine: this process stands for it, and says and does what a local worker would.

    python -m servebench.load.ray.bridge --node ID        the worker's own protocol on standard input and output
    python -m servebench.load.ray.bridge --nodes          the ids of the cluster's living nodes, as JSON

It finds the Ray cluster at RAY_ADDRESS (else the one of this machine), puts an actor on the node, and the actor starts the
same worker there. The node's clock is compared with ours before the load; stamps are told in our time. What the worker
writes down is fetched while it works, so that a node that dies keeps only its last second.
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
from servebench.load.client.progress import Progress
from servebench.load.client.spool_reader import take_shifted_frames
from servebench.load.ray.actor import RemoteWorker
from servebench.util.signals import leave_stopping_to_the_parent
from servebench.util.units import NS_PER_MS

PINGS = 30
POLL_S = 0.2
CHUNK_BYTES = 8 << 20
ANSWER_TIMEOUT_S = 30.0
"""A node that does not answer a short question for so long is gone."""


def measure_clock_offset(ask: Any, pings: int = PINGS) -> tuple[int, int]:
    """How far another clock is ahead of ours, and half of the round trip in which that was seen, in nanoseconds.

    Of several round trips the shortest counts (Cristian 1989). An offset that is no larger than its error is taken for
    0: shifting by it would only add noise.
    """
    best: tuple[int, int] | None = None
    for _ in range(pings):
        before = time.time_ns()
        theirs = ask()
        after = time.time_ns()
        if best is None or after - before < best[0]:
            best = (after - before, theirs - (before + after) // 2)
    assert best is not None
    error = best[0] // 2
    return (best[1] if abs(best[1]) > error else 0), error


def _connect() -> Any:
    """The connected ray module. Raises RuntimeError with one line."""
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
    """The living nodes, in a fixed order."""
    return sorted(node["NodeID"] for node in ray.nodes() if node.get("Alive"))


class Bridge:
    """One remote worker, while it works."""

    def __init__(self, ray: Any, node: str, spool: Path, progress: Progress) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        self._actor = ray.remote(RemoteWorker).options(scheduling_strategy=where, num_cpus=0).remote()
        self._spool = spool.open("ab", buffering=0)
        self._progress = progress
        self._position = 0
        self._rest = bytearray()
        self.offset_ns, self.error_ns = measure_clock_offset(lambda: self._ask("clock"))

    def _ask(self, name: str, *arguments: Any, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        return self._ray.get(getattr(self._actor, name).remote(*arguments), timeout=timeout_s)

    def prepare(self, head: dict[str, Any], blobs: list[bytes], timeout_s: float) -> dict[str, Any]:
        """Start the worker on its node; what it says first."""
        said: dict[str, Any] = self._ask("prepare", head, blobs, timeout_s, timeout_s=timeout_s + ANSWER_TIMEOUT_S)
        return said

    def order(self, order: bytes) -> None:
        """Pass an order on."""
        self._ask("order", order)

    def poll(self) -> dict[str, Any] | None:
        """Fetch counts and what was written down since the last time; the worker's last line once it has said it."""
        counts, said, data = self._ask("poll", self._position, CHUNK_BYTES)
        self._position += len(data)
        self._rest += data
        self._spool.write(take_shifted_frames(self._rest, self.offset_ns))
        self._progress.write(**counts)
        if said is not None and data:
            # there may be more to fetch
            return self.poll() or self._told(said)
        return None if said is None else self._told(said)

    def _told(self, said: dict[str, Any]) -> dict[str, Any]:
        if "started_ns" not in said:
            return said
        return {
            **said,
            "started_ns": said["started_ns"] - self.offset_ns,
            "ended_ns": said["ended_ns"] - self.offset_ns,
            "clock_offset_ms": self.offset_ns / NS_PER_MS,
            "clock_offset_error_ms": self.error_ns / NS_PER_MS,
        }

    def close(self) -> None:
        """End the actor, and with it its worker."""
        self._spool.close()
        self._ray.kill(self._actor)


OUTPUT = os.dup(1)
"""Where the coordinator listens. Ray writes to standard output as it likes, so that goes to standard error."""


def _say(**words: Any) -> None:
    os.write(OUTPUT, orjson.dumps(words) + b"\n")


def _serve(node: str) -> int:
    leave_stopping_to_the_parent()
    orders = sys.stdin.fileno()
    head, blobs = read_packed_job(orders)
    with Progress.attach(head["progress"]) as progress:
        ray = _connect()
        bridge = Bridge(ray, node, Path(head["spool"]), progress)
        try:
            said = bridge.prepare(head, blobs, float(head["connect_timeout_s"]) + ANSWER_TIMEOUT_S)
            _say(**said)
            if "failed" in said:
                return 1
            if os.read(orders, 1) != GO:
                return 0
            bridge.order(GO)
            while (last := bridge.poll()) is None:
                if select.select([orders], [], [], POLL_S)[0]:
                    order = os.read(orders, 4096)
                    if not order:
                        return 0
                    bridge.order(order)
            _say(**last)
        finally:
            bridge.close()
    return 0


def main(words: list[str]) -> int:
    """`--nodes`, or `--node ID`. A failure is a line `{"failed": ...}`, as a worker's is."""
    os.dup2(2, 1)
    try:
        if words == ["--nodes"]:
            _say(nodes=node_ids(_connect()))
            return 0
        return _serve(words[1])
    except RuntimeError as error:
        _say(failed=str(error))
    except EOFError:
        return 0
    except Exception as error:  # noqa: BLE001 - Ray has many; the coordinator wants one line
        reason = str(error).strip().splitlines()
        _say(
            failed=f"the load worker on Ray node {words[-1][:12]} is gone: {reason[0] if reason else type(error).__name__}"
        )
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
