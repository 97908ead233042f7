"""What an emulated engine keeps of the times of its requests until it is asked, exact to the clock: a file, or a list.

The file is that of SGLang's `--export-metrics-to-file` (0.5.23), the list that of TensorRT-LLM's `GET /perf_metrics`.
"""

import contextlib
import json
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from servebench.contracts.emulation import EmulationSpec
from servebench.emulator.scheduler import EmulatedRequest

FLUSH_S = 0.2
QUEUED_MAX = 100_000
"""As in the engines, what nobody reads is lost in the end."""


class LateTimings:
    """Collects the times of requests; a thread writes the file, so that tokens are not late."""

    def __init__(self, spec: EmulationSpec) -> None:
        self._kind = spec.emulation.kept if spec.kept_folder is not None else None
        self._folder = Path(spec.kept_folder or "")
        self._kept: deque[dict[str, Any]] = deque(maxlen=QUEUED_MAX)
        self._offset_s = time.time() - time.monotonic()
        if self._kind == "file":
            threading.Thread(target=self._run, name="late", daemon=True).start()

    def add(self, request: EmulatedRequest, answer_id: str) -> None:
        """Add a request whose answer is complete."""
        if self._kind is None or request.admitted_s is None or request.first_s is None:
            return
        self._kept.append(self._line(request, answer_id) if self._kind == "file" else _item(request, answer_id))

    def take(self) -> list[dict[str, Any]] | None:
        """Return what the list has and empty it; None if there is no list."""
        if self._kind != "list":
            return None
        return [self._kept.popleft() for _ in range(len(self._kept))]

    def _line(self, request: EmulatedRequest, answer_id: str) -> dict[str, Any]:
        assert request.admitted_s is not None
        assert request.first_s is not None
        moments = {
            "forward_entry_time": request.admitted_s,
            "prefill_finished_time": request.first_s,
            "request_received_ts": request.arrived_s,
            "request_finished_ts": request.last_s,
        }
        wall = {name: at_s + self._offset_s for name, at_s in moments.items()}
        return {"request_parameters": "{}", "id": answer_id, "queue_time": request.admitted_s - request.ready_s, **wall}

    def _run(self) -> None:
        while True:
            time.sleep(FLUSH_S)
            with contextlib.suppress(OSError):
                if self._kept:
                    self._write()

    def _write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = time.strftime("sglang-request-metrics-%Y%m%d_%H.log")
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(self._kept.popleft()) + "\n" for _ in range(len(self._kept)))


def _item(request: EmulatedRequest, answer_id: str) -> dict[str, Any]:
    times = {
        "arrival_time": request.ready_s,
        "first_scheduled_time": request.admitted_s,
        "first_token_time": request.first_s,
        "last_token_time": request.last_s,
    }
    return {"request_id": int(answer_id.rpartition("-")[2]), "perf_metrics": {"timing_metrics": times}}
