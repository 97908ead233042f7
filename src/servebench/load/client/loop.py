"""The event loop of a load worker: reads what the sockets bring and stores it with its stamps.

The loop polls, reads, naps, and polls again. The kernel stamps each segment, so a nap costs no exactness as long as two
events of one stream do not share a read; the reader of the spool counts those that do.
"""

from __future__ import annotations

import os
import select
import time

from servebench.contracts.exchange import StopReason
from servebench.load.client.connection import (
    ANCILLARY_BYTES,
    READ_BYTES_MAX,
    ClientConnection,
    WireFailure,
    user_stamp,
    wire_failure,
)
from servebench.load.client.job import FINISH, GO, STOP
from servebench.load.client.phase import LoadPhase
from servebench.protocol.framing import SIZE_LINES, FramingError
from servebench.util.clock import take_anchor
from servebench.util.units import NS_PER_MS, NS_PER_S


class LagHistogram:
    """Counts lags in buckets of 2**16 ns (66 us), up to 0.27 s."""

    SHIFT, BUCKETS = 16, 4096

    def __init__(self) -> None:
        self.counts = [0] * self.BUCKETS
        self.max_ns = 0

    def add(self, lag_ns: int) -> None:
        """Count one lag, in nanoseconds."""
        lag_ns = max(lag_ns, 0)
        self.max_ns = max(self.max_ns, lag_ns)
        self.counts[min(lag_ns >> self.SHIFT, self.BUCKETS - 1)] += 1

    def percentile_ms(self, share: float) -> float | None:
        """Return the upper edge of the bucket that holds this share, in milliseconds; None when nothing was counted."""
        left = share * sum(self.counts)
        if not left:
            return None
        for bucket, count in enumerate(self.counts):
            left -= count
            if left <= 0:
                return min((bucket + 1) << self.SHIFT, self.max_ns) / NS_PER_MS
        return self.max_ns / NS_PER_MS


NAP_S_PER_STREAM = 20e-6
NAP_S_MAX = 1e-3
"""From 50 streams on the loop wakes at most a thousand times a second. With fewer streams it naps less: saving CPU is not
needed there, and the next request follows sooner."""

HOUSEKEEPING_S = 0.02
CONNECT_POLL_S = 0.05
CONNECT_BURST = 256
"""Connections that may be opening at once: more overrun the listen queue of common servers (uvicorn 2048, others 128),
and then wait a second for the retry of a lost SYN."""
FLUSH_BYTES = 1 << 18

HELD_MAX = 2 * 64
"""A connection holds this many entries (two a read) before they go to the spool."""

WRITABLE = select.EPOLLOUT
READABLE = select.EPOLLIN
ENDING = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR

USUAL_BYTES = 1024
SIZES = [SIZE_LINES[size] for size in range(USUAL_BYTES)]
"""By the number of bytes in a read: how the read begins if it is exactly one chunk."""


class EventLoop:
    """Drives one phase of load on one thread. `run` returns when every request has ended or the phase was stopped."""

    def __init__(self, phase: LoadPhase, orders: int) -> None:
        """Poll the connections of the phase, and the descriptor `orders`."""
        self.phase = phase
        self.orders = orders
        self.user_stamps = False
        self.lags = LagHistogram()
        self.nap_s = min(NAP_S_MAX, NAP_S_PER_STREAM * phase.job.concurrency)

    def connect(self) -> None:
        """Open the connections before the first request is due, so that connecting is no part of any latency."""
        job, pool = self.phase.job, self.phase.pool
        pool.watch(self.orders, READABLE)
        wanted = min(job.connections or job.concurrency, job.concurrency, len(job.requests))
        deadline = time.monotonic() + job.connect_timeout_s
        for _ in range(wanted):
            if pool.open(time.monotonic()) is not None:
                break
            while len(pool.connecting) >= CONNECT_BURST and time.monotonic() < deadline:
                self._take_events(CONNECT_POLL_S)
        while pool.connecting and time.monotonic() < deadline and not self.phase.scheduler.stopped:
            self._take_events(CONNECT_POLL_S)

    def run(self) -> None:
        """Drive the phase to its end."""
        phase, scheduler, spool = self.phase, self.phase.scheduler, self.phase.spool
        monotonic_ns = time.monotonic_ns
        sleep = time.sleep
        lags = self.lags
        nap_s = self.nap_s
        start_ns = take_anchor().realtime_ns
        start = time.monotonic()
        scheduler.start(start, start_ns)
        departures = scheduler.departures
        next_chores = start + HOUSEKEEPING_S
        while True:
            phase.send_due()
            if spool.urgent or len(spool.buffer) > FLUSH_BYTES:
                spool.flush()
            now = time.monotonic()
            if departures and departures[0][0] <= now:
                phase.leave_departed(now)
            if now >= next_chores:
                phase.keep_house(now)
                next_chores = now + HOUSEKEEPING_S
            if (ending := scheduler.ending(now)) is not None:
                phase.fail_all(*ending)
                break
            if scheduler.timed:
                due = scheduler.next_due(now)
                nap_s = self.nap_s if due is None else min(self.nap_s, max(0.0, due - now))
            left_ns = monotonic_ns()
            sleep(nap_s)
            taken = self._take_events(0)
            lags.add(monotonic_ns() - left_ns - int(nap_s * NS_PER_S))
            if not taken:
                self._take_events(self._wait_s())

    def _wait_s(self) -> float:
        """Return how long to wait when nothing happens: until just before something is due, or until housekeeping. The poll
        rounds up to whole milliseconds; the nap after it is exact."""
        now = time.monotonic()
        due = self.phase.scheduler.next_due(now)
        return HOUSEKEEPING_S if due is None else min(HOUSEKEEPING_S, max(0.0, due - now - NAP_S_MAX))

    def _take_events(self, timeout_s: float) -> int:
        """Read what the sockets have; return how many had an event. No Python function is called for the usual read: half of what
        an event costs would be calls."""
        carriers = self.phase.pool.carriers
        reads = 0
        events = self.phase.poller.poll(timeout_s)
        for fd, mask in events:
            connection = carriers[fd]
            if connection is None:
                self._handle_other(fd)
                continue
            if mask != READABLE and not self._is_readable(connection, fd, mask):
                continue
            try:
                receive = connection.receive
                data, ancillary, _, _ = receive(connection.room, ANCILLARY_BYTES)
                size = len(data)
                held = connection.held
                if (
                    connection.usual
                    and size < USUAL_BYTES
                    and len(held) < HELD_MAX
                    # the first test of `Framing.feed`, without the call: the usual read is exactly one chunk
                    and data.startswith(SIZES[size])
                    and data.endswith(b"\r\n")
                    and ancillary
                ):
                    # held, not spooled: one frame for many reads costs a fraction of a frame for each
                    held.append(ancillary[0][2])
                    held.append(data)
                    reads += 1
                elif data:
                    reads += 1
                    self._take_unusual(connection, ancillary[0][2] if ancillary else None, data)
                else:
                    self._end_of_stream(connection)
            except BlockingIOError:
                continue
            except WireFailure as failure:
                self.phase.handle_failure(connection, failure)
            except FramingError as error:
                self.phase.fail(connection, "protocol", str(error))
            except OSError as error:
                self.phase.handle_failure(connection, wire_failure(error))
        self.phase.reads += reads
        return len(events)

    def _is_readable(self, connection: ClientConnection, fd: int, mask: int) -> bool:
        """Whether the socket may still have data when epoll reports other events too."""
        if mask & WRITABLE:
            if connection.outgoing:
                self.phase.send_rest(connection)
            if mask == WRITABLE or self.phase.pool.carriers[fd] is not connection:
                return False
        if mask & ENDING:
            # edge-triggered: the end of the stream comes after the data and would not be reported again
            self.phase.poller.modify(fd, connection.interest)
        return True

    def _take_unusual(self, connection: ClientConnection, stamp: bytes | None, data: bytes) -> None:
        """Take a read that is not exactly one chunk in the middle of an answer. Raises FramingError."""
        phase = self.phase
        if stamp is None:
            self.user_stamps = True
            phase.spool.write_held(connection)
            phase.spool.write_user_read(connection, user_stamp(), data)
        else:
            connection.held += (stamp, data)
        if len(data) == connection.room:
            connection.room = READ_BYTES_MAX
            # edge-triggered: the rest would not be reported
            phase.poller.modify(connection.sock.fileno(), connection.interest)
        if connection.kept is not None:
            connection.kept.append(data)
        if connection.framing.feed(data):
            phase.complete(connection)
            return
        connection.usual = connection.framing.between and connection.kept is None
        if len(data) >= USUAL_BYTES or len(connection.held) >= HELD_MAX:
            phase.spool.write_held(connection)
            bytes_max = phase.job.answer_bytes_max
            if connection.received > bytes_max:
                phase.fail(connection, "too_large", f"the answer is longer than {bytes_max} bytes")

    def _handle_other(self, fd: int) -> None:
        """Handle an event of a descriptor that carries no request."""
        phase = self.phase
        if fd == self.orders:
            self._take_order()
        elif phase.reader is not None and fd == phase.reader.output:
            phase.take_texts(phase.reader)
        elif (failure := phase.pool.handle_event(fd)) is not None:
            phase.fail_to_connect(failure)

    def _take_order(self) -> None:
        order = os.read(self.orders, 1)
        if order == GO:
            return
        if order == FINISH:
            self.phase.scheduler.finish(time.monotonic())
        elif order == STOP:
            reason = os.read(self.orders, 64).decode(errors="replace").strip()
            self.phase.scheduler.stop(StopReason(reason) if reason else StopReason.INTERRUPT)
        elif not order:
            self.phase.poller.unregister(self.orders)
            self.phase.scheduler.stop(StopReason.INTERRUPT)

    def _end_of_stream(self, connection: ClientConnection) -> None:
        if connection.framing.end_of_stream():
            self.phase.complete(connection)
        else:
            message = "the server closed the connection before the answer was complete"
            self.phase.handle_failure(connection, WireFailure("closed", message))
