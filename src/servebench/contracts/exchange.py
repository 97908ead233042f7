"""What the load room hands over: each request's bytes with their stamps, unparsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Literal, overload

WireOutcome = Literal[
    "complete", "timeout", "reset", "refused", "closed", "cancelled", "too_large", "protocol", "tls", "abandoned",
    "session_ended",
]  # fmt: skip
"""How the wire saw a request end. `complete`: the HTTP message ended, whatever its status. `closed`: the server closed
before it did. `cancelled`: we stopped first. `too_large`: more bytes than any answer may have. `protocol`: not HTTP.
`abandoned`: we closed on purpose, as a user who goes away. `session_ended`: it was never sent, for an answer that its
prompt needs failed."""

ANSWER_BYTES_MAX = 64 << 20
"""The most that one request may be answered with, where it is not known how long the answer was asked to be."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests go. `headers` are sent with each; values may be secret, so a Target is never logged."""

    host: str
    port: int
    tls: bool = False
    verify_tls: bool = True
    server_name: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        """Without the headers: an API key may stand in them."""
        return f"Target({'https' if self.tls else 'http'}://{self.host}:{self.port})"


@dataclass(frozen=True, kw_only=True)
class PlannedRequest:
    """A request ready for the wire: `path` and `body` are final. `scheduled_s` is set in open loops, from the start.

    Requests of one session are sent one after another, each `think_s` after the answer before it. With `cancel_after_s`
    the client goes away so long after sending, whatever has come by then.

    It waits for the requests in `after`, too. `holes` are (offset in `body`, id of a request before it): the text of that
    one's answer goes there, escaped as inside a JSON string. It waits for those as well, and is never sent when one failed.
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


@dataclass(frozen=True, kw_only=True)
class PointPlan:
    """One phase of load: `requests` in order, at most `concurrency` in flight. With `duration_s` the requests are the
    supply and the phase ends by time; those in flight then are let finish for at most `drain_s`."""

    requests: Sequence[PlannedRequest]
    concurrency: int
    timeout_s: float
    connect_timeout_s: float
    duration_s: float | None = None
    drain_s: float = 30.0
    connections: int | None = None
    """How many are opened before the start; null: one for each request that can be in flight."""
    stream_starts_s: tuple[float, ...] | None = None
    """When each stream of a closed loop begins, in rising order; null: all at once."""
    answer_bytes_max: int = ANSWER_BYTES_MAX
    """A server that answers one request with more is cut off."""
    reader: str | None = None
    """`module:function` that gives the text for holes: called with the reads of an HTTP response (a list of bytes), and
    with `whole=False` for one from which the client went away. Raises ValueError with the reason why there is none."""


class Reads(Sequence[tuple[int, bytes]]):
    """What the reads of one response brought: (stamp, bytes) in order, the stamps CLOCK_REALTIME nanoseconds.

    Kept in one piece, because a read is small and there are many: `stamps`, `block` with all their bytes, and `bounds`, of
    which read number n lies between the n-th and the one after it.
    """

    __slots__ = ("block", "bounds", "stamps")

    def __init__(self, stamps: list[int], bounds: list[int], block: bytes) -> None:
        """The parts as above; `bounds` has one more than `stamps`, beginning with 0."""
        self.stamps = stamps
        self.bounds = bounds
        self.block = block

    @classmethod
    def of(cls, reads: Iterable[tuple[int, bytes]]) -> Reads:
        """From single reads."""
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
    """One request's life on the wire. All stamps are CLOCK_REALTIME nanoseconds; None where it did not happen.

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


@dataclass(frozen=True, kw_only=True)
class PhaseReport:
    """What the client knows of itself after a phase. CPU in seconds of the worker processes, over `elapsed_s`.

    `loop_lag_ms_p99` is how late the loop came back from its naps; `clock_step_ns` how far the wall clock was stepped.
    `stopped` is why the phase was ended early, if it was; `error` then says how a worker died.
    """

    started_ns: int
    ended_ns: int
    planned: int
    sent: int
    elapsed_s: float
    cpu_s: float
    loop_lag_ms_p99: float | None
    loop_lag_ms_max: float | None
    clock_step_ns: int
    stamp_source: Literal["kernel", "user"]
    stopped: StopReason | None = None
    error: str | None = None
    connections_opened: int = 0
    connections_failed: int = 0
    """Connections that were refused, or not there in time, whether a request waited for one or not."""
    receive_queue_bytes_max: int = 0
    """The most bytes that waited in the kernel for one stream after the loop had taken what it could."""
    workers: int = 1
    clock_offset_ms: float | None = None
    """How far the clock of a worker on another machine was ahead of ours; its stamps are told in our time. Of several
    workers the farthest. Null when all ran on this machine."""
    clock_offset_error_ms: float | None = None
    """Half of the shortest round trip in which that was measured: stamps may be wrong by as much."""
    nap_ms: float = 0.0
    """How long the loop sleeps between polls: two events that come within it may meet in one read."""


@dataclass(frozen=True, kw_only=True)
class FloorStage:
    """What the client measured against a server whose truth is known, at one load.

    `ttft_error_ms` and `itl_error_ms` are the 99th percentiles of the absolute differences from the truth;
    `merged_share` of the events met another one in a read; `lateness_ms` is the p99 of sent minus scheduled.
    """

    streams: int
    events_s: float
    ttft_error_ms: float
    itl_error_ms: float
    lateness_ms: float
    merged_share: float


@dataclass(frozen=True, kw_only=True)
class ClientFloor:
    """How exact the client can be on this machine: the stages of a self-check, from little load to much.

    `streams` and `events_s` are the highest load at which TTFT and ITL were right within a millisecond; `limit_seen` is
    false when the check ended before that was passed. `measured_s` is when (seconds since the epoch), `seconds` how long
    it took.
    """

    stages: tuple[FloorStage, ...]
    streams: int
    events_s: float
    limit_seen: bool
    stamp_source: str
    measured_s: float
    seconds: float

    def at(self, events_s: float | None) -> FloorStage | None:
        """The stage that tells of this many events a second: the first with as many or more, else the last."""
        if events_s is None:
            return self.stages[0] if self.stages else None
        return next(
            (stage for stage in self.stages if stage.events_s >= events_s), self.stages[-1] if self.stages else None
        )
