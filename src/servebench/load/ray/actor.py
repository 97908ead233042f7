"""An actor on a node of a Ray cluster: starts the load worker there and hands out its spool."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from servebench.load.client.job import pack_job
from servebench.load.client.progress import WorkerProgress
from servebench.load.coordinator.drive import LOCAL_WORKER
from servebench.load.coordinator.worker_process import WorkerProcess
from servebench.util.errors import LoadError, StoreError


class RemoteWorker:
    """Created by Ray on its node. Its methods are called one after another."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="servebench-")
        self._spool = Path(self._folder.name) / "spool"
        self._spool.touch()
        self._progress = WorkerProgress.create(Path(self._folder.name) / "progress")
        self._worker: WorkerProcess | None = None
        self._last: dict[str, Any] | None = None

    def clock(self) -> int:
        """Return the wall clock of this node, in nanoseconds."""
        return time.time_ns()

    def prepare(self, head: dict[str, Any], blobs: list[bytes], timeout_s: float) -> dict[str, Any]:
        """Start the worker with a job whose files are on this node. Returns its first line: `ready`, or `failed` and why."""
        local = {**head, "spool": str(self._spool), "progress": str(Path(self._folder.name) / "progress")}
        try:
            self._worker = WorkerProcess(len(blobs) - head["fillers"], self._progress, LOCAL_WORKER)
            self._worker.send_job(pack_job(local, blobs))
        except LoadError as error:
            return {"failed": str(error)}
        return self._read_line(timeout_s) or {"failed": f"the load worker was not ready within {timeout_s:g} s"}

    def send_order(self, order: bytes) -> None:
        """Send an order to the worker; one that is gone misses it."""
        assert self._worker is not None
        self._worker.send_order(order)

    def poll(self, position: int, size: int) -> tuple[dict[str, int], dict[str, Any] | None, bytes]:
        """Return the counts, the last line if it has come, and up to `size` bytes of the spool from `position` on."""
        self._last = self._last or self._read_line(0.0)
        with self._spool.open("rb") as file:
            file.seek(position)
            data = file.read(size)
        return asdict(self._progress.read()), self._last, data

    def _read_line(self, timeout_s: float) -> dict[str, Any] | None:
        assert self._worker is not None
        try:
            return self._worker.read_line(timeout_s)
        except StoreError as error:
            return {"failed": str(error), "full": True}
        except LoadError as error:
            return {"failed": str(error)}
