"""Execution of orders as tasks on the nodes of a Ray cluster."""

import importlib.util
import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from servebench.contracts.cluster import JobEnd, OrderRunner, RaySettings, RunOrder
from servebench.util.errors import PreflightError
from servebench.util.signals import STOPPING

UNLIMITED = 1_000_000


def faults() -> list[str]:
    """Return why Ray cannot be used from here, one line each."""
    if importlib.util.find_spec("ray") is None:
        return ["hydra/launcher=ray needs ray: pip install 'servebench-suite[ray]'"]
    return []


def connected(address: str) -> Any:
    """Return the ray module, connected to a cluster (`auto`: RAY_ADDRESS, else this machine). Raises PreflightError."""
    import ray

    where = os.environ.get("RAY_ADDRESS") or "auto" if address == "auto" else address
    # Ray replaces the signal handlers, which a study needs to stop cleanly
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    try:
        ray.init(address=where, logging_level="ERROR", log_to_driver=False, namespace="servebench")
    except Exception as error:
        reason = str(error).strip().splitlines()
        detail = reason[0] if reason else type(error).__name__
        place = "on this machine" if where == "auto" else f"at {where}"
        raise PreflightError(
            f"no Ray cluster {place}: {detail}; start one with 'ray start --head', or set RAY_ADDRESS or "
            "hydra.launcher.ray.init.address"
        ) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return ray


def chosen_node(nodes: Sequence[Mapping[str, Any]], needed: Mapping[str, float], busy: Mapping[str, int]) -> str | None:
    """Return the live node with the needed resources and the fewest runs; null when no node has the resources."""
    fit = [
        node
        for node in nodes
        if node.get("Alive")
        and all(node.get("Resources", {}).get(name, 0.0) >= count for name, count in needed.items())
    ]
    best = min(fit, key=lambda node: (busy.get(str(node["NodeID"]), 0), str(node["NodeID"])), default=None)
    return None if best is None else str(best["NodeID"])


class RayCluster:
    """A Ray cluster: one task for each order, pinned to a node."""

    def __init__(self, settings: RaySettings, execute: OrderRunner) -> None:
        """Connect to the cluster. Raises PreflightError when there is none."""
        self._ray = connected(settings.ray.init.address)
        self._remote = settings.ray.remote
        self._at_once = settings.runs_per_machine
        self._execute = execute
        self._tasks: dict[str, tuple[Any, str]] = {}
        self._cancelled = False

    def room(self) -> int:
        """Return the number of free places on live nodes."""
        if self._at_once is None:
            return UNLIMITED
        alive = sum(bool(node.get("Alive")) for node in self._ray.nodes())
        return max(0, alive * self._at_once - len(self._tasks))

    def submit(self, orders: Sequence[RunOrder]) -> Sequence[str]:
        """Start a task for each order. Raises PreflightError when no node has the resources that one needs."""
        return [self._submit(order) for order in orders]

    def _submit(self, order: RunOrder) -> str:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        gpus = float(order.gpus) if self._remote.num_gpus is None else self._remote.num_gpus
        needed = {"CPU": self._remote.num_cpus, "GPU": gpus, **self._remote.resources}
        busy = Counter(node for _, node in self._tasks.values())
        node = chosen_node(self._ray.nodes(), {name: count for name, count in needed.items() if count}, busy)
        if node is None:
            wanted = ", ".join(f"{count:g} {name}" for name, count in needed.items() if count)
            raise PreflightError(
                f"{order.run} needs {wanted}, and no node of the Ray cluster has that; "
                "check 'ray status', hydra.launcher.ray.remote and gpu.count"
            )
        options: dict[str, Any] = {
            "num_cpus": self._remote.num_cpus,
            "num_gpus": gpus,
            "resources": dict(self._remote.resources) or None,
            # GPU memory and environment variables of a run end with its process
            "max_calls": 1,
            "max_retries": 0,
            "scheduling_strategy": "SPREAD"
            if self._at_once is None
            else NodeAffinitySchedulingStrategy(node, soft=False),
        }
        task = self._ray.remote(**options)(_execute).remote(self._execute, order)
        name: str = task.task_id().hex()[:16]
        self._tasks[name] = (task, node)
        return name

    def running_on(self, job: str) -> str | None:
        """Return the address of the chosen node; null if Ray chooses."""
        if self._at_once is None:
            return None
        node = self._tasks[job][1]
        return next((str(n["NodeManagerAddress"]) for n in self._ray.nodes() if n["NodeID"] == node), None)

    def poll(self, job: str) -> JobEnd | None:
        """Return how a job ended; null while it has not. Dead nodes, crashed workers and exceptions count as lost."""
        task = self._tasks[job][0]
        ready, _ = self._ray.wait([task], timeout=0)
        if not ready:
            return None
        del self._tasks[job]
        try:
            return JobEnd(reply=self._ray.get(task))
        except Exception as error:  # noqa: BLE001 - Ray raises many types; one line says what ended the task
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            kind = type(error).__name__.removeprefix("RayTaskError(").removesuffix(")")
            return JobEnd(lost=f"{kind}: {(lines[-1] if kind.endswith('Error') and lines else '')[:300]}")

    def cancel(self) -> None:
        """Interrupt all tasks; a run handles it like Ctrl-C."""
        if not self._cancelled:
            for task, _ in self._tasks.values():
                self._ray.cancel(task, force=False)
        self._cancelled = True

    def close(self) -> None:
        """Disconnect; the cluster keeps running."""
        self._ray.shutdown()


def _execute(execute: OrderRunner, order: RunOrder) -> Any:
    return execute(order)
