"""The emulated engine: the scheduler's step loop in real time, and the events that its answers are sent as.

How late tokens were handed to the kernel is measured and reported (`GET /emulator`, and `servebench_emulator_lateness_ms` on
the metrics page).
"""

import asyncio
import json
import os
import sys
import time
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from servebench.contracts.emulation import EmulationSpec
from servebench.emulator.cost import StepCost, profile_for, with_profile
from servebench.emulator.late import LateTimings
from servebench.emulator.requests import ParsedRequest, RejectedInStream, RequestRejected, parse_request
from servebench.emulator.responses import SSE_HEAD, WRITERS, ResponseWriter, error_body
from servebench.emulator.scheduler import BatchScheduler, EmulatedRequest, RunningStep
from servebench.protocol.framing import LAST_CHUNK, encode_chunk

WAKE_EARLY_S = 0.0015
"""The event loop sleeps in whole milliseconds; the rest of a step is slept with microsecond precision."""
CATCH_UP_S = 0.05
"""Lateness beyond this (the process was stopped, the machine swaps) is not caught up."""
FAULT_AFTER_TOKENS = 4
"""Tokens after which a stream stalls or is reset by a fault."""
SLOW_FACTOR = 10
ID_BEGINS = {"chat": "chatcmpl-", "completions": "cmpl-", "responses": "resp_", "messages": "msg_"}
"""How the ids of answers begin, by API."""
LATENESS_STEPS = 20_000
"""Lateness is reported of so many last steps."""
PROBE_TOKENS = 24
"""Requests with at most this many tokens in total are treated as a launcher's probes, and faults never hit them."""
GAUGES = frozenset({"requests_running", "requests_waiting", "kv_cache_usage"})


def log(line: str) -> None:
    """Write one line of the engine's log."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class AnswerConnection(Protocol):
    """The connection on which an answer is sent."""

    def write(self, data: bytes) -> None:
        """Send bytes to the client, unless it is gone."""

    def reset(self) -> None:
        """Reset the connection."""

    def respond(self, status: int, body: Any) -> None:
        """Send a complete response."""

    def finish_request(self) -> None:
        """The answer is complete: continue with the next request."""


@dataclass(slots=True, eq=False)
class Stream:
    """An answer that is being sent to a client. `number` counts the requests that faults may hit; null for a probe."""

    connection: AnswerConnection
    parsed: ParsedRequest
    writer: ResponseWriter
    number: int | None
    answer_id: str = ""
    traceparent: str = ""
    opened: bool = False
    sent: int = 0
    dead: bool = False


class EmulatedEngine:
    """The emulated engine: its scheduler, its clock and its faults.

    The end of a step is a moment on an absolute schedule: if the loop is late, the next step still begins when this one should
    have ended. So lateness does not add up, and the throughput is the engine's.
    """

    def __init__(self, spec: EmulationSpec, loop: asyncio.AbstractEventLoop) -> None:
        profile = profile_for(spec)
        self.spec = with_profile(spec, profile)
        self.scheduler = BatchScheduler(self.spec, StepCost(self.spec, profile))
        self.profiled = profile is not None
        self.loop = loop
        self._late_s: deque[float] = deque(maxlen=LATENESS_STEPS)
        """How late the tokens of the last steps were written."""
        self.ready = False
        self.started_s = time.time()
        self._step: RunningStep | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_step_s = 0.0
        self.token_texts: dict[int, str] = {}
        """The texts of the ids that `/tokenize` returned, for `/detokenize`: at most as many as the vocabulary has."""
        self._faultable = 0
        self._answers = 0
        self.late = LateTimings(spec)

    # requests

    def generate(self, connection: AnswerConnection, path: str, raw: bytes, traceparent: str = "") -> EmulatedRequest:
        """Start a generation and return its request; its spans belong to the trace of `traceparent`. Raises RequestRejected,
        RejectedInStream."""
        try:
            body = json.loads(raw)
        except ValueError as error:
            raise RequestRejected(400, f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise RequestRejected(400, "the body is not a JSON object")
        parsed = parse_request(self.spec, path, body)
        self._check_admission(connection, parsed)
        self._answers += 1
        faults = self.spec.faults
        probe = parsed.prompt_tokens + len(parsed.pieces) <= PROBE_TOKENS
        number = None
        if not probe:
            self._faultable += 1
            number = self._faultable
            if faults.refuse_every is not None and number % faults.refuse_every == 0:
                raise RequestRejected(HTTPStatus.TOO_MANY_REQUESTS, "too many requests a minute")
        # TensorRT-LLM names an answer by the number of its request
        seed = "" if self.spec.emulation.kept == "list" else f"{self.spec.seed}-"
        answer_id = f"{ID_BEGINS.get(parsed.api, '')}{seed}{self._answers}"
        writer = WRITERS.get(parsed.api, ResponseWriter)(self.spec, parsed, answer_id, int(self.started_s))
        stream = Stream(connection, parsed, writer, number, answer_id, traceparent)
        request = parsed.in_engine(self._answers, stream)
        if parsed.stream and self.spec.emulation.first_chunk == "role_early":
            connection.write(self._opening(stream))
        self.scheduler.submit(request, time.monotonic())
        if self._step is None:
            self._schedule(time.monotonic())
        return request

    def _check_admission(self, connection: AnswerConnection, parsed: ParsedRequest) -> None:
        """Apply out-of-memory and rejection faults and the queue limit. Raises RequestRejected, RejectedInStream."""
        faults, emulation = self.spec.faults, self.spec.emulation
        in_flight = self.scheduler.in_engine() + self.scheduler.queued()
        if faults.out_of_memory_at is not None and in_flight + 1 >= faults.out_of_memory_at:
            log(emulation.out_of_memory_line)
            os._exit(1)
        if (faults.reject_above is not None and in_flight >= faults.reject_above) or self.scheduler.rejects():
            if emulation.overload == "event" and parsed.stream:
                body = error_body(self.spec, emulation.overload_status, "The request queue is full.")
                event = encode_chunk(b"data: " + json.dumps(body).encode() + b"\n\n")
                connection.write(SSE_HEAD + event + encode_chunk(b"data: [DONE]\n\n") + LAST_CHUNK)
                raise RejectedInStream
            raise RequestRejected(emulation.overload_status, "The request queue is full.")

    def client_gone(self, request: EmulatedRequest) -> None:
        """Abort a request whose client has closed the connection."""
        stream = request.owner
        if isinstance(stream, Stream):
            stream.dead = True
        self.scheduler.abort(request)

    # the clock

    def _schedule(self, now_s: float) -> None:
        """Begin a step as soon as there is work."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ready_s = self.scheduler.next_ready_s()
        if ready_s is None:
            return
        begin_s = max(ready_s, self._next_step_s if self._next_step_s > now_s - CATCH_UP_S else now_s)
        if begin_s > now_s + WAKE_EARLY_S:
            self._timer = self.loop.call_at(begin_s - WAKE_EARLY_S, self._begin_step, begin_s)
        else:
            self._begin_step(begin_s)

    def _begin_step(self, begin_s: float) -> None:
        self._timer = None
        if self._step is not None:
            return
        step = self.scheduler.begin(begin_s)
        if step is None:
            return
        self._step = step
        self.loop.call_at(step.ends_s - WAKE_EARLY_S, self._end_step)

    def _end_step(self) -> None:
        step = self._step
        assert step is not None
        left_s = step.ends_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        self._step = None
        self._next_step_s = step.ends_s
        for request, _ in self.scheduler.end(step, step.ends_s):
            self._advance(request)
        self._late_s.append(max(0.0, time.monotonic() - step.ends_s))
        self._schedule(time.monotonic())

    # answers

    def _opening(self, stream: Stream) -> bytes:
        stream.opened = True
        opening = stream.writer.opening()
        return SSE_HEAD + (encode_chunk(opening) if opening else b"")

    def _is_hit(self, stream: Stream, every: int | None) -> bool:
        return every is not None and stream.number is not None and stream.number % every == 0

    def _advance(self, request: EmulatedRequest) -> None:
        stream = request.owner
        if not isinstance(stream, Stream) or stream.dead:
            return
        faults = self.spec.faults
        done = request.generated >= request.answer_tokens
        if request.generated > FAULT_AFTER_TOKENS:
            if self._is_hit(stream, faults.stall_every):
                return
            if self._is_hit(stream, faults.reset_every):
                stream.dead = True
                stream.connection.reset()
                return
        reported = request.answer_tokens
        if faults.usage_factor != 1.0:
            reported = max(1, round(reported * faults.usage_factor))
        if not stream.parsed.stream:
            if done:
                stream.connection.respond(200, stream.writer.whole(request, reported))
                self._finish(request)
            return
        if self._is_hit(stream, faults.slow_every):
            delay_s = (time.monotonic() - request.first_s) * (SLOW_FACTOR - 1)
            self.loop.call_later(delay_s, self._send, stream, request, request.generated, reported)
            return
        self._send(stream, request, request.generated, reported)

    def _send(self, stream: Stream, request: EmulatedRequest, upto: int, reported: int) -> None:
        """Send the tokens from the last sent one on as one event, and the closing events after the last token."""
        if stream.dead:
            return
        parts = [] if stream.opened else [self._opening(stream)]
        done = upto >= request.answer_tokens
        content = "".join(request.pieces[stream.sent : upto])
        stream.sent = upto
        if content:
            parts.append(encode_chunk(stream.writer.content(content, last=done)))
        if done:
            closing = stream.writer.closing(request, reported)
            parts.append((encode_chunk(closing) if closing else b"") + LAST_CHUNK)
        stream.connection.write(b"".join(parts))
        if done:
            self._finish(request)

    def _finish(self, request: EmulatedRequest) -> None:
        stream = request.owner
        assert isinstance(stream, Stream)
        request.owner = None
        self.late.add(request, stream.answer_id, stream.traceparent)
        stream.connection.finish_request()

    # state

    def state(self) -> dict[str, Any]:
        """Return what is emulated and how late it was, for `GET /emulator`."""
        return {
            "emulated": True,
            "engine": self.spec.engine,
            "profile": self.profiled,
            "seed": self.spec.seed,
            "lateness_ms": self._lateness_ms(),
            "steps": self.scheduler.totals.steps,
            "max_num_seqs": self.scheduler.running_max,
            "kv_tokens": self.scheduler.memory.capacity,
        }

    def metrics(self) -> str:
        """Return the page of Prometheus metrics, under the engine's own names."""
        values = self.scheduler.metrics(time.monotonic())
        labels = self.spec.emulation.metric_labels.replace("{model}", self.spec.model_name)
        braces = f"{{{labels}}}" if labels else ""
        lines: list[str] = []
        for name, meaning in self.spec.metrics.items():
            if (value := values.get(meaning)) is not None:
                kind = "gauge" if meaning in GAUGES else "counter"
                lines += [f"# TYPE {name} {kind}", f"{name}{braces} {value:g}"]
        for name, value in self._lateness_ms().items():
            lines.append(f'servebench_emulator_lateness_ms{{statistic="{name}"}} {value:.4f}')
        return "\n".join(lines) + "\n"

    def _lateness_ms(self) -> dict[str, float]:
        ordered = sorted(self._late_s)
        places = {"p50": len(ordered) // 2, "p99": int(0.99 * len(ordered)), "max": -1}
        return {name: ordered[place] * 1e3 for name, place in places.items()} if ordered else {}
