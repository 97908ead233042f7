"""What an emulated engine says about its requests beside its answers, exact to the clock: spans, a file, or a list.

Spans are those of vLLM 0.32 (`v1/engine/output_processor.py`) and SGLang 0.5.23 (`srt/observability`), sent as OTLP in JSON; the
file is that of SGLang's `--export-metrics-to-file`, the list that of TensorRT-LLM's `GET /perf_metrics`.
"""

import contextlib
import json
import os
import threading
import time
import urllib.request
from collections import deque
from pathlib import Path
from typing import Any

from servebench.contracts.emulation import EmulationSpec
from servebench.emulator.scheduler import EmulatedRequest

FLUSH_S = 0.2
TIMEOUT_S = 5.0
QUEUED_MAX = 100_000
"""As in the engines, what cannot be sent is lost in the end."""
LATENCY = "gen_ai.latency."


class LateTimings:
    """Collects the times of requests; a thread sends or writes them, so that tokens are not late."""

    def __init__(self, spec: EmulationSpec) -> None:
        self._spec = spec
        self._spans: deque[dict[str, Any]] = deque(maxlen=QUEUED_MAX)
        self._kept: deque[dict[str, Any]] = deque(maxlen=QUEUED_MAX)
        self._offset_s = time.time() - time.monotonic()
        own = spec.emulation
        self._traced = own.spans is not None and spec.spans_endpoint is not None
        self._keeps = own.kept is not None and spec.kept_folder is not None
        if self._traced or (self._keeps and own.kept == "file"):
            threading.Thread(target=self._run, name="late", daemon=True).start()

    def add(self, request: EmulatedRequest, answer_id: str, traceparent: str) -> None:
        """Add a request whose answer is complete."""
        if not request.first_s:
            return
        if self._traced:
            kind = _sglang_spans if self._spec.emulation.spans == "sglang" else _vllm_spans
            parts = traceparent.split("-")
            trace_id, parent = parts[1:3] if len(parts) == 4 else (os.urandom(16).hex(), "")
            for name, start_s, end_s, attributes in kind(request, answer_id):
                self._spans.append(
                    {
                        "traceId": trace_id,
                        "spanId": os.urandom(8).hex(),
                        "parentSpanId": parent,
                        "name": name,
                        "startTimeUnixNano": str(self._wall_ns(start_s)),
                        "endTimeUnixNano": str(self._wall_ns(end_s)),
                        "attributes": [{"key": key, "value": _value(value)} for key, value in attributes.items()],
                    }
                )
        if self._keeps:
            line = self._line if self._spec.emulation.kept == "file" else _item
            self._kept.append(line(request, answer_id))

    def take(self) -> list[dict[str, Any]] | None:
        """Return what the list has and empty it; None if there is no list."""
        if self._spec.emulation.kept != "list":
            return None
        return [self._kept.popleft() for _ in range(len(self._kept))]

    def _wall_ns(self, at_s: float) -> int:
        return int((at_s + self._offset_s) * 1e9)

    def _line(self, request: EmulatedRequest, answer_id: str) -> dict[str, Any]:
        moments = {
            "forward_entry_time": request.admitted_s,
            "prefill_finished_time": request.first_s,
            "request_received_ts": request.arrived_s,
            "request_finished_ts": request.last_s,
        }
        wall = {name: at_s + self._offset_s for name, at_s in moments.items()}
        return {"request_parameters": "{}", "id": answer_id, "queue_time": request.admitted_s - request.ready_s, **wall}

    def _run(self) -> None:
        # not by a proxy of the environment
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            time.sleep(FLUSH_S)
            with contextlib.suppress(OSError):
                if self._traced and self._spans:
                    self._send(opener)
                if self._kept and self._spec.emulation.kept == "file":
                    self._write()

    def _send(self, opener: urllib.request.OpenerDirector) -> None:
        spans = [self._spans.popleft() for _ in range(min(512, len(self._spans)))]
        body = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
        headers = {"Content-Type": "application/json"}
        assert self._spec.spans_endpoint is not None
        opener.open(
            urllib.request.Request(self._spec.spans_endpoint, json.dumps(body).encode(), headers),  # noqa: S310 - our own
            timeout=TIMEOUT_S,
        ).close()

    def _write(self) -> None:
        folder = Path(self._spec.kept_folder or "")
        folder.mkdir(parents=True, exist_ok=True)
        name = time.strftime("sglang-request-metrics-%Y%m%d_%H.log")
        with (folder / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(self._kept.popleft()) + "\n" for _ in range(len(self._kept)))


Described = list[tuple[str, float, float, dict[str, Any]]]
"""Name, start and end in the clock's seconds, and attributes of each span."""


def _value(value: Any) -> dict[str, Any]:
    return {"stringValue": value} if isinstance(value, str) else {"doubleValue": value}


def _latencies(request: EmulatedRequest) -> dict[str, float]:
    """Return the attributes that both engines have; all are seconds."""
    return {
        LATENCY + "time_to_first_token": request.first_s - request.arrived_s,
        LATENCY + "e2e": request.last_s - request.arrived_s,
        LATENCY + "time_in_model_decode": request.last_s - request.first_s,
    }


def _vllm_spans(request: EmulatedRequest, answer_id: str) -> Described:
    own = {
        "gen_ai.request.id": answer_id,
        LATENCY + "time_in_queue": request.admitted_s - request.ready_s,
        LATENCY + "time_in_model_prefill": request.first_s - request.admitted_s,
        LATENCY + "time_in_model_inference": request.last_s - request.admitted_s,
    }
    return [("llm_request", request.arrived_s, request.last_s, {**_latencies(request), **own})]


def _sglang_spans(request: EmulatedRequest, answer_id: str) -> Described:
    own = {
        "rid": answer_id,
        "module": "sglang::request",
        # from the dispatch to the scheduler on: with the queue
        LATENCY + "time_in_model_prefill": request.first_s - request.ready_s,
        LATENCY + "time_in_model_inference": request.last_s - request.ready_s,
    }
    return [
        ("prefill_waiting", request.ready_s, request.admitted_s, {}),
        ("prefill_forward", request.admitted_s, request.first_s, {}),
        ("decode_forward", request.first_s, request.last_s, {}),
        (f" Req {answer_id[:8]}", request.arrived_s, request.last_s, {**_latencies(request), **own}),
    ]


def _item(request: EmulatedRequest, answer_id: str) -> dict[str, Any]:
    times = {
        "arrival_time": request.ready_s,
        "first_scheduled_time": request.admitted_s,
        "first_token_time": request.first_s,
        "last_token_time": request.last_s,
    }
    return {"request_id": int(answer_id.rpartition("-")[2]), "perf_metrics": {"timing_metrics": times}}
