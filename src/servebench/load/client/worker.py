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
import sys
import time
from collections import deque
from collections.abc import Sequence
from fcntl import ioctl
from heapq import heappop, heappush
from itertools import islice
from termios import FIONREAD
from typing import BinaryIO

import orjson

from servebench.contracts.exchange import WireOutcome
from servebench.load.client.jobs import GO, STOP, Job, Progress, read_job
from servebench.load.client.order import Order
from servebench.load.client.reader import AnswerReader
from servebench.load.client.spool import end_frame, meta_frame, reads_frame, sent_frame
from servebench.load.client.wire import (
    ANCILLARY_BYTES,
    READ_BYTES_MAX,
    Connection,
    Dialer,
    WireFailure,
    failure_of,
    raise_descriptor_limit,
    user_stamp,
)
from servebench.protocol.framing import SIZE_LINES, FramingError
from servebench.util.clock import step_ns, take_anchor
from servebench.util.signals import leave_stopping_to_the_parent
from servebench.util.units import NS_PER_MS, NS_PER_S

NAP_S_PER_STREAM = 20e-6
NAP_S_MAX = 1e-3
"""At 50 streams and more the loop wakes at most a thousand times a second. With few streams it naps less: there an
event costs nothing worth saving, and a request that ended is followed at once by the next."""

HOUSEKEEPING_S = 0.02
FLUSH_BYTES = 1 << 18
QUEUES_LOOKED_AT = 4
NO_BYTES = bytes(4)

STALE_MIN = 3
PRIORITY = -10

WRITABLE = select.EPOLLOUT
READABLE = select.EPOLLIN
ENDING = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR

HOLD_S = 2.0
HELD_MAX = 2 * 64
WRITTEN_DOWN_AT_ONCE = 64
"""What a stream has read goes to the spool together: when its answer ends, else after so long or so many reads (two entries
each). A client that is killed loses so much of the answers that were under way. With each round of chores no more streams than
this are written down, so that the loop stays in time: a worker with more than 6,400 of them holds reads for longer."""

USUAL_BYTES = 1024
SIZES = [SIZE_LINES[size] for size in range(USUAL_BYTES)]
"""How a read of so many bytes begins when it is exactly one chunk."""


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
        self.carrying: list[Connection | None] = []
        """The active connections once more, by descriptor: found without a search for each read."""
        self.closed_after_use = 0
        self.timeouts: deque[tuple[float, Connection, int]] = deque()
        self.to_write_down: deque[tuple[float, Connection, int]] = deque()
        self.connect_deadlines: deque[tuple[float, Connection]] = deque()
        self.backlog: deque[int] = deque()
        self.buffer = bytearray()
        self.next_index = 0
        self.free_since_ns: deque[int] = deque()
        self.to_flush = False
        self.stopped: str | None = None
        self.sent = self.completed = self.failed = self.reads = self.opened = self.refused = 0
        self.queue_bytes_max = 0
        self.user_stamps = False
        self.answer_bytes_max = job.answer_bytes_max
        self.lags = LagHistogram()
        self.scheduled: dict[int, int] = {}
        self.joining: deque[float] = deque(job.stream_starts_s or ())
        self.order = Order(job.requests)
        self.reader: AnswerReader | None = None
        self.parked: set[int] = set()
        """Requests whose place in the plan has passed and that wait for others."""
        self.turns: list[tuple[float, int]] = []
        """Of the parked ones those that wait for their time only."""
        self.turn_ns: dict[int, int] = {}
        self.due: dict[int, float] = {}
        """When one whose place has not come yet may be sent."""
        self.reading: dict[int, tuple[int, float]] = {}
        """Requests that have ended and whose answer is being read, with when they ended, by the wall and the steady clock."""
        self.keeping: set[int] = set()
        """Of these the ones whose next turn comes at once: their stream is kept for it."""
        self.filled: dict[int, bytes] = {}
        self.never: dict[int, str] = {}
        """Requests that will not be sent, with the reason."""
        self.cancels: list[tuple[float, int, Connection, int]] = []
        self.nap_s = min(NAP_S_MAX, NAP_S_PER_STREAM * job.concurrency)
        self.by_clock = bool(self.joining) or any(
            request.scheduled_s is not None or request.think_s or request.cancel_after_s is not None
            for request in job.requests
        )

    # -- before the clock ------------------------------------------------------------------------------------------

    def connect_all(self) -> None:
        """Open the pool before the first request is due, so that connecting is no part of any latency.

        Raises WireFailure when nothing can read the answers that requests need.
        """
        if self.job.reader is not None:
            try:
                self.reader = AnswerReader(self.job.reader)
            except OSError as error:
                raise WireFailure("protocol", str(error)) from error
            self._look_after(self.reader.output, READABLE)
        self.spool.write(meta_frame([(request.request_id, request.session_id) for request in self.job.requests]))
        self.spool.flush()
        self._look_after(self.orders, READABLE)
        wanted = min(self.job.connections or self.job.concurrency, self.job.concurrency, len(self.job.requests))
        deadline = time.monotonic() + self.job.connect_timeout_s
        for _ in range(wanted):
            if not self._dial():
                break
            while len(self.connecting) >= self.job.connect_burst and time.monotonic() < deadline:
                self._take_events(0.05)
        while self.connecting and time.monotonic() < deadline and not self.stopped:
            self._take_events(0.05)

    def _look_after(self, fd: int, interest: int) -> None:
        """Have the poll tell what this descriptor has."""
        self.carrying += [None] * (fd + 1 - len(self.carrying))
        self.poller.register(fd, interest)

    def _dial(self) -> bool:
        try:
            connection = self.dialer.open()
        except WireFailure as failure:
            self._connect_failed(failure)
            return False
        self.opened += 1
        self.connecting[connection.sock.fileno()] = connection
        self.connect_deadlines.append((time.monotonic() + self.job.connect_timeout_s, connection))
        self._look_after(connection.sock.fileno(), connection.interest | WRITABLE)
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
        return not (self.turns or self.reading) or not self._still_sending(now)

    def _more_to_send(self, now: float) -> bool:
        return self.next_index < len(self.job.requests) and self._still_sending(now)

    def _still_sending(self, now: float) -> bool:
        return self.end_sending is None or now < self.end_sending

    def _due(self, now: float) -> float | None:
        """When the next thing is to be done by the clock. What waits for a free stream is not due: an answer's end is."""
        due = []
        if len(self.free_since_ns) > len(self.keeping) and self._still_sending(now):
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
        carrying = self.carrying
        reads = 0
        events = self.poller.poll(timeout_s)
        for fd, mask in events:
            connection = carrying[fd]
            if connection is None:
                self._other_event(fd)
                continue
            if mask != READABLE and not self._readable(connection, fd, mask):
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
                    # what `feed` begins with, without its call: the usual read is exactly one chunk
                    and data.startswith(SIZES[size])
                    and data.endswith(b"\r\n")
                    and ancillary
                ):
                    held.append(ancillary[0][2])
                    held.append(data)
                    reads += 1
                elif data:
                    reads += 1
                    self._unusual(connection, ancillary[0][2] if ancillary else None, data)
                else:
                    self._server_closed(connection)
            except BlockingIOError:
                continue
            except WireFailure as failure:
                self._broken(connection, failure)
            except FramingError as error:
                self._fail(connection, "protocol", str(error))
            except OSError as error:
                self._broken(connection, failure_of(error))
        self.reads += reads
        return len(events)

    def _readable(self, connection: Connection, fd: int, mask: int) -> bool:
        """Whether there may be something to read where more is told than that there is."""
        if mask & WRITABLE:
            if connection.outgoing:
                self._flush_request(connection)
            if mask == WRITABLE or self.carrying[fd] is not connection:
                return False
        if mask & ENDING:
            # the end stands behind what is to be read, and would not be told again
            self.poller.modify(fd, connection.interest)
        return True

    def _unusual(self, connection: Connection, stamp: bytes | None, data: bytes) -> None:
        """A read that is more than one event in the middle of an answer that nobody waits for. Raises FramingError."""
        if stamp is None:
            self.user_stamps = True
            self._write_down(connection)
            self.buffer += reads_frame(connection.index, [user_stamp()], [data], user=True)
            connection.received += len(data)
        else:
            connection.held += (stamp, data)
        if len(data) == connection.room:
            connection.room = READ_BYTES_MAX
            # there may be more, of which nobody would tell
            self.poller.modify(connection.sock.fileno(), connection.interest)
        if connection.kept is not None:
            connection.kept.append(data)
        if connection.framing.feed(data):
            self._complete(connection)
            return
        connection.usual = connection.framing.between and connection.kept is None
        if len(data) >= USUAL_BYTES or len(connection.held) >= HELD_MAX:
            self._write_down(connection)
            if connection.received > self.answer_bytes_max:
                self._fail(connection, "too_large", f"the answer is longer than {self.answer_bytes_max} bytes")

    def _write_down(self, connection: Connection) -> None:
        """Put what a connection has read into the spool."""
        held = connection.held
        if held:
            parts = held[1::2]
            self.buffer += reads_frame(connection.index, held[::2], parts)
            connection.received += sum(map(len, parts))
            held.clear()

    def _write_down_what_waits(self, now: float) -> None:
        """Put into the spool what streams have read whose answers take long."""
        for _ in range(WRITTEN_DOWN_AT_ONCE):
            if not self.to_write_down or self.to_write_down[0][0] > now:
                break
            _, connection, sequence = self.to_write_down.popleft()
            if connection.sequence == sequence and connection.index >= 0:
                self._write_down(connection)
                self.to_flush = True
                self.to_write_down.append((now + HOLD_S, connection, sequence))

    def _other_event(self, fd: int) -> None:
        if fd == self.orders:
            self._take_order()
        elif self.reader is not None and fd == self.reader.output:
            self._take_texts(self.reader)
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
        self.poller.modify(fd, connection.interest)
        if done:
            del self.connecting[fd]
            self.idle[fd] = connection

    def _connect_failed(self, failure: WireFailure) -> None:
        """A request that waits for a connection fails with it; a pool that is only being filled does not care."""
        self.refused += 1
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
        while len(self.free_since_ns) > len(self.keeping) and not self.stopped:
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
        """The next request that may be sent now. One that waits for others is passed over until they have ended."""
        if self.turns and self.turns[0][0] <= now and self._still_sending(now):
            return heappop(self.turns)[1]
        while self._more_to_send(now):
            index = self.next_index
            request = self.job.requests[index]
            if index not in self.never and request.scheduled_s is not None and self.start + request.scheduled_s > now:
                return None
            self.next_index += 1
            if index in self.never:
                self._bury(index)
            elif waits := self.order.waits(index):
                self.parked.add(index)
                if not request.think_s:
                    self.keeping.update(one for one in waits if one in self.reading)
                    if len(self.free_since_ns) <= len(self.keeping):
                        return None
            elif (due := self.due.pop(index, now)) > now:
                heappush(self.turns, (due, index))
            else:
                return index
        return None

    def _go_on(self, index: int, ended: tuple[int, float], text: bytes | None = None, reason: str = "") -> None:
        """A request has ended, and its answer was read where others need it: their time comes when a user has thought."""
        over = [(index, text)]
        for one, its_text in over:
            for other, ready in self.order.ended(one, its_text):
                if ready:
                    self._may_go(other, *ended)
                    continue
                self.never[other] = reason
                if other in self.parked:
                    self._bury(other)
                # what needs its answer in turn can be sent no more than this
                over.append((other, None))

    def _may_go(self, index: int, ended_ns: int, ended: float) -> None:
        """A request waits for nothing more but its user."""
        request = self.job.requests[index]
        wanted_ns = ended_ns + int(request.think_s * NS_PER_S)
        if request.holes:
            self.filled[index] = self.order.filled(index)
            # nobody can want it sent before it is known what it says
            wanted_ns = max(wanted_ns, time.time_ns())
        self.turn_ns[index] = wanted_ns
        due = ended + request.think_s
        if index in self.parked:
            self.parked.remove(index)
            heappush(self.turns, (due, index))
        else:
            self.due[index] = due

    def _bury(self, index: int) -> None:
        """Write down that a request is not sent."""
        self.parked.discard(index)
        now_ns = time.time_ns()
        self.buffer += sent_frame(index, now_ns, 0, 0, 0)
        self.buffer += end_frame(index, now_ns, "session_ended", self.never.pop(index))
        self.to_flush = True
        self.failed += 1

    def _take_texts(self, reader: AnswerReader) -> None:
        """Answers have been read: what waited for them goes on."""
        try:
            for index, fine, text in reader.texts():
                self._text_came(index, text if fine else None, "" if fine else text.decode(errors="replace"))
        except OSError as error:
            self.poller.unregister(reader.output)
            self._reader_gone(str(error))

    def _text_came(self, index: int, text: bytes | None, problem: str) -> None:
        name = self.job.requests[index].request_id
        self.keeping.discard(index)
        self._go_on(index, self.reading.pop(index), text, f"the answer to {name} failed: {problem}")

    def _reader_gone(self, reason: str) -> None:
        for index in list(self.reading):
            self._text_came(index, None, reason)

    def _have_read(self, index: int, reads: Sequence[bytes], ended: tuple[int, float], *, whole: bool) -> None:
        """Have the answer to a request read whose text others need."""
        assert self.reader is not None
        self.reading[index] = ended
        if any(other in self.parked and not self.job.requests[other].think_s for other in self.order.followers(index)):
            self.keeping.add(index)
        try:
            self.reader.ask(index, reads, whole=whole)
        except OSError as error:
            self._reader_gone(f"the reader of answers died: {(error.strerror or str(error)).lower()}")

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
        connection.kept = [] if self.order.needs_text(index) else None
        connection.sequence += 1
        self.active[fd] = self.carrying[fd] = connection
        try:
            sent_ns = connection.send(self.filled.get(index) or job.requests[index].data)
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
        self.to_write_down.append((now + HOLD_S, connection, connection.sequence))
        cancel_after_s = job.requests[index].cancel_after_s
        if cancel_after_s is not None:
            heappush(self.cancels, (now + cancel_after_s, self.sent, connection, connection.sequence))
        if connection.outgoing:
            self.poller.modify(fd, connection.interest | WRITABLE)

    def _put_down(self, fd: int) -> None:
        """The connection with this descriptor carries nothing any more."""
        self.active.pop(fd, None)
        self.carrying[fd] = None

    def _flush_request(self, connection: Connection) -> None:
        try:
            connection.flush()
        except WireFailure as failure:
            self._broken(connection, failure)
            return
        if not connection.outgoing:
            self.poller.modify(connection.sock.fileno(), connection.interest)

    def _complete(self, connection: Connection) -> None:
        fd = connection.sock.fileno()
        self._put_down(fd)
        self._write_down(connection)
        index, connection.index = connection.index, -1
        connection.fresh = False
        self._end(index, "complete", "", connection.kept)
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
        if (
            not connection.fresh
            and not (connection.received or connection.held)
            and failure.outcome in ("closed", "reset")
        ):
            self.closed_after_use += 1
            # its timeout and its user's patience are of the connection on which it is sent again
            connection.index = -1
            self._put_down(connection.sock.fileno())
            self._close(connection)
            self.sent -= 1
            self.backlog.appendleft(index)
            return
        self._fail(connection, failure.outcome, str(failure))

    def _fail(self, connection: Connection, outcome: WireOutcome, message: str) -> None:
        self._write_down(connection)
        index, connection.index = connection.index, -1
        self._put_down(connection.sock.fileno())
        self._close(connection)
        self._end(index, outcome, message, connection.kept)

    def _end(self, index: int, outcome: WireOutcome, message: str, kept: list[bytes] | None = None) -> None:
        now_ns = time.time_ns()
        self.buffer += end_frame(index, now_ns, outcome, message)
        self.scheduled.pop(index, None)
        self.free_since_ns.append(now_ns)
        self.to_flush = True
        self.filled.pop(index, None)
        ended = (now_ns, time.monotonic())
        if kept is not None and outcome in ("complete", "abandoned"):
            self._have_read(index, kept, ended, whole=outcome == "complete")
        else:
            self._go_on(index, ended, reason=f"{self.job.requests[index].request_id} failed: {outcome}: {message}")
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
        self._write_down_what_waits(now)
        self._keep_spares()
        self._look_at_queues()
        self._tell_progress()
        if self.reader is not None:
            with contextlib.suppress(OSError):
                self.reader.flush()

    def _look_at_queues(self) -> None:
        """What the kernel still holds for some streams now that the loop has taken what it could."""
        for fd in islice(self.active, QUEUES_LOOKED_AT):
            with contextlib.suppress(OSError):
                waiting = int.from_bytes(ioctl(fd, FIONREAD, NO_BYTES), sys.byteorder)
                self.queue_bytes_max = max(self.queue_bytes_max, waiting)

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
        for connection in self.active.values():
            # there are some only when the phase broke off
            self._write_down(connection)
        self._flush()
        for connection in [*self.connecting.values(), *self.idle.values(), *self.active.values()]:
            connection.close()
        if self.reader is not None:
            self.reader.close()
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


def _cpu_s() -> float:
    """CPU time of this process and of its children that have ended."""
    used = os.times()
    return time.process_time() + used.children_user + used.children_system


def _drive(phase: Phase) -> dict[str, object]:
    gc.collect()
    gc.freeze()
    gc.disable()
    cpu_s, before = _cpu_s(), take_anchor()
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
        "cpu_s": _cpu_s() - cpu_s - (phase.reader.start_cpu_s if phase.reader is not None else 0.0),
        "loop_lag_ms_p99": phase.lags.percentile_ms(0.99),
        "loop_lag_ms_max": phase.lags.max_ns / NS_PER_MS,
        "clock_step_ns": step_ns(before, after),
        "stamp_source": "user" if phase.user_stamps else "kernel",
        "stopped": phase.stopped,
        "connections_opened": phase.opened,
        "connections_failed": phase.refused,
        "receive_queue_bytes_max": phase.queue_bytes_max,
        "nap_ms": 1000 * phase.nap_s,
    }


def main() -> int:
    """Read a job, wait for the order to go, drive it, tell how it went."""
    # a terminal sends Ctrl-C to the whole group: whoever started this worker decides what it means
    leave_stopping_to_the_parent()
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
