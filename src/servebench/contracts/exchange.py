"""What passes between the plan, the load client and the measurement: planned requests, raw exchanges, the phase's report."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Literal, Self, overload

from servebench.util.tls import Trust

WireOutcome = Literal[
    "complete", "timeout", "reset", "refused", "closed", "cancelled", "too_large", "protocol", "tls", "abandoned",
    "session_ended",
]  # fmt: skip
"""How a request ended for the load client. `complete`: the HTTP message ended, whatever its status. `closed`: the server
closed the connection early. `cancelled`: the client stopped first. `too_large`: more bytes than an answer may have.
`protocol`: not HTTP. `abandoned`: the client closed on purpose, as a user who leaves. `session_ended`: never sent, because
an answer that its prompt needs failed."""

ANSWER_BYTES_MAX = 64 << 20
"""The most bytes of one answer whose requested length is unknown."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests are sent. `headers` are sent with each; they may be secret, so a Target is never logged."""

    host: str
    port: int
    tls: bool = False
    verify_tls: Trust = True
    server_name: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        """Return it without the headers, which may hold an API key."""
        return f"Target({'https' if self.tls else 'http'}://{self.host}:{self.port})"


@dataclass(frozen=True, kw_only=True)
class PlannedRequest:
    """A request ready to send: `path` and `body` are final. `scheduled_s`, from the start, is set in open loops.

    Requests of one session are sent one after another, each `think_s` after the previous answer. With `cancel_after_s` the
    client abandons the request that long after sending.

    The request also waits for those in `after`. `holes` are (offset in `body`, id of an earlier request): the text of that
    answer is inserted there, escaped as in a JSON string. It waits for these answers, and is never sent if one failed.
    `headers` are sent with it besides those of the target.
    """

    request_id: str
    path: str
    body: bytes
    session_id: str | None = None
    scheduled_s: float | None = None
    think_s: float = 0.0
    cancel_after_s: float | None = None
    after: tuple[str, ...] = ()
    holes: tuple[tuple[int, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class PhaseFrame:
    """How a phase of load goes, whatever its requests: at most `concurrency` in flight. With `duration_s` the phase ends by time,
    and requests in flight may finish within `drain_s`.

    The last `fillers` of the requests are not measured: they keep the level while the measured ones end, and are cancelled
    when the last of these has ended.
    """

    concurrency: int
    timeout_s: float
    connect_timeout_s: float
    fillers: int = 0
    duration_s: float | None = None
    drain_s: float | None = None
    """Null: as long as the answers so far suggest (`Scheduler.drain_limit_s`)."""
    connections: int | None = None
    """How many connections are opened before the start; null: one for each request that can be in flight."""
    stream_starts_s: tuple[float, ...] | None = None
    """When each stream of a closed loop starts, in rising order; null: all at once. With `slices` after each of them opens."""
    slices: tuple[tuple[float, float], ...] = ()
    """When requests of a closed loop may be sent, as (opens, closes) in order; empty: all the time."""
    slice_drain_s: float = 0.0
    """How long requests may take after their slice; then the client goes away."""
    idle_cap_s: float | None = None
    """Where nothing is in flight and only pauses are left, all of them are shortened alike, so that the next request is sent
    after at most this time; null: they are not."""
    slice_requests: int = 0
    """The n-th slice (from 0) begins with the request of n times this number, or the next one where it was sent already."""
    answer_bytes_max: int = ANSWER_BYTES_MAX
    """The connection is closed when an answer is longer."""
    reader: str | None = None
    """`module:function` that returns the text for holes: called with the reads of an HTTP response (a list of bytes), the words
    that follow its name, and with `whole=False` for an abandoned one. Raises ValueError with the reason if there is no text."""


@dataclass(frozen=True, kw_only=True)
class PointPlan(PhaseFrame):
    """One phase of load, and its `requests` in order."""

    requests: Sequence[PlannedRequest]

    @property
    def measured(self) -> int:
        """The number of requests that are measured: the first ones."""
        return len(self.requests) - self.fillers


class Reads(Sequence[tuple[int, bytes]]):
    """The reads of one response: (stamp, bytes) in order, stamps in CLOCK_REALTIME nanoseconds.

    Stored compactly, because reads are small and many: `stamps`, all bytes in `block`, and `bounds`: read n is between the
    n-th bound and the next.
    """

    __slots__ = ("block", "bounds", "stamps")

    def __init__(self, stamps: list[int], bounds: list[int], block: bytes) -> None:
        """Take the parts; `bounds` starts with 0 and has one entry more than `stamps`."""
        self.stamps = stamps
        self.bounds = bounds
        self.block = block

    @classmethod
    def of(cls, reads: Iterable[tuple[int, bytes]]) -> Self:
        """Return them from single reads."""
        stamps, parts = [], []
        for stamp_ns, data in reads:
            stamps.append(stamp_ns)
            parts.append(data)
        return cls(stamps, list(accumulate(map(len, parts), initial=0)), b"".join(parts))

    def __len__(self) -> int:
        return len(self.stamps)

    @overload
    def __getitem__(self, index: int) -> tuple[int, bytes]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, bytes]]: ...

    def __getitem__(self, index: int | slice) -> tuple[int, bytes] | list[tuple[int, bytes]]:
        if isinstance(index, slice):
            return list(self)[index]
        number = range(len(self.stamps))[index]
        return self.stamps[number], self.block[self.bounds[number] : self.bounds[number + 1]]

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        block, bounds = self.block, self.bounds
        for number, stamp_ns in enumerate(self.stamps):
            yield stamp_ns, block[bounds[number] : bounds[number + 1]]


@dataclass(slots=True)
class Exchange:
    """One request as the client sent and received it. Stamps are CLOCK_REALTIME nanoseconds, None where it did not happen.

    `connected_ns` is set only when a new connection was made for this request. `reads` are (stamp, bytes) in order; the
    bytes are the HTTP response as received (after decryption). `stamp_source` is `kernel` or `user`.
    """

    request_id: str
    session_id: str | None
    scheduled_ns: int
    connect_started_ns: int | None
    connected_ns: int | None
    sent_ns: int | None
    ended_ns: int
    outcome: WireOutcome
    error: str | None
    stamp_source: Literal["kernel", "user"]
    reads: Reads


class StopReason(StrEnum):
    """Why a phase of load was ended early."""

    INTERRUPT = "interrupt"
    ENGINE_DIED = "engine_died"
    WORKER_DIED = "worker_died"
    NO_PROGRESS = "no_progress"
    """The engine was up but sent no data."""
    NOT_ANSWERING = "not_answering"
    """The server failed request after request, and one more that only asked whether it still answers."""
    BUSY = "busy"
    """The same, because it was busy: it answers again."""


class EndReason(StrEnum):
    """Why a point with `load.until` ended."""

    PRECISE = "precise"
    """Its metrics are known as precisely as asked."""
    OUT_OF_REACH = "out_of_reach"
    """They will not be within `load.max_duration_s`."""
    TIME = "time"
    """`load.max_duration_s` is over."""
    REQUESTS = "requests"
    """The prepared requests are used up."""


@dataclass(frozen=True, kw_only=True)
class PhaseReport:
    """What the client reports of itself after a phase. `cpu_s` is that of the worker processes over `elapsed_s`.

    `planned` and `sent` count measured requests, `fillers` those sent to keep the level while these ended.
    `loop_lag_ms_p99` is how late the loop woke up; `clock_step_ns` is how far the wall clock was stepped.
    `stopped` is why the phase was ended early, if it was; `error` then says how a worker died, or what the server does instead of
    answering. `ended_by` is why a point that ends when it is precise has ended.
    """

    started_ns: int
    ended_ns: int
    planned: int
    sent: int
    elapsed_s: float
    cpu_s: float = 0.0
    loop_lag_ms_p99: float | None = None
    loop_lag_ms_max: float | None = None
    clock_step_ns: int = 0
    stamp_source: Literal["kernel", "user"] = "kernel"
    stopped: StopReason | None = None
    error: str | None = None
    ended_by: EndReason | None = None
    fillers: int = 0
    connections_opened: int = 0
    connections_failed: int = 0
    """Connections that were refused or took too long, whether or not a request waited for them."""
    receive_queue_bytes_max: int = 0
    """The most bytes that waited in the kernel for one stream after a read."""
    workers: int = 1
    nap_ms: float = 0.0
    """How long the loop sleeps between polls: events that arrive within it may share a read."""


@dataclass(frozen=True, kw_only=True)
class FloorStage:
    """The client's error at one load, measured against a server that knows the truth.

    `ttft_error_ms` and `itl_error_ms` are the 99th percentiles of the absolute differences from the truth;
    `merged_share` of the events shared a read; `lateness_ms` is the p99 of sent minus scheduled.
    """

    streams: int
    events_s: float
    ttft_error_ms: float
    itl_error_ms: float
    lateness_ms: float
    merged_share: float


@dataclass(frozen=True, kw_only=True)
class ClientFloor:
    """How exact the client is on this machine: the stages of a self-check, from low load to high.

    `streams` and `events_s` are the highest load at which TTFT and ITL were right within a millisecond; `limit_seen` is
    false if the check ended below it. `measured_s` is when it ran (seconds since the epoch), `seconds` its duration.
    """

    stages: tuple[FloorStage, ...]
    streams: int
    events_s: float
    limit_seen: bool
    stamp_source: str
    measured_s: float
    seconds: float

    def at(self, events_s: float | None) -> FloorStage | None:
        """Return the stage for this many events a second: the first with as many or more, else the last."""
        enough = (stage for stage in self.stages if events_s is None or stage.events_s >= events_s)
        return next(enough, self.stages[-1] if self.stages else None)
