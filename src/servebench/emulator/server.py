"""The step loop behind a socket: one thread, one event loop, no framework.

A step's end is a moment on an absolute schedule: when the loop comes late, the next step still begins when this one should
have ended, so lateness does not add up, and the throughput is the engine's. How late the tokens were handed to the kernel
is counted and told (`GET /emulator`, and `servebench_emulator_lateness_ms` on the metrics page).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from servebench import __version__
from servebench.contracts.emulation import EmulationSpec
from servebench.emulator import speech, text
from servebench.emulator.cost import StepCost, model_shape, with_profile
from servebench.emulator.metrics import metrics_page
from servebench.emulator.profiles import profile_for
from servebench.emulator.scheduler import EmulatedRequest, RunningStep, Scheduler
from servebench.emulator.speech import ParsedRequest, RequestRejected, ResponseWriter
from servebench.protocol.framing import LAST_CHUNK, encode_chunk

WAKE_EARLY_S = 0.0015
"""The event loop sleeps in whole milliseconds; the rest of a step is slept to the microsecond."""
CATCH_UP_S = 0.05
"""Lateness beyond this (the process was stopped, the machine swaps) is not caught up."""
LATENESS_KEPT = 20_000
HEAD_MAX = 65_536
SILENT_AFTER = 4
"""Tokens after which a stream is made to stall or is reset."""
SLOW = 10

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    b"X-Servebench-Emulated: true\r\nTransfer-Encoding: chunked\r\n\r\n"
)
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 422: "Unprocessable Entity"}


def log(line: str) -> None:
    """One line of the engine's log."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Lateness:
    """How late the last steps' tokens were written, in seconds."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=LATENESS_KEPT)
        self.steps = 0

    def add(self, seconds: float) -> None:
        """One step's."""
        self._last.append(max(0.0, seconds))
        self.steps += 1

    def summary_ms(self) -> dict[str, float]:
        """p50, p99 and max of the last steps; nothing before the first one."""
        if not self._last:
            return {}
        ordered = sorted(self._last)
        return {
            "p50": ordered[len(ordered) // 2] * 1e3,
            "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] * 1e3,
            "max": ordered[-1] * 1e3,
        }


class Stream:
    """An answer on its way to a client."""

    def __init__(
        self, connection: ServerConnection, wish: ParsedRequest, speaker: ResponseWriter, number: int | None
    ) -> None:
        self.connection = connection
        self.wish = wish
        self.speaker = speaker
        self.number = number
        self.opened = False
        self.sent = 0
        self.dead = False


class EmulatedEngine:
    """The emulated engine: its scheduler, its clock, its faults."""

    def __init__(self, spec: EmulationSpec, loop: asyncio.AbstractEventLoop) -> None:
        profile = profile_for(spec)
        self.spec = with_profile(spec, profile)
        self.core = Scheduler(self.spec, StepCost(self.spec, profile))
        self.profiled = profile is not None
        self.loop = loop
        self.lateness = Lateness()
        self.ready = False
        self.started_s = time.time()
        self._running: RunningStep | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._free_at = 0.0
        self.told: dict[int, str] = {}
        """What `/tokenize` made ids of, for `/detokenize`: as many as the vocabulary has."""
        self._served = 0
        self._answers = 0

    # requests

    def ask(self, connection: ServerConnection, path: str, raw: bytes) -> None:
        """A request for a generation. Raises Refused."""
        try:
            body = json.loads(raw)
        except ValueError as error:
            raise RequestRejected(400, f"the body is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise RequestRejected(400, "the body is no JSON object")
        wish = speech.parse_request(self.spec, path, body)
        self._admission(connection, wish)
        self._answers += 1
        probe = wish.prompt_tokens + len(wish.pieces) <= PROBE_TOKENS
        number = None
        if not probe:
            self._served += 1
            number = self._served
        answer_id = f"{'chatcmpl' if wish.chat else 'cmpl'}-{self.spec.seed}-{self._answers}"
        speaker = ResponseWriter(self.spec, wish, answer_id, int(self.started_s))
        stream = Stream(connection, wish, speaker, number)
        asked = EmulatedRequest(
            key=self._answers,
            prompt=wish.prompt,
            prompt_tokens=wish.prompt_tokens,
            pieces=wish.pieces,
            structured=wish.structured,
            owner=stream,
        )
        connection.busy_with(asked)
        if wish.stream and self.spec.emulation.first_chunk == "role_early":
            self._open(stream)
        self.core.submit(asked, time.monotonic())
        self._wake()

    def _admission(self, connection: ServerConnection, wish: ParsedRequest) -> None:
        """Out of memory, a fault's limit, a full queue. Raises Refused."""
        faults, own = self.spec.faults, self.spec.emulation
        inside = self.core.in_engine() + self.core.queued()
        if faults.out_of_memory_at is not None and inside + 1 >= faults.out_of_memory_at:
            log(own.out_of_memory_line)
            os._exit(1)
        if faults.reject_above is not None and inside >= faults.reject_above:
            raise RequestRejected(503, "Service Unavailable: too many requests")
        if own.overload != "queue" and self.core.full():
            self.core.totals.rejected += 1
            if own.overload == "event" and wish.stream:
                body = speech.error_body(self.spec, own.overload_status, "The request queue is full.")
                event = encode_chunk(b"data: " + json.dumps(body).encode() + b"\n\n")
                connection.write(SSE_HEAD + event + encode_chunk(b"data: [DONE]\n\n") + LAST_CHUNK)
                raise RejectedInStream
            raise RequestRejected(own.overload_status, "The request queue is full.")

    def gone(self, asked: EmulatedRequest) -> None:
        """Its client has closed the connection."""
        stream = asked.owner
        if isinstance(stream, Stream):
            stream.dead = True
        self.core.abort(asked)

    # the clock

    def _wake(self) -> None:
        """Something has come: begin a step if none is under way."""
        if self._running is None:
            self._plan(time.monotonic())

    def _plan(self, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ready_s = self.core.next_ready_s()
        if ready_s is None:
            return
        begin_s = max(self._free_at, ready_s, now_s - CATCH_UP_S) if self._free_at > now_s - CATCH_UP_S else now_s
        begin_s = max(begin_s, ready_s)
        if begin_s > now_s + WAKE_EARLY_S:
            self._timer = self.loop.call_at(begin_s - WAKE_EARLY_S, self._begin, begin_s)
        else:
            self._begin(begin_s)

    def _begin(self, begin_s: float) -> None:
        self._timer = None
        if self._running is not None:
            return
        step = self.core.begin(begin_s)
        if step is None:
            return
        self._running = step
        self.loop.call_at(step.ends_s - WAKE_EARLY_S, self._end)

    def _end(self) -> None:
        step = self._running
        assert step is not None
        left_s = step.ends_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        self._running = None
        self._free_at = step.ends_s
        for asked, _ in self.core.end(step, step.ends_s):
            self._tell(asked)
        self.lateness.add(time.monotonic() - step.ends_s)
        self._plan(time.monotonic())

    # answers

    def _open(self, stream: Stream) -> None:
        stream.opened = True
        opening = stream.speaker.opening()
        stream.connection.write(SSE_HEAD + (encode_chunk(opening) if opening else b""))

    def _hit(self, stream: Stream, every: int | None) -> bool:
        return every is not None and stream.number is not None and stream.number % every == 0

    def _tell(self, asked: EmulatedRequest) -> None:
        stream = asked.owner
        if not isinstance(stream, Stream) or stream.dead:
            return
        faults = self.spec.faults
        done = asked.generated >= asked.answer_tokens
        if asked.generated > SILENT_AFTER:
            if self._hit(stream, faults.stall_every):
                return
            if self._hit(stream, faults.reset_every):
                stream.dead = True
                stream.connection.reset()
                return
        counted = asked.answer_tokens
        if faults.usage_factor != 1.0:
            counted = max(1, round(counted * faults.usage_factor))
        if not stream.wish.stream:
            if done:
                stream.connection.answer(200, stream.speaker.whole(asked, counted))
                self._finish(asked)
            return
        if self._hit(stream, faults.slow_every):
            self._slowly(stream, asked, counted)
            return
        self._send(stream, asked, asked.generated, counted)

    def _send(self, stream: Stream, asked: EmulatedRequest, upto: int, counted: int) -> None:
        """The tokens from the last sent on, as one event, and what follows the last one."""
        parts = []
        if not stream.opened:
            stream.opened = True
            opening = stream.speaker.opening()
            parts.append(SSE_HEAD + (encode_chunk(opening) if opening else b""))
        done = upto >= asked.answer_tokens
        words = "".join(asked.pieces[stream.sent : upto])
        stream.sent = upto
        if words:
            parts.append(encode_chunk(stream.speaker.content(words, last=done)))
        if done:
            closing = stream.speaker.closing(asked, counted)
            parts.append((encode_chunk(closing) if closing else b"") + LAST_CHUNK)
        stream.connection.write(b"".join(parts))
        if done:
            self._finish(asked)

    def _slowly(self, stream: Stream, asked: EmulatedRequest, counted: int) -> None:
        """The engine is done with a token when it is; this client hears of it ten times later."""
        assert asked.first_s is not None
        delay_s = (time.monotonic() - asked.first_s) * (SLOW - 1)
        upto = asked.generated

        def later() -> None:
            if not stream.dead:
                self._send(stream, asked, upto, counted)

        self.loop.call_later(delay_s, later)

    def _finish(self, asked: EmulatedRequest) -> None:
        stream = asked.owner
        assert isinstance(stream, Stream)
        asked.owner = None
        stream.connection.free()

    # what it tells of itself

    def state(self) -> dict[str, Any]:
        """For `GET /emulator`: what is emulated, and how late it was."""
        return {
            "emulated": True,
            "engine": self.spec.engine,
            "profile": self.profiled,
            "seed": self.spec.seed,
            "lateness_ms": self.lateness.summary_ms(),
            "steps": self.lateness.steps,
            "max_num_seqs": self.core.running_max,
            "kv_tokens": self.core.memory.capacity,
        }

    def metrics(self) -> str:
        """The metrics page."""
        own = self.spec.emulation
        labels = own.metric_labels.replace("{model}", self.spec.model_name)
        return metrics_page(self.core, self.spec.metrics, labels, self.lateness.summary_ms())


PROBE_TOKENS = 24
"""Requests no longer than this in all are taken for the probes of a launcher, and are never hit by a fault."""


class RejectedInStream(Exception):
    """The refusal has been said already."""


def body_of(buffer: bytes | bytearray, start: int, headers: Mapping[str, str]) -> tuple[bytes, int] | None:
    """A request's body and where the next request begins; None while some of it is still to come. Pure.

    With a length, or in chunks (RFC 9112, 7.1), as clients send that stream their body. Raises ValueError.
    """
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        end = start + int(headers.get("content-length") or 0)
        return (bytes(buffer[start:end]), end) if len(buffer) >= end else None
    parts: list[bytes] = []
    place = start
    while (line_end := buffer.find(b"\r\n", place)) >= 0:
        size = int(bytes(buffer[place:line_end]).partition(b";")[0], 16)
        begin = line_end + 2
        if size == 0:
            # trailers, each a line, up to an empty one
            while (line_end := buffer.find(b"\r\n", begin)) > begin:
                begin = line_end + 2
            return (b"".join(parts), begin + 2) if line_end == begin else None
        parts.append(bytes(buffer[begin : begin + size]))
        place = begin + size + 2
        if len(buffer) < place:
            return None
    return None


class ServerConnection(asyncio.Protocol):
    """One HTTP/1.1 connection, kept alive; one request at a time."""

    def __init__(self, engine: EmulatedEngine) -> None:
        self._engine = engine
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._asked: EmulatedRequest | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop: whatever was asked for is not wanted any more."""
        self._transport = None
        if self._asked is not None:
            self._engine.gone(self._asked)
            self._asked = None

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._buffer += data
        if self._asked is None:
            self._next()

    def write(self, data: bytes) -> None:
        """Bytes to the client, if it is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def reset(self) -> None:
        """End the connection with a reset."""
        if self._transport is not None:
            self._transport.abort()

    def busy_with(self, asked: EmulatedRequest) -> None:
        """Until its answer is out nothing else is read from this connection."""
        self._asked = asked

    def free(self) -> None:
        """The answer is out."""
        self._asked = None
        if self._buffer:
            self._engine.loop.call_soon(self._next)

    def close(self) -> None:
        """End the connection once what was written is out."""
        if self._transport is not None:
            self._transport.close()

    def answer(self, status: int, body: Any, kind: str = "application/json") -> None:
        """A whole response."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        head = (
            f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\nContent-Type: {kind}\r\n"
            f"X-Servebench-Emulated: true\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self.write(head.encode() + data)

    def _next(self) -> None:
        """Take requests from the buffer while there are whole ones and none is being answered."""
        while self._asked is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > HEAD_MAX:
                    self.reset()
                return
            first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            try:
                found = body_of(self._buffer, end + 4, headers)
            except ValueError:
                self.answer(400, speech.error_body(self._engine.spec, 400, "the length of the body cannot be read"))
                self.close()
                return
            if found is None:
                if headers.get("expect") == "100-continue":
                    self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            raw, after = found
            del self._buffer[:after]
            method, _, rest = first.partition(" ")
            self._dispatch(method, rest.split(" ", 1)[0].partition("?")[0], raw)

    def _dispatch(self, method: str, path: str, raw: bytes) -> None:
        spec = self._engine.spec
        try:
            if path == "/emulator":
                self.answer(200, self._engine.state())
            elif not self._engine.ready and path != "/v1/models":
                raise RequestRejected(spec.emulation.loading_status or 503, "Loading model")
            elif method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
                self._engine.ask(self, path, raw)
            else:
                self._small(method, path, raw)
        except RequestRejected as refused:
            self.answer(refused.status, speech.error_body(spec, refused.status, refused.message))
        except RejectedInStream:
            pass

    def _small(self, method: str, path: str, raw: bytes) -> None:
        """Everything that is no generation. Raises Refused."""
        engine, spec = self._engine, self._engine.spec
        if path == "/v1/models":
            listed = {"id": spec.model_name, "object": "model", "owned_by": "servebench-emulator"}
            self.answer(200, {"object": "list", "data": [listed]})
        elif path == spec.health_path:
            self.answer(200, {"status": "ok"})
        elif path == spec.metrics_path:
            self.answer(200, engine.metrics(), "text/plain; version=0.0.4")
        elif path == spec.version_path or path in (known.partition("?")[0] for known in spec.settings_paths):
            self.answer(200, {"version": f"emulated {__version__}", **engine.state()})
        elif method == "POST" and path == spec.reset_path:
            # as vLLM: not while requests hold blocks
            self.answer(200, {"success": engine.core.reset_cache()})
        elif method == "POST" and path in ("/tokenize", spec.tokenize_path):
            self._tokenize(raw)
        elif method == "POST" and path == "/detokenize":
            self._detokenize(raw)
        else:
            raise RequestRejected(404, "Not Found")

    def _tokenize(self, raw: bytes) -> None:
        try:
            body = json.loads(raw)
            given = str(body.get("content", body.get("prompt", "")))
        except (ValueError, AttributeError) as error:
            raise RequestRejected(400, "the body is no JSON object") from error
        pieces = text.split_tokens(given)
        tokens = [text.prompt_key(0, piece) % 50_000 for piece in pieces]
        self._engine.told.update(zip(tokens, pieces, strict=True))
        self.answer(200, {"tokens": tokens, "count": len(tokens), "max_model_len": self._engine.spec.max_model_len})

    def _detokenize(self, raw: bytes) -> None:
        """The text of ids: what `/tokenize` made them of, else a text as long. vLLM says `prompt`, llama.cpp `content`."""
        try:
            ids = [int(one) for one in json.loads(raw)["tokens"]]
        except (ValueError, TypeError, KeyError) as error:
            raise RequestRejected(400, "the body is no JSON object with tokens") from error
        said = "".join(self._engine.told.get(one) or text.text_of_ids([one]) for one in ids)
        self.answer(200, {"prompt": said, "content": said})


def _leave_child() -> None:
    """A process in a session of its own, so that a signal to the group does not reach it."""
    words = [sys.executable, "-S", "-E", "-c", "import time; time.sleep(3600)"]
    subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)


async def _load(spec: EmulationSpec) -> None:
    """The cold start, with the engine's own words."""
    gigabytes = model_shape(spec).weight_bytes / 1e9
    stages = spec.emulation.loading
    for index, stage in enumerate(stages):
        await asyncio.sleep((stage.seconds + stage.seconds_per_gb * gigabytes) * spec.time_scale)
        if index == len(stages) // 2:
            await _faulty(spec)
        if index < len(stages) - 1:
            log(stage.line.replace("{gb}", f"{gigabytes:.2f}"))


async def _faulty(spec: EmulationSpec) -> None:
    if spec.faults.die_in_loading:
        log(spec.emulation.out_of_memory_line)
        os._exit(1)
    if spec.faults.hang_in_loading:
        await asyncio.Event().wait()


async def serve(spec: EmulationSpec) -> None:
    """Load, listen, answer until told to stop."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        if spec.faults.ignore_sigterm:
            signal.signal(number, signal.SIG_IGN)
        else:
            loop.add_signal_handler(number, stopped.set)
    log(f"servebench emulator {__version__}: an emulated {spec.engine}, not a real one")
    if spec.faults.leave_child:
        _leave_child()
    engine = EmulatedEngine(spec, loop)
    listening: list[asyncio.Server] = []

    async def listen() -> None:
        factory: Callable[[], asyncio.Protocol] = lambda: ServerConnection(engine)  # noqa: E731
        listening.append(await loop.create_server(factory, spec.host, spec.port, backlog=8192))

    async def start() -> None:
        if spec.emulation.loading_status is not None:
            await listen()
        await _load(spec)
        engine.ready = True
        if not listening:
            await listen()
        log(spec.emulation.loading[-1].line)

    starting = asyncio.ensure_future(start())
    waiting = asyncio.ensure_future(stopped.wait())
    await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()
    await waiting
    log("shutting down")
