"""Which request of a phase is sent when: pure, without sockets and without a clock."""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

from servebench.contracts.exchange import StopReason, WireOutcome
from servebench.load.client.job import PhaseJob
from servebench.load.client.order import SessionOrder
from servebench.util.units import NS_PER_S

ANSWERED: frozenset[WireOutcome] = frozenset({"complete", "abandoned"})
"""Outcomes with which a request counts as completed and its answer can become part of another's prompt."""


LEFT = "the client went away, as planned"
"""The message of a request whose user goes away (`departed`)."""
DRAIN_ANSWERS = 4.0
DRAIN_MIN_S = 30.0


def _openings(job: PhaseJob) -> deque[tuple[list[float], float]]:
    """Return for each slice when each stream may send again, in rising order, and when it closes."""
    starts_s = job.stream_starts_s or [0.0] * job.concurrency
    return deque(([opens_s + start_s for start_s in starts_s], closes_s) for opens_s, closes_s in job.slices)


class Scheduler:
    """Decides which requests may be sent, gives out deadlines, and follows every request to its end.

    A request is named by its index in the plan. It is *parked* while it waits for other requests, *ready* when it may be
    sent, and *in flight* until it ends. A stream is one of the `concurrency` places for requests in flight: a request
    takes a free stream when it becomes ready and frees it when it ends. *Fillers* (the last requests of the plan) are sent
    when no measured request can be sent any more; the phase ends when the measured ones have ended. With `slices` no stream
    takes a request outside them, each begins with the requests that are kept for it, and what is in flight `slice_drain_s` after
    one closes is given up.

    Every time is an argument: `now` in seconds of a monotonic clock, `..._ns` in nanoseconds of CLOCK_REALTIME.
    """

    def __init__(self, job: PhaseJob) -> None:
        """Plan the requests of a job. `start` must be called before anything else."""
        self.requests = job.requests
        self.ready: deque[int] = deque()
        """Requests that have a stream and wait for a connection."""
        self.in_flight: dict[int, int] = {}
        """Requests that were sent and have not ended, with the serial number of the send. Insertion order is send order."""
        self.unsendable: list[tuple[int, str]] = []
        """Requests that can never be sent, with the reason. The caller records and clears them."""
        self.departures: list[tuple[float, int, int]] = []
        """A heap of (when the user goes away, serial number of the send, index)."""
        self.stopped: StopReason | None = None
        self.measured = len(job.requests) - job.fillers
        """The number of requests that are measured."""
        self.sent = self.completed = self.failed = 0
        """Counts of measured requests."""
        self.fillers = 0
        """The number of fillers that were sent."""
        self.timed = bool(job.stream_starts_s or job.slices) or any(
            request.scheduled_s is not None or request.think_s or request.cancel_after_s is not None
            for request in job.requests
        )
        """Whether anything but a free stream or an ended request decides when a request is sent or given up."""
        self._job = job
        self._order = SessionOrder(job.requests)
        self._next = 0
        self._sends = 0
        self._open = 0
        """The measured requests that are ready or in flight."""
        self._left = self.measured
        """The measured requests that have not ended."""
        self._begun: dict[int, float] = {}
        self._longest_s = 0.0
        """How long the longest complete answer took."""
        self._filling = False
        """Whether the time of a timed phase is over and only fillers are sent."""
        self._free_since_ns: deque[int] = deque()
        self._openings = _openings(job)
        self._stream_starts_s: deque[float] = deque(() if self._openings else job.stream_starts_s or ())
        self._timeouts: deque[tuple[float, int, int]] = deque()
        self._scheduled_ns: dict[int, int] = {}
        self._parked: set[int] = set()
        self._thinking: list[tuple[float, int]] = []
        """A heap of parked requests that wait only for their think time: (when it is over, index)."""
        self._wanted_ns: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        """For requests whose turn in the plan has not come yet: when their think time is over."""
        self._reading: dict[int, tuple[int, float]] = {}
        """Ended requests whose answer is being read, with the end by both clocks."""
        self._reserving: set[int] = set()
        """Those of `_reading` whose stream is kept for a next turn that follows at once."""
        self._filled: dict[int, bytes] = {}
        self._impossible: dict[int, str] = {}
        """Requests that will not be sent, with the reason, until their turn in the plan comes."""

    def start(self, now: float, start_ns: int) -> None:
        """Start the phase: the times of the plan count from this moment."""
        job = self._job
        self._start, self._start_ns = now, start_ns
        self._end_sending = now + job.duration_s if job.duration_s else None
        if not self._stream_starts_s:
            self._free_since_ns.extend([start_ns] * job.concurrency)

    def finish(self, now: float) -> None:
        """End the time of the phase now: no more measured requests are sent, and those in flight end as usual."""
        self._end_sending = now if self._end_sending is None else min(now, self._end_sending)

    def stop(self, reason: StopReason) -> None:
        """Send nothing more; `ending` then says what happens to the requests in flight."""
        self.stopped = reason

    # -- what to do now --------------------------------------------------------------------------------------------

    def release_due(self, now: float) -> None:
        """Move the requests that are due to `ready`, as far as streams are free."""
        if self._job.fillers:
            if self._measured_over(now):
                return
            if self._is_sending_over(now) and not self._filling:
                self._begin_filling()
        while self._stream_starts_s and self._start + self._stream_starts_s[0] <= now:
            self._free_since_ns.append(self._start_ns + int(self._stream_starts_s.popleft() * NS_PER_S))
        while len(self._free_since_ns) > len(self._reserving) and not self.stopped:
            opened_s = self._opened_s(now) if self._openings else 0.0
            if opened_s is None:
                break
            index = self._next_due(now)
            if index is None:
                break
            free_ns = max(self._free_since_ns.popleft(), self._start_ns + int(opened_s * NS_PER_S))
            scheduled_s = self.requests[index].scheduled_s
            # a closed loop wants a request sent as soon as a stream is free for it
            scheduled_ns = free_ns if scheduled_s is None else self._start_ns + int(scheduled_s * NS_PER_S)
            # a turn of a session cannot be wanted before the answer that it follows
            self._scheduled_ns[index] = max(scheduled_ns, self._wanted_ns.pop(index, 0))
            self._open += index < self.measured
            self.ready.append(index)
        if self._job.idle_cap_s is not None and self._thinking and not (self.in_flight or self.ready or self._reading):
            self._shorten_pauses(now + self._job.idle_cap_s)

    def next_due(self, now: float) -> float | None:
        """Return the next time at which the clock makes something due; None when only an answer can. A request that waits for a
        free stream is not due: the end of another request is what it waits for."""
        due = []
        if self._openings:
            due += [self._start + opens_s for opens_s in self._next_openings(now)]
        elif len(self._free_since_ns) > len(self._reserving) and self._may_send(now):
            if self._next < len(self.requests):
                scheduled_s = self.requests[self._next].scheduled_s
                if scheduled_s is not None:
                    due.append(self._start + scheduled_s)
            if self._thinking:
                due.append(self._thinking[0][0])
        if self._stream_starts_s:
            due.append(self._start + self._stream_starts_s[0])
        if self.departures:
            due.append(self.departures[0][0])
        return min(due) if due else None

    def next_limit(self, now: float) -> float | None:
        """Return the next time after `now` at which a request times out, or sending or draining ends; None if there is none. For
        a caller that does not poll: `next_due` has everything else that the clock decides."""
        while self._timeouts and self.in_flight.get(self._timeouts[0][2]) != self._timeouts[0][1]:
            self._timeouts.popleft()
        limits = [self._timeouts[0][0]] if self._timeouts else []
        if self._end_sending is not None:
            limits += [end for end in (self._end_sending, self._end_sending + self.drain_limit_s) if end > now]
        return min(limits, default=None)

    def timed_out(self, now: float) -> Iterator[int]:
        """Yield the requests in flight whose timeout is over, each once."""
        while self._timeouts and self._timeouts[0][0] <= now:
            _, serial, index = self._timeouts.popleft()
            if self.in_flight.get(index) == serial:
                yield index

    def departed(self, now: float) -> Iterator[int]:
        """Yield the requests in flight whose user goes away now, each once."""
        while self.departures and self.departures[0][0] <= now:
            _, serial, index = heappop(self.departures)
            if self.in_flight.get(index) == serial:
                yield index

    def ending(self, now: float) -> tuple[WireOutcome, str] | None:
        """Return the outcome and message for requests still in flight if the phase ends now; None while it goes on."""
        if self.stopped:
            return "cancelled", f"the phase was stopped: {self.stopped}"
        if self._end_sending is not None and now >= self._end_sending and now >= self._end_sending + self.drain_limit_s:
            return (
                "timeout",
                f"not answered within {self.drain_limit_s:.3g} s after the end of the point (load.drain_s)",
            )
        if self._job.fillers and self._measured_over(now):
            return "cancelled", "it kept the level until the last measured request had ended"
        if self.in_flight or self.ready or self._may_release(now):
            return None
        if (self._thinking or self._reading) and self._may_send(now):
            return None
        return "cancelled", "the phase ended"

    @property
    def drain_limit_s(self) -> float:
        """How long a timed phase waits for the requests in flight at its end: as configured, else DRAIN_ANSWERS times the
        longest answer so far (one still in flight counts with its age at the end), at least DRAIN_MIN_S; the timeout of a
        request where none has ended."""
        if self._job.drain_s is not None:
            return self._job.drain_s
        if not self._longest_s or self._end_sending is None:
            return self._job.timeout_s
        oldest_s = next((self._end_sending - self._begun[index] for index in self.in_flight), 0.0)
        return max(DRAIN_MIN_S, DRAIN_ANSWERS * max(self._longest_s, oldest_s))

    @property
    def all_released(self) -> bool:
        """Whether every request of the plan has had its turn."""
        return self._next >= len(self.requests)

    # -- what is sent ----------------------------------------------------------------------------------------------

    def data(self, index: int) -> bytes:
        """Return the bytes of a ready request."""
        return self._filled.get(index) or self.requests[index].data

    def scheduled_ns(self, index: int) -> int:
        """Return when the plan wanted a ready request to be sent."""
        return self._scheduled_ns[index]

    def needs_answer(self, index: int) -> bool:
        """Whether the answer to this request becomes part of another one."""
        return self._order.needs_text(index)

    # -- what happened ---------------------------------------------------------------------------------------------

    def begin(self, index: int, now: float) -> int:
        """Record that a request was sent, and return the serial number of the send."""
        self._sends += 1
        self._count_sent(index, 1)
        self.in_flight[index] = self._sends
        self._begun[index] = now
        self._timeouts.append((now + self._job.timeout_s, self._sends, index))
        cancel_after_s = self.requests[index].cancel_after_s
        if cancel_after_s is not None:
            heappush(self.departures, (now + cancel_after_s, self._sends, index))
        if self._openings:
            leaves_s = self._openings[0][1] + self._job.slice_drain_s
            heappush(self.departures, (self._start + leaves_s, self._sends, index))
        return self._sends

    def begun_s(self, index: int) -> float:
        """Return when a request that is in flight was sent, by the monotonic clock."""
        return self._begun[index]

    def send_again(self, index: int) -> None:
        """Make a request ready again, first in line. The deadlines of its earlier send no longer count."""
        if self.in_flight.pop(index, None) is not None:
            self._count_sent(index, -1)
        self.ready.appendleft(index)

    def end(
        self, index: int, outcome: WireOutcome, message: str, *, now: float, now_ns: int, reading: bool = False
    ) -> None:
        """Record that a request ended, and free its stream. The requests that wait for it are released. With `reading` they wait
        until `answer_read` gives the answer's text."""
        self.in_flight.pop(index, None)
        begun = self._begun.pop(index, now)
        if outcome == "complete":
            self._longest_s = max(self._longest_s, now - begun)
        self._scheduled_ns.pop(index, None)
        self._filled.pop(index, None)
        self._free_since_ns.append(now_ns)
        if index < self.measured:
            self._open -= 1
            self._left -= 1
            self.completed += outcome in ANSWERED
            self.failed += outcome not in ANSWERED
        if reading:
            self._reading[index] = (now_ns, now)
            followers = self._order.followers(index)
            if any(other in self._parked and not self.requests[other].think_s for other in followers):
                self._reserving.add(index)
            return
        reason = f"{self.requests[index].request_id} failed: {outcome}: {message}"
        self._release_followers(index, (now_ns, now), None, reason, now_ns)

    def answer_read(self, index: int, text: bytes | None, reason: str, now_ns: int) -> None:
        """Record the text of an answer, or None and the reason; the requests that wait for it are released."""
        self._reserving.discard(index)
        message = f"the answer to {self.requests[index].request_id} failed: {reason}"
        self._release_followers(index, self._reading.pop(index), text, message, now_ns)

    def reading_failed(self, reason: str, now_ns: int) -> None:
        """Record that none of the answers that are being read will get a text."""
        for index in list(self._reading):
            self.answer_read(index, None, reason, now_ns)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _opened_s(self, now: float) -> float | None:
        """Return since when a further stream may send in the slice that is open, in seconds from the start; None if none may."""
        while self._openings and now >= self._start + self._openings[0][1]:
            self._openings.popleft()
            slices_over = len(self._job.slices) - len(self._openings)
            self._next = max(self._next, slices_over * self._job.slice_requests)
        if not self._openings:
            return None
        starts_s = self._openings[0][0]
        busy = self._job.concurrency - len(self._free_since_ns)
        return starts_s[busy] if self._start + starts_s[busy] <= now else None

    def _next_openings(self, now: float) -> Iterator[float]:
        """Yield when the next free stream may send, in the slice that is open and the one after it, as far as that is to come."""
        busy = self._job.concurrency - len(self._free_since_ns)
        for starts_s, _ in islice(self._openings, 2):
            if busy < len(starts_s) and self._start + starts_s[busy] > now:
                yield starts_s[busy]

    def _may_release(self, now: float) -> bool:
        return self._next < len(self.requests) and self._may_send(now)

    def _is_sending_over(self, now: float) -> bool:
        return self._end_sending is not None and now >= self._end_sending

    def _measured_over(self, now: float) -> bool:
        """Whether every measured request has ended that was or will be sent."""
        return not self._left or (not self._open and self._is_sending_over(now))

    def _may_send(self, now: float) -> bool:
        return self._filling or not self._is_sending_over(now)

    def _count_sent(self, index: int, change: int) -> None:
        if index < self.measured:
            self.sent += change
        else:
            self.fillers += change

    def _begin_filling(self) -> None:
        """From now on only fillers are sent."""
        self._filling = True
        self._next = max(self._next, self.measured)
        self._thinking = [(due, index) for due, index in self._thinking if index >= self.measured]
        heapify(self._thinking)

    def _next_due(self, now: float) -> int | None:
        """Return the next request that may be sent now. Those that wait for others are parked on the way."""
        if self._thinking and self._thinking[0][0] <= now and self._may_send(now):
            return heappop(self._thinking)[1]
        while self._may_release(now):
            index = self._next
            request = self.requests[index]
            impossible = index in self._impossible
            if not impossible and request.scheduled_s is not None and self._start + request.scheduled_s > now:
                return None
            self._next += 1
            if impossible:
                self._give_up(index)
            elif waits := self._order.waits(index):
                self._parked.add(index)
                if not request.think_s:
                    self._reserving.update(before for before in waits if before in self._reading)
                    if len(self._free_since_ns) <= len(self._reserving):
                        return None
            elif (due := self._not_before.pop(index, now)) > now:
                heappush(self._thinking, (due, index))
            else:
                return index
        return None

    def _release_followers(
        self, index: int, ended: tuple[int, float], text: bytes | None, reason: str, now_ns: int
    ) -> None:
        """Release the requests that waited for this one only; those that lack its text can never be sent."""
        finished = [(index, text)]
        for before, its_text in finished:
            for other, sendable in self._order.ended(before, its_text):
                if sendable:
                    self._start_thinking(other, *ended, now_ns)
                    continue
                self._impossible[other] = reason
                if other in self._parked:
                    self._give_up(other)
                # nor can the requests that need its answer in turn
                finished.append((other, None))

    def _start_thinking(self, index: int, ended_ns: int, ended: float, now_ns: int) -> None:
        """A request waits for nothing more than its think time, which counts from the end of the answer before it."""
        if self._filling and index < self.measured:
            return
        request = self.requests[index]
        wanted_ns = ended_ns + int(request.think_s * NS_PER_S)
        if request.holes:
            self._filled[index] = self._order.fill(index)
            # it could not be wanted before its content was known
            wanted_ns = max(wanted_ns, now_ns)
        self._wanted_ns[index] = wanted_ns
        due = ended + request.think_s
        if index in self._parked:
            self._parked.remove(index)
            heappush(self._thinking, (due, index))
        else:
            self._not_before[index] = due

    def _shorten_pauses(self, latest: float) -> None:
        """End all pauses so much sooner that the next one is over at `latest`, if none is."""
        if self._may_release(latest) or (early_s := self._thinking[0][0] - latest) <= 0:
            return
        self._thinking = [(due - early_s, index) for due, index in self._thinking]
        for _, index in self._thinking:
            self._wanted_ns[index] -= int(early_s * NS_PER_S)

    def _give_up(self, index: int) -> None:
        self._parked.discard(index)
        self.unsendable.append((index, self._impossible.pop(index)))
        if index < self.measured:
            self._left -= 1
            self.failed += 1
