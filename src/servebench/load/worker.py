"""The worker process: holds the streams of one phase of load and writes what it sees to a spool.

Its standard input brings one job (see `jobs.py`), then a byte for each order: `g` go, `s` stop. When the input closes,
whoever started it is gone and it stops by itself. It answers in lines of JSON on standard output.

The loop polls, takes what is there, naps, and polls again. The kernel keeps the time of each segment, so a nap costs
no exactness as long as two events of one stream do not meet in one read; the reader of the spool counts those that do.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
import sys
import time
from collections import deque
from heapq import heappop, heappush
from typing import BinaryIO

import orjson

from servebench.clock import step_ns, take_anchor
from servebench.contracts.exchange import WireOutcome
from servebench.load.framing import FramingError
from servebench.load.jobs import GO, STOP, Job, Progress, read_job
from servebench.load.spool import DATA, HEAD, end_frame, meta_frame, sent_frame
from servebench.load.wire import Connection, Dialer, WireFailure, raise_descriptor_limit
from servebench.units import NS_PER_MS, NS_PER_S

NAP_S_PER_STREAM = 20e-6
NAP_S_MAX = 1e-3
"""At 50 streams and more the loop wakes at most a thousand times a second. With few streams it naps less: there an
event costs nothing worth saving, and a request that ended is followed at once by the next."""

HOUSEKEEPING_S = 0.02
FLUSH_BYTES = 1 << 18
STALE_MIN = 3
PRIORITY = -10

INTEREST = select.EPOLLIN | select.EPOLLRDHUP
STAMP_AND_HEAD = 16


class Phase:
    """One phase of load on one thread. `run` returns when every request has ended or the phase was stopped."""

    def __init__(self, job: Job, spool: BinaryIO, progress: Progress, orders: int) -> None:
        """Nothing is opened yet. `orders` is the file descriptor that orders come from."""
        self.job = job
        self.spool = spool
        self.progress = progress
        self.orders = orders
        self.dialer = Dialer(job.target)
        self.poller = select.epoll()
        self.connecting: dict[int, Connection] = {}
        self.idle: dict[int, Connection] = {}
        self.active: dict[int, Connection] = {}
        self.closed_after_use = 0
        self.timeouts: deque[tuple[float, Connection, int]] = deque()
        self.connect_deadlines: deque[tuple[float, Connection]] = deque()
        self.backlog: deque[int] = deque()
        self.buffer = bytearray()
        self.next_index = 0
        self.free_since_ns: deque[int] = deque()
        self.to_flush = False
        self.stopped: str | None = None
        self.sent = self.completed = self.failed = self.reads = self.opened = 0
        self.user_stamps = False
        self.answer_bytes_max = job.answer_bytes_max
        self.lags = LagHistogram()
        self.scheduled: dict[int, int] = {}
        self.joining: deque[float] = deque(job.stream_starts_s or ())
        self.sessions: dict[str, deque[int]] = {}
        self.turns: list[tuple[float, int]] = []
        self.turn_ns: dict[int, int] = {}
        self.cancels: list[tuple[float, int, Connection, int]] = []
        self.nap_s = min(NAP_S_MAX, NAP_S_PER_STREAM * job.concurrency)
        self.by_clock = bool(self.joining) or any(
            request.scheduled_s is not None or request.think_s or request.cancel_after_s is not None
            for request in job.requests
        )

    # -- before the clock ------------------------------------------------------------------------------------------

    def connect_all(self) -> None:
        """Open the pool before the first request is due, so that connecting is no part of any latency."""
        self.spool.write(meta_frame([(request.request_id, request.session_id) for request in self.job.requests]))
        self.spool.flush()
        self.poller.register(self.orders, select.EPOLLIN)
        wanted = min(self.job.connections or self.job.concurrency, self.job.concurrency, len(self.job.requests))
        deadline = time.monotonic() + self.job.connect_timeout_s
        for _ in range(wanted):
            if not self._dial():
                break
            while len(self.connecting) >= self.job.connect_burst and time.monotonic() < deadline:
                self._take_events(0.05)
        while self.connecting and time.monotonic() < deadline and not self.stopped:
            self._take_events(0.05)

    def _dial(self) -> bool:
        try:
            connection = self.dialer.open()
        except WireFailure as failure:
            self._connect_failed(failure)
            return False
        self.opened += 1
        self.connecting[connection.sock.fileno()] = connection
        self.connect_deadlines.append((time.monotonic() + self.job.connect_timeout_s, connection))
        self.poller.register(connection.sock.fileno(), INTEREST | select.EPOLLOUT)
        return True

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Drive the phase to its end."""
        job = self.job
        anchor = take_anchor()
        self.start_ns = anchor.realtime_ns
        start = time.monotonic()
        self.start = start
        self.end_sending = start + job.duration_s if job.duration_s else None
        self.end_draining = self.end_sending + job.drain_s if self.end_sending else None
        if not self.joining:
            self.free_since_ns.extend([anchor.realtime_ns] * job.concurrency)
        nap_s = self.nap_s
        monotonic_ns = time.monotonic_ns
        sleep = time.sleep
        lags = self.lags
        next_chores = start + HOUSEKEEPING_S
        while True:
            self._send_due()
            if self.to_flush or len(self.buffer) > FLUSH_BYTES:
                self._flush()
            now = time.monotonic()
            if self.cancels and self.cancels[0][0] <= now:
                self._abandon(now)
            if now >= next_chores:
                self._chores(now)
                next_chores = now + HOUSEKEEPING_S
            if self._over(now):
                break
            if self.by_clock:
                due = self._due(now)
                nap_s = self.nap_s if due is None else min(self.nap_s, max(0.0, due - now))
            left_ns = monotonic_ns()
            sleep(nap_s)
            taken = self._take_events(0)
            lags.add(monotonic_ns() - left_ns - int(nap_s * NS_PER_S))
            if not taken:
                self._take_events(self._wait_s())

    def _over(self, now: float) -> bool:
        if self.stopped:
            self._cancel_all("cancelled", f"the phase was stopped: {self.stopped}")
            return True
        if self.end_draining is not None and now >= self.end_draining:
            self._cancel_all("timeout", f"not answered within {self.job.drain_s:g} s after the end of the point")
            return True
        if self.active or self.backlog or self._more_to_send(now):
            return False
        return not self.turns or not self._still_sending(now)

    def _more_to_send(self, now: float) -> bool:
        return self.next_index < len(self.job.requests) and self._still_sending(now)

    def _still_sending(self, now: float) -> bool:
        return self.end_sending is None or now < self.end_sending

    def _due(self, now: float) -> float | None:
        """When the next thing is to be done by the clock. What waits for a free stream is not due: an answer's end is."""
        due = []
        if self.free_since_ns and self._still_sending(now):
            if self.next_index < len(self.job.requests):
                scheduled_s = self.job.requests[self.next_index].scheduled_s
                if scheduled_s is not None:
                    due.append(self.start + scheduled_s)
            if self.turns:
                due.append(self.turns[0][0])
        if self.joining:
            due.append(self.start + self.joining[0])
        if self.cancels:
            due.append(self.cancels[0][0])
        return min(due) if due else None

    def _wait_s(self) -> float:
        """How long the loop may sleep when nothing is going on: till shortly before something is due, or for chores. The
        poll rounds up to whole milliseconds; the nap after it is exact."""
        now = time.monotonic()
        due = self._due(now)
        return HOUSEKEEPING_S if due is None else min(HOUSEKEEPING_S, max(0.0, due - now - NAP_S_MAX))

    def _take_events(self, timeout_s: float) -> int:
        """Take what the sockets have; how many had something."""
        active = self.active
        buffer = self.buffer
        pack = HEAD.pack
        events = self.poller.poll(timeout_s)
        for fd, mask in events:
            connection = active.get(fd)
            if connection is None:
                self._other_event(fd)
                continue
            if connection.outgoing and mask & select.EPOLLOUT:
                self._flush_request(connection)
            if not mask & ~select.EPOLLOUT:
                continue
            try:
                got = connection.read()
                if got is None:
                    continue
                kind, stamp, data = got
                if not data:
                    self._server_closed(connection)
                    continue
                self.reads += 1
                buffer += pack(kind, connection.index, len(data) + STAMP_AND_HEAD)
                buffer += stamp
                buffer += data
                connection.received += len(data)
                if connection.framing.feed(data):
                    self._complete(connection)
                elif connection.received > self.answer_bytes_max:
                    self._fail(connection, "too_large", f"the answer is longer than {self.answer_bytes_max} bytes")
                if kind != DATA:
                    self.user_stamps = True
            except WireFailure as failure:
                self._broken(connection, failure)
            except FramingError as error:
                self._fail(connection, "protocol", str(error))
        return len(events)

    def _other_event(self, fd: int) -> None:
        if fd == self.orders:
            self._take_order()
        elif fd in self.connecting:
            self._connecting_event(self.connecting[fd])
        elif fd in self.idle:
            # an idle connection has nothing to say: the server closed it, or speaks out of turn
            connection = self.idle.pop(fd)
            self.closed_after_use += not connection.fresh
            self._close(connection)

    def _take_order(self) -> None:
        order = os.read(self.orders, 1)
        if order == GO:
            return
        if order == STOP:
            reason = os.read(self.orders, 64).decode(errors="replace").strip()
            self.stopped = reason or "interrupt"
        elif not order:
            self.poller.unregister(self.orders)
            self.stopped = "interrupt"

    # -- connections -----------------------------------------------------------------------------------------------

    def _connecting_event(self, connection: Connection) -> None:
        fd = connection.sock.fileno()
        try:
            done = connection.finish_connecting()
        except WireFailure as failure:
            del self.connecting[fd]
            self._close(connection)
            self._connect_failed(failure)
            return
        self.poller.modify(fd, INTEREST)
        if done:
            del self.connecting[fd]
            self.idle[fd] = connection

    def _connect_failed(self, failure: WireFailure) -> None:
        """A request that waits for a connection fails with it; a pool that is only being filled does not care."""
        if self.backlog:
            index = self.backlog.popleft()
            now_ns = time.time_ns()
            self.buffer += sent_frame(index, self.scheduled[index], now_ns, 0, 0)
            self._end(index, failure.outcome, f"cannot connect: {failure}")

    def _close(self, connection: Connection) -> None:
        self.poller.unregister(connection.sock.fileno())
        connection.close()

    # -- requests --------------------------------------------------------------------------------------------------

    def _send_due(self) -> None:
        """Send what is due while streams are free; what has no connection yet waits in the backlog for one."""
        now = time.monotonic()
        while self.joining and self.start + self.joining[0] <= now:
            self.free_since_ns.append(self.start_ns + int(self.joining.popleft() * NS_PER_S))
        while self.free_since_ns and not self.stopped:
            index = self._next_due(now)
            if index is None:
                break
            free_ns = self.free_since_ns.popleft()
            scheduled_s = self.job.requests[index].scheduled_s
            # when the plan wanted it sent: in a closed loop, the moment a stream was free for it
            wanted_ns = free_ns if scheduled_s is None else self.start_ns + int(scheduled_s * NS_PER_S)
            # the turn of a session cannot be wanted before the answer that it follows
            self.scheduled[index] = max(wanted_ns, self.turn_ns.pop(index, 0))
            self.backlog.append(index)
        while self.backlog and self.idle:
            _, connection = self.idle.popitem()
            self._send(connection, self.backlog.popleft())
        missing = len(self.backlog) - len(self.connecting)
        for _ in range(missing):
            if not self.backlog or not self._dial():
                break

    def _next_due(self, now: float) -> int | None:
        """The next request that may be sent now. One whose session waits for an answer is put behind it."""
        if self.turns and self.turns[0][0] <= now and self._still_sending(now):
            return heappop(self.turns)[1]
        while self._more_to_send(now):
            request = self.job.requests[self.next_index]
            if request.scheduled_s is not None and self.start + request.scheduled_s > now:
                return None
            index = self.next_index
            self.next_index += 1
            session = request.session_id
            if session is None:
                return index
            if session not in self.sessions:
                self.sessions[session] = deque()
                return index
            self.sessions[session].append(index)
        return None

    def _next_turn(self, session: str, ended_ns: int) -> None:
        """A request of a session has ended: the next one's time comes when its user has thought."""
        waiting = self.sessions[session]
        if not waiting:
            del self.sessions[session]
            return
        index = waiting.popleft()
        think_s = self.job.requests[index].think_s
        self.turn_ns[index] = ended_ns + int(think_s * NS_PER_S)
        heappush(self.turns, (time.monotonic() + think_s, index))

    def _abandon(self, now: float) -> None:
        """Go away from the requests whose user has lost patience."""
        while self.cancels and self.cancels[0][0] <= now:
            _, _, connection, sequence = heappop(self.cancels)
            if connection.sequence == sequence and connection.index >= 0:
                after_s = self.job.requests[connection.index].cancel_after_s
                self._fail(connection, "abandoned", f"the client went away {after_s:g} s after sending, as planned")

    def _send(self, connection: Connection, index: int) -> None:
        job = self.job
        fd = connection.sock.fileno()
        connection.index = index
        connection.sequence += 1
        self.active[fd] = connection
        try:
            sent_ns = connection.send(job.requests[index].data)
        except WireFailure as failure:
            self.buffer += sent_frame(index, self.scheduled[index], 0, 0, time.time_ns())
            self._broken(connection, failure)
            return
        connect_started_ns = connection.connect_started_ns if connection.fresh else 0
        connected_ns = connection.connected_ns if connection.fresh else 0
        self.buffer += sent_frame(index, self.scheduled[index], connect_started_ns, connected_ns, sent_ns)
        # a worker that is killed must not have sent what is written nowhere
        self.to_flush = True
        self.sent += 1
        now = time.monotonic()
        self.timeouts.append((now + job.timeout_s, connection, connection.sequence))
        cancel_after_s = job.requests[index].cancel_after_s
        if cancel_after_s is not None:
            heappush(self.cancels, (now + cancel_after_s, self.sent, connection, connection.sequence))
        if connection.outgoing:
            self.poller.modify(fd, INTEREST | select.EPOLLOUT)

    def _flush_request(self, connection: Connection) -> None:
        try:
            connection.flush()
        except WireFailure as failure:
            self._broken(connection, failure)
            return
        if not connection.outgoing:
            self.poller.modify(connection.sock.fileno(), INTEREST)

    def _complete(self, connection: Connection) -> None:
        fd = connection.sock.fileno()
        del self.active[fd]
        index, connection.index = connection.index, -1
        connection.fresh = False
        self._end(index, "complete", "")
        if connection.framing.close or connection.outgoing or self._server_closes_after_use():
            self._close(connection)
        else:
            self.idle[fd] = connection

    def _server_closes_after_use(self) -> bool:
        """Some servers (llama.cpp's) promise keep-alive and close after each stream: there it is not tried for long."""
        return self.closed_after_use >= STALE_MIN and 2 * self.closed_after_use > self.completed

    def _server_closed(self, connection: Connection) -> None:
        if connection.framing.end_of_stream():
            self._complete(connection)
        else:
            self._broken(
                connection, WireFailure("closed", "the server closed the connection before the answer was whole")
            )

    def _broken(self, connection: Connection, failure: WireFailure) -> None:
        """A connection broke. A kept-alive one that the server closed just as we sent is nobody's fault: sent again."""
        index = connection.index
        if not connection.fresh and not connection.received and failure.outcome in ("closed", "reset"):
            self.closed_after_use += 1
            self.active.pop(connection.sock.fileno(), None)
            self._close(connection)
            self.sent -= 1
            self.backlog.appendleft(index)
            return
        self._fail(connection, failure.outcome, str(failure))

    def _fail(self, connection: Connection, outcome: WireOutcome, message: str) -> None:
        index, connection.index = connection.index, -1
        self.active.pop(connection.sock.fileno(), None)
        self._close(connection)
        self._end(index, outcome, message)

    def _end(self, index: int, outcome: WireOutcome, message: str) -> None:
        now_ns = time.time_ns()
        self.buffer += end_frame(index, now_ns, outcome, message)
        self.scheduled.pop(index, None)
        self.free_since_ns.append(now_ns)
        self.to_flush = True
        session = self.job.requests[index].session_id
        if session is not None:
            self._next_turn(session, now_ns)
        if outcome in ("complete", "abandoned"):
            self.completed += 1
        else:
            self.failed += 1

    def _cancel_all(self, outcome: WireOutcome, message: str) -> None:
        for connection in list(self.active.values()):
            self._fail(connection, outcome, message)
        self.backlog.clear()

    # -- between polls ---------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        rest = memoryview(self.buffer)
        while rest:
            rest = rest[self.spool.write(rest) :]
        rest.release()
        self.buffer.clear()
        self.to_flush = False

    def _chores(self, now: float) -> None:
        while self.timeouts and self.timeouts[0][0] <= now:
            _, connection, sequence = self.timeouts.popleft()
            if connection.sequence == sequence and connection.index >= 0:
                self._fail(connection, "timeout", f"no complete answer within {self.job.timeout_s:g} s")
        while self.connect_deadlines and self.connect_deadlines[0][0] <= now:
            _, connection = self.connect_deadlines.popleft()
            fd = connection.sock.fileno()
            if self.connecting.get(fd) is connection:
                del self.connecting[fd]
                self._close(connection)
                self._connect_failed(WireFailure("refused", f"no connection within {self.job.connect_timeout_s:g} s"))
        self._keep_spares()
        self._tell_progress()

    def _keep_spares(self) -> None:
        """An open loop does not know how many streams it will need: some are always open, ahead of the request."""
        if self.job.connections is None or self.next_index >= len(self.job.requests):
            return
        spare = len(self.idle) + len(self.connecting)
        room = self.job.concurrency - spare - len(self.active)
        for _ in range(min(self.job.connections - spare, room)):
            if not self._dial():
                return

    def _tell_progress(self) -> None:
        self.progress.write(
            sent=self.sent,
            completed=self.completed,
            failed=self.failed,
            # one that waits for its connection is under way too
            in_flight=len(self.active) + len(self.backlog),
            reads=self.reads,
        )

    def close(self) -> None:
        """Write what is left and close every socket."""
        self._tell_progress()
        self._flush()
        for connection in [*self.connecting.values(), *self.idle.values(), *self.active.values()]:
            connection.close()
        self.poller.close()


class LagHistogram:
    """How late the loop comes back from its naps: counts in buckets of 2**16 ns (66 us), up to 0.27 s."""

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
        """The upper edge of the bucket that holds this share, in milliseconds; None when nothing was counted."""
        left = share * sum(self.counts)
        if not left:
            return None
        for bucket, count in enumerate(self.counts):
            left -= count
            if left <= 0:
                return min((bucket + 1) << self.SHIFT, self.max_ns) / NS_PER_MS
        return self.max_ns / NS_PER_MS


def _say(**facts: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(facts) + b"\n")
    sys.stdout.buffer.flush()


def _drive(phase: Phase) -> dict[str, object]:
    gc.collect()
    gc.freeze()
    gc.disable()
    cpu_ns, before = time.process_time_ns(), take_anchor()
    try:
        phase.run()
    finally:
        phase.close()
    after = take_anchor()
    return {
        "started_ns": before.realtime_ns,
        "ended_ns": after.realtime_ns,
        "planned": len(phase.job.requests),
        "sent": phase.sent,
        "elapsed_s": (after.monotonic_ns - before.monotonic_ns) / NS_PER_S,
        "cpu_s": (time.process_time_ns() - cpu_ns) / NS_PER_S,
        "loop_lag_ms_p99": phase.lags.percentile_ms(0.99),
        "loop_lag_ms_max": phase.lags.max_ns / NS_PER_MS,
        "clock_step_ns": step_ns(before, after),
        "stamp_source": "user" if phase.user_stamps else "kernel",
        "stopped": phase.stopped,
        "connections_opened": phase.opened,
        "nap_ms": 1000 * phase.nap_s,
    }


def main() -> int:
    """Read a job, wait for the order to go, drive it, tell how it went."""
    # a terminal sends Ctrl-C to the whole group: whoever started this worker decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_descriptor_limit()
    with contextlib.suppress(OSError):
        # where it is allowed: a client that is kept from its core for 100 ms has events meet in one read
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    orders = sys.stdin.fileno()
    job = read_job(orders)
    try:
        with open(job.spool, "ab", buffering=0) as spool, Progress.attach(job.progress) as progress:  # noqa: PTH123
            phase = Phase(job, spool, progress, orders)
            phase.connect_all()
            _say(ready=len(phase.idle))
            if not phase.stopped and os.read(orders, 1) != GO:
                return 0
            _say(**_drive(phase))
    except WireFailure as failure:
        _say(failed=str(failure))
        return 1
    except OSError as error:
        _say(
            failed=f"cannot write {job.spool}: {(error.strerror or str(error)).lower()}",
            full=error.errno == errno.ENOSPC,
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
