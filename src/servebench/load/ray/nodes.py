"""The nodes of a Ray cluster, without importing ray into this process."""

from __future__ import annotations

import subprocess
import sys

import orjson

from servebench.load.coordinator.worker_process import READY_TIMEOUT_S, worker_environment
from servebench.util.errors import LoadError


def ray_nodes() -> list[str]:
    """Return the ids of the living nodes of the Ray cluster at RAY_ADDRESS, else of this machine's. Raises LoadError."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "servebench.load.ray.bridge", "--nodes"],
            capture_output=True,
            timeout=READY_TIMEOUT_S,
            env=worker_environment(),
            check=False,
        )
        answer = orjson.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        raise LoadError("the Ray cluster did not list its nodes; check it with 'ray status'") from error
    if "failed" in answer:
        raise LoadError(str(answer["failed"]))
    nodes: list[str] = answer["nodes"]
    return nodes
