"""What runs on a node of a Ray cluster: an actor that starts the load worker there and hands out what it writes down."""

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
from servebench.load.client.progress import Progress

END_TIMEOUT_S = 5.0


class RemoteWorker:
    """Made by Ray on its node. Its methods are called one after another."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="servebench-")
        self._spool = Path(self._folder.name) / "spool"
        self._spool.touch()
        self._progress = Progress.create(Path(self._folder.name) / "progress")
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""

    def clock(self) -> int:
        """The wall clock here, in nanoseconds."""
        return time.time_ns()

    def prepare(self, head: dict[str, Any], blobs: list[bytes], timeout_s: float) -> dict[str, Any]:
        """Start the worker with a job whose files are here; what it says when it has its connections, or why it has not."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "servebench.load.client.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert self._process.stdin is not None
        here = {**head, "spool": str(self._spool), "progress": str(Path(self._folder.name) / "progress")}
        self._process.stdin.write(pack_job(here, blobs))
        self._process.stdin.flush()
        said = self._line(timeout_s)
        return {"failed": f"the load worker was not ready within {timeout_s:g} s"} if said is None else said

    def order(self, order: bytes) -> None:
        """Tell the worker to go or to stop."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(order)
            self._process.stdin.flush()

    def poll(self, position: int, most: int) -> tuple[dict[str, int], dict[str, Any] | None, bytes]:
        """How far it is, its last line if it has said it, and what it wrote down from `position` on, at most so much."""
        said = self._line(0.0)
        with self._spool.open("rb") as file:
            file.seek(position)
            data = file.read(most)
        return asdict(self._progress.read()), said, data

    def _line(self, timeout_s: float) -> dict[str, Any] | None:
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._said:
            if not select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            part = os.read(output, 65_536)
            if not part:
                return {"failed": f"the load worker died with exit code {self._process.wait(END_TIMEOUT_S)}"}
            self._said += part
        said: dict[str, Any] = orjson.loads(self._said.partition(b"\n")[0])
        if "ready" in said:
            self._said = self._said.partition(b"\n")[2]
        return said
