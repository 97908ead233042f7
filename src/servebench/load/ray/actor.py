"""An actor on a node of a Ray cluster: starts the load worker there and hands out its spool."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from servebench.load.client.job import pack_job
from servebench.load.client.progress import WorkerProgress

END_TIMEOUT_S = 5.0


class RemoteWorker:
    """Created by Ray on its node. Its methods are called one after another."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="servebench-")
        self._spool = Path(self._folder.name) / "spool"
        self._spool.touch()
        self._progress = WorkerProgress.create(Path(self._folder.name) / "progress")
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    def clock(self) -> int:
        """Return the wall clock of this node, in nanoseconds."""
        return time.time_ns()

    def prepare(self, head: dict[str, Any], blobs: list[bytes], timeout_s: float) -> dict[str, Any]:
        """Start the worker with a job whose files are on this node. Returns its first line: `ready`, or `failed` and why."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "servebench.load.client.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert self._process.stdin is not None
        local = {**head, "spool": str(self._spool), "progress": str(Path(self._folder.name) / "progress")}
        self._process.stdin.write(pack_job(local, blobs))
        self._process.stdin.flush()
        line = self._read_line(timeout_s)
        return {"failed": f"the load worker was not ready within {timeout_s:g} s"} if line is None else line

    def send_order(self, order: bytes) -> None:
        """Send an order to the worker; one that is gone misses it."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(order)
            self._process.stdin.flush()

    def poll(self, position: int, size: int) -> tuple[dict[str, int], dict[str, Any] | None, bytes]:
        """Return the counts, the last line if it has come, and up to `size` bytes of the spool from `position` on."""
        line = self._read_line(0.0)
        with self._spool.open("rb") as file:
            file.seek(position)
            data = file.read(size)
        return asdict(self._progress.read()), line, data

    def _read_line(self, timeout_s: float) -> dict[str, Any] | None:
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            if not select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            part = os.read(output, 65_536)
            if not part:
                return {"failed": f"the load worker died with exit code {self._process.wait(END_TIMEOUT_S)}"}
            self._received += part
        line: dict[str, Any] = orjson.loads(self._received.partition(b"\n")[0])
        if "ready" in line:
            self._received = self._received.partition(b"\n")[2]
        return line
