"""One phase of load: joins the scheduler, the connections and the spool. Nothing here runs for a single read."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections import deque
from collections.abc import Sequence
from fcntl import ioctl
from itertools import islice
from termios import FIONREAD

from servebench.contracts.exchange import WireOutcome
from servebench.load.client.answer_reader import AnswerReader
from servebench.load.client.connection import ClientConnection, WireFailure
from servebench.load.client.connection_pool import ConnectionPool
from servebench.load.client.job import PhaseJob
from servebench.load.client.progress import WorkerProgress
from servebench.load.client.scheduler import ANSWERED, LEFT, Scheduler
from servebench.load.client.spool import SpoolWriter, meta_frame, sent_frame
from servebench.util.errors import reason_of

QUEUES_SAMPLED = 4
NO_BYTES = bytes(4)

HOLD_S = 2.0
SPOOLED_AT_ONCE = 64
"""The reads of a stream go to the spool together: at the end of the answer, or after HOLD_S seconds. A killed client loses at
most that much of the answers in flight. Each round of housekeeping spools no more than SPOOLED_AT_ONCE streams, so that it
stays short: a worker with more than 6,400 streams holds reads longer."""


class LoadPhase:
    """What happens to the requests of a phase: they are sent, end or fail, and everything about them is spooled."""

    def __init__(self, job: PhaseJob, spool: SpoolWriter, progress: WorkerProgress) -> None:
        """Open no connection yet. Raises WireFailure for an unknown host."""
        self.job = job
        self.spool = spool
        self.progress = progress
        self.scheduler = Scheduler(job)
        self.poller = select.epoll()
        self.pool = ConnectionPool(job.target, self.poller, connect_timeout_s=job.connect_timeout_s)
        self.active: dict[int, ClientConnection] = {}
        """The connection of each request in flight, by the request's index."""
        self.to_spool: deque[tuple[float, int, int]] = deque()
        """When the reads of a request are due in the spool: (time, serial number of the send, index)."""
        self.reader: AnswerReader | None = None
        self.reads = 0
        self.queue_bytes_max = 0

    def prepare(self) -> None:
        """Spool the ids of the requests, and start the process that reads answers if any request needs one. Raises WireFailure
        when that process cannot be started."""
        job = self.job
        if job.reader is not None:
            try:
                self.reader = AnswerReader(job.reader)
            except OSError as error:
                raise WireFailure("protocol", str(error)) from error
            self.pool.watch(self.reader.output, select.EPOLLIN)
        self.spool.buffer += meta_frame([(request.request_id, request.session_id) for request in job.requests])
        self.spool.flush()

    # -- sending --------------------------------------------------------------------------------------------------------

    def send_due(self) -> None:
        """Send the requests that are ready; open connections for those that have none."""
        scheduler, pool = self.scheduler, self.pool
        now = time.monotonic()
        scheduler.release_due(now)
        if scheduler.unsendable:
            self._spool_unsendable()
        ready, idle = scheduler.ready, pool.idle
        while ready and idle:
            self._send(ready.popleft())
        for _ in range(len(ready) - len(pool.connecting)):
            if not ready:
                break
            if (failure := pool.open(now)) is not None:
                self.fail_to_connect(failure)
                break

    def fail_to_connect(self, failure: WireFailure) -> None:
        """Fail the request that waits for a connection; a pool that is only being filled needs none."""
        scheduler = self.scheduler
        if scheduler.ready:
            index = scheduler.ready.popleft()
            self.spool.buffer += sent_frame(index, scheduler.scheduled_ns(index), time.time_ns(), 0, 0)
            self._end(index, failure.outcome, f"cannot connect: {failure}")

    def _send(self, index: int) -> None:
        scheduler = self.scheduler
        connection = self.pool.take(index)
        connection.kept = [] if scheduler.needs_answer(index) else None
        scheduled_ns = scheduler.scheduled_ns(index)
        self.active[index] = connection
        try:
            sent_ns = connection.send(scheduler.data(index))
        except WireFailure as failure:
            self.spool.buffer += sent_frame(index, scheduled_ns, 0, 0, time.time_ns())
            self.handle_failure(connection, failure)
            return
        connect_started_ns = connection.connect_started_ns if connection.fresh else 0
        connected_ns = connection.connected_ns if connection.fresh else 0
        self.spool.buffer += sent_frame(index, scheduled_ns, connect_started_ns, connected_ns, sent_ns)
        # a killed worker must not have sent a request that the spool lacks
        self.spool.urgent = True
        now = time.monotonic()
        self.to_spool.append((now + HOLD_S, scheduler.begin(index, now), index))
        if connection.outgoing:
            self.poller.modify(connection.sock.fileno(), connection.interest | select.EPOLLOUT)

    def send_rest(self, connection: ClientConnection) -> None:
        """Send what the kernel did not take of a request before."""
        try:
            connection.flush()
        except WireFailure as failure:
            self.handle_failure(connection, failure)
            return
        if not connection.outgoing:
            self.poller.modify(connection.sock.fileno(), connection.interest)

    # -- ends of requests -----------------------------------------------------------------------------------------------

    def complete(self, connection: ClientConnection) -> None:
        """End the request on this connection, whose answer is complete."""
        self.spool.write_held(connection)
        index, kept = connection.index, connection.kept
        del self.active[index]
        self._end(index, "complete", "", kept)
        self.pool.give_back(connection)

    def handle_failure(self, connection: ClientConnection, failure: WireFailure) -> None:
        """Send the request again if only its kept-alive connection was stale, otherwise fail it."""
        index = connection.index
        if self.pool.discard_stale(connection, failure, self.scheduler.begun_s(index)):
            del self.active[index]
            self.scheduler.send_again(index)
        else:
            self.fail(connection, failure.outcome, str(failure))

    def fail(self, connection: ClientConnection, outcome: WireOutcome, message: str) -> None:
        """End the request on this connection early, and close the connection."""
        self.spool.write_held(connection)
        index, kept = connection.index, connection.kept
        del self.active[index]
        self.pool.discard(connection)
        self._end(index, outcome, message, kept)

    def fail_all(self, outcome: WireOutcome, message: str) -> None:
        """End every request in flight, and forget those that wait for a connection."""
        for connection in list(self.active.values()):
            self.fail(connection, outcome, message)
        self.scheduler.ready.clear()

    def _end(self, index: int, outcome: WireOutcome, message: str, kept: list[bytes] | None = None) -> None:
        now_ns = time.time_ns()
        self.spool.write_end(index, now_ns, outcome, message)
        reading = kept is not None and outcome in ANSWERED
        self.scheduler.end(index, outcome, message, now=time.monotonic(), now_ns=now_ns, reading=reading)
        if reading:
            assert kept is not None
            self._read_answer(index, kept, whole=outcome == "complete")

    def _spool_unsendable(self) -> None:
        for index, reason in self.scheduler.unsendable:
            now_ns = time.time_ns()
            self.spool.buffer += sent_frame(index, now_ns, 0, 0, 0)
            self.spool.write_end(index, now_ns, "session_ended", reason)
        self.scheduler.unsendable.clear()

    # -- answers that other requests need -------------------------------------------------------------------------------

    def _read_answer(self, index: int, reads: Sequence[bytes], *, whole: bool) -> None:
        """Have the text of an answer read by the reader process."""
        assert self.reader is not None
        try:
            self.reader.ask(index, reads, whole=whole)
        except OSError as error:
            reason = f"the process that reads answers died: {reason_of(error)}"
            self.scheduler.reading_failed(reason, time.time_ns())

    def take_texts(self, reader: AnswerReader) -> None:
        """Pass on the texts that the reader process has sent."""
        try:
            for index, ok, text in reader.texts():
                reason = "" if ok else text.decode(errors="replace")
                self.scheduler.answer_read(index, text if ok else None, reason, time.time_ns())
        except OSError as error:
            self.poller.unregister(reader.output)
            self.scheduler.reading_failed(str(error), time.time_ns())

    # -- housekeeping ---------------------------------------------------------------------------------------------------

    def leave_departed(self, now: float) -> None:
        """Close the connections of users who go away now."""
        for index in self.scheduler.departed(now):
            self.fail(self.active[index], "abandoned", LEFT)

    def keep_house(self, now: float) -> None:
        """Do what can wait a few milliseconds: timeouts, spare connections, old reads, counters."""
        job, pool, scheduler = self.job, self.pool, self.scheduler
        for index in scheduler.timed_out(now):
            self.fail(self.active[index], "timeout", f"no complete answer within {job.timeout_s:g} s")
        for failure in pool.expire(now):
            self.fail_to_connect(failure)
        self._spool_old_reads(now)
        if job.connections is not None and not scheduler.all_released:
            # an open loop does not know how many connections it needs: some are opened ahead of the requests
            failed = pool.keep_spare(job.connections, job.concurrency - len(self.active), now)
            if failed is not None:
                self.fail_to_connect(failed)
        self._sample_queues()
        self._publish_progress()
        if self.reader is not None:
            with contextlib.suppress(OSError):
                self.reader.flush()

    def _spool_old_reads(self, now: float) -> None:
        """Spool what answers that take long have brought so far."""
        in_flight = self.scheduler.in_flight
        for _ in range(SPOOLED_AT_ONCE):
            if not self.to_spool or self.to_spool[0][0] > now:
                break
            _, serial, index = self.to_spool.popleft()
            if in_flight.get(index) == serial:
                self.spool.write_held(self.active[index])
                self.spool.urgent = True
                self.to_spool.append((now + HOLD_S, serial, index))

    def _sample_queues(self) -> None:
        """See what the kernel still holds for some streams right after the loop has read what there was."""
        for connection in islice(self.active.values(), QUEUES_SAMPLED):
            with contextlib.suppress(OSError):
                waiting = int.from_bytes(ioctl(connection.sock.fileno(), FIONREAD, NO_BYTES), sys.byteorder)
                self.queue_bytes_max = max(self.queue_bytes_max, waiting)

    def _publish_progress(self) -> None:
        scheduler = self.scheduler
        self.progress.write(
            sent=scheduler.sent,
            completed=scheduler.completed,
            failed=scheduler.failed,
            # a request that waits for its connection is in flight too
            in_flight=len(self.active) + len(scheduler.ready),
            reads=self.reads,
        )

    def close(self) -> None:
        """Spool everything that is left, and close every socket."""
        self._publish_progress()
        for connection in self.active.values():
            # only after an error of our own: a phase that ended has none in flight
            self.spool.write_held(connection)
        self._spool_unsendable()
        self.spool.flush()
        self.pool.close()
        if self.reader is not None:
            self.reader.close()
        self.poller.close()
