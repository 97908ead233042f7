"""Orders as tasks on the nodes of a Ray cluster."""

from __future__ import annotations

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
    """What makes this launcher impossible here."""
    if importlib.util.find_spec("ray") is None:
        return ["hydra/launcher=ray needs ray: pip install 'servebench-suite[ray]'"]
    return []


def connected(address: str) -> Any:
    """The ray module, connected to a cluster: `auto` is RAY_ADDRESS, else that of this machine. Raises PreflightError."""
    import ray

    where = os.environ.get("RAY_ADDRESS") or "auto" if address == "auto" else address
    # Ray takes the signals, and a study wants to stop in order
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    try:
        ray.init(address=where, logging_level="ERROR", log_to_driver=False, namespace="servebench")
    except Exception as error:
        reason = str(error).strip().splitlines()
        told = reason[0] if reason else type(error).__name__
        place = "on this machine" if where == "auto" else f"at {where}"
        raise PreflightError(
            f"no Ray cluster {place}: {told}; start one with 'ray start --head', or name it with RAY_ADDRESS or "
            "hydra.launcher.ray.init.address="
        ) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return ray


def chosen_node(nodes: Sequence[Mapping[str, Any]], needed: Mapping[str, float], busy: Mapping[str, int]) -> str | None:
    """The living node that has what a run needs and the fewest runs; null when none has as much. Pure."""
    fit = [
        node
        for node in nodes
        if node.get("Alive")
        and all(node.get("Resources", {}).get(name, 0.0) >= count for name, count in needed.items())
    ]
    best = min(fit, key=lambda node: (busy.get(str(node["NodeID"]), 0), str(node["NodeID"])), default=None)
    return None if best is None else str(best["NodeID"])


class RayCluster:
    """Tasks of Ray, each bound to the node that is chosen for it."""

    def __init__(self, settings: RaySettings, carry: OrderRunner) -> None:
        """Raises PreflightError when there is no cluster."""
        self._ray = connected(settings.ray.init.address)
        self._remote = settings.ray.remote
        self._at_once = settings.runs_per_machine
        self._carry = carry
        self._tasks: dict[str, tuple[Any, str]] = {}
        self._asked = False

    def room(self) -> int:
        """As many as there are places on living nodes."""
        if self._at_once is None:
            return UNLIMITED
        alive = sum(bool(node.get("Alive")) for node in self._ray.nodes())
        return max(0, alive * self._at_once - len(self._tasks))

    def submit(self, orders: Sequence[RunOrder]) -> Sequence[str]:
        """A task for each. Raises PreflightError when no node has what one needs."""
        return [self._submit(order) for order in orders]

    def _submit(self, order: RunOrder) -> str:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        gpus = float(order.gpus) if self._remote.num_gpus is None else self._remote.num_gpus
        needed = {"CPU": self._remote.num_cpus, "GPU": gpus, **self._remote.resources}
        busy = Counter(node for _, node in self._tasks.values())
        node = chosen_node(self._ray.nodes(), {name: count for name, count in needed.items() if count}, busy)
        if node is None:
            asked = ", ".join(f"{count:g} {name}" for name, count in needed.items() if count)
            raise PreflightError(
                f"{order.run} needs {asked}, and no node of the Ray cluster has as much; "
                "see 'ray status', hydra.launcher.ray.remote and gpu.count"
            )
        options: dict[str, Any] = {
            "num_cpus": self._remote.num_cpus,
            "num_gpus": gpus,
            "resources": dict(self._remote.resources) or None,
            # an engine's GPU memory and a run's environment end with its process
            "max_calls": 1,
            "max_retries": 0,
            "scheduling_strategy": "SPREAD"
            if self._at_once is None
            else NodeAffinitySchedulingStrategy(node, soft=False),
        }
        task = self._ray.remote(**options)(_carried).remote(self._carry, order)
        name: str = task.task_id().hex()[:16]
        self._tasks[name] = (task, node)
        return name

    def running_on(self, job: str) -> str | None:
        """The address of the node that was chosen; null where Ray chooses."""
        if self._at_once is None:
            return None
        node = self._tasks[job][1]
        return next((str(n["NodeManagerAddress"]) for n in self._ray.nodes() if n["NodeID"] == node), None)

    def poll(self, job: str) -> JobEnd | None:
        """Whether it ended. A node that died, a worker that crashed and a run that raised are lost, in Ray's words."""
        task = self._tasks[job][0]
        ready, _ = self._ray.wait([task], timeout=0)
        if not ready:
            return None
        del self._tasks[job]
        try:
            return JobEnd(answer=self._ray.get(task))
        except Exception as error:  # noqa: BLE001 - Ray has many; what ended the task is told in one line
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            kind = type(error).__name__.removeprefix("RayTaskError(").removesuffix(")")
            return JobEnd(lost=f"{kind}: {(lines[-1] if kind.endswith('Error') and lines else '')[:300]}")

    def cancel(self) -> None:
        """Interrupt all: a run takes it as Ctrl-C."""
        if not self._asked:
            for task, _ in self._tasks.values():
                self._ray.cancel(task, force=False)
        self._asked = True

    def close(self) -> None:
        """Leave the cluster as it is."""
        self._ray.shutdown()


def _carried(carry: OrderRunner, order: RunOrder) -> Any:
    return carry(order)
