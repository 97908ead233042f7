"""The scheduler on a clock that the tests move: who is sent when, who waits, who is given up."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from servebench.contracts.exchange import Target
from servebench.load.client.job import PhaseJob, WireRequest
from servebench.load.client.scheduler import Scheduler

START_S, START_NS = 1000.0, 1_700_000_000_000_000_000


def request(number, *, session=None, at_s=None, think_s=0.0, cancel_after_s=None, after=(), needs=()):
    """A request; `needs` are the requests whose answers are part of it."""
    holes = [(0, of) for of in needs]
    return WireRequest(f"r{number}", session, at_s, think_s, cancel_after_s, after, holes, 0, b"x")


@dataclass
class Play:
    """A scheduler with a clock, both of whose hands move together."""

    requests: list
    concurrency: int = 1
    more: dict = field(default_factory=dict)
    time_s: float = 0.0

    def __post_init__(self):
        job = PhaseJob(
            target=Target(host="h", port=1),
            spool="",
            progress="",
            concurrency=self.concurrency,
            requests=self.requests,
            **{"timeout_s": 100.0, "connect_timeout_s": 1.0, "duration_s": None, "drain_s": 5.0, **self.more},
        )
        self.scheduler = Scheduler(job)
        self.scheduler.start(START_S, START_NS)

    @property
    def now(self):
        return START_S + self.time_s

    @property
    def now_ns(self):
        return START_NS + round(self.time_s * 1e9)

    def send(self, time_s=None):
        """Move the clock, send everything that is ready, and return it."""
        self.time_s = self.time_s if time_s is None else time_s
        self.scheduler.release_due(self.now)
        sent = list(self.scheduler.ready)
        self.scheduler.ready.clear()
        for index in sent:
            self.scheduler.begin(index, self.now)
        return sent

    def end(self, index, *, time_s=None, outcome="complete", message="", reading=False):
        self.time_s = self.time_s if time_s is None else time_s
        self.scheduler.end(index, outcome, message, now=self.now, now_ns=self.now_ns, reading=reading)

    def scheduled_s(self, index):
        return (self.scheduler.scheduled_ns(index) - START_NS) / 1e9


def test_a_closed_loop_keeps_its_streams_busy():
    play = Play([request(i) for i in range(5)], concurrency=2)
    assert play.send(0.0) == [0, 1]
    assert play.send(1.0) == []
    play.end(1, time_s=2.0)
    assert play.send(2.5) == [2]
    # wanted from the moment the stream was free, not from when it was seen
    assert play.scheduled_s(2) == 2.0
    play.end(0), play.end(2, time_s=3.0)
    assert play.send() == [3, 4]
    assert play.scheduler.ending(play.now) is None
    play.end(3), play.end(4)
    assert play.scheduler.ending(play.now) is not None
    assert (play.scheduler.sent, play.scheduler.completed, play.scheduler.failed) == (5, 5, 0)


def test_an_open_loop_sends_at_its_times_and_says_when_the_next_is_due():
    play = Play([request(i, at_s=t) for i, t in enumerate([0.5, 0.7, 2.0])], concurrency=9)
    assert play.scheduler.timed
    assert play.send(0.4) == []
    assert play.scheduler.next_due(play.now) == START_S + 0.5
    assert play.send(0.8) == [0, 1]
    assert (play.scheduled_s(0), play.scheduled_s(1)) == (0.5, 0.7)
    assert play.scheduler.next_due(play.now) == START_S + 2.0
    assert not play.scheduler.all_released
    assert play.send(2.0) == [2]
    assert play.scheduler.all_released
    assert play.scheduler.next_due(play.now) is None


def test_an_open_loop_without_a_free_stream_is_late_and_nothing_is_due():
    play = Play([request(0, at_s=0.1), request(1, at_s=0.2)], concurrency=1)
    assert play.send(0.1) == [0]
    assert play.send(0.3) == []
    assert play.scheduler.next_due(play.now) is None
    play.end(0, time_s=5.0)
    assert play.send() == [1]
    assert play.scheduled_s(1) == 0.2


def test_streams_start_one_after_another():
    play = Play([request(i) for i in range(9)], concurrency=3, more={"stream_starts_s": (0.0, 1.0, 2.0)})
    assert play.send(0.0) == [0]
    assert play.scheduler.next_due(play.now) == START_S + 1.0
    assert play.send(2.5) == [1, 2]
    assert (play.scheduled_s(1), play.scheduled_s(2)) == (1.0, 2.0)


def test_turns_of_a_session_wait_for_each_other_and_for_the_user():
    play = Play([request(i, session="s", think_s=1.0) for i in range(2)] + [request(2)], concurrency=2)
    # the second turn is passed over
    assert play.send(0.0) == [0, 2]
    play.end(0, time_s=3.0)
    assert play.send(3.5) == []
    assert play.scheduler.next_due(play.now) == START_S + 4.0
    assert play.scheduler.ending(play.now) is None
    assert play.send(4.2) == [1]
    assert play.scheduled_s(1) == 4.0


def test_a_turn_whose_place_comes_later_thinks_meanwhile():
    play = Play([request(0, session="s"), request(1), request(2, session="s", think_s=5.0)], concurrency=1)
    assert play.send(0.0) == [0]
    play.end(0, time_s=1.0)
    assert play.send() == [1]
    play.end(1, time_s=7.0)
    assert play.send() == [2]
    # its user had thought by 6, the stream was free at 7
    assert play.scheduled_s(2) == 7.0


def test_pauses_are_shortened_alike_only_while_nothing_else_is_left():
    """The next request after ten seconds, the others as much later as they were."""
    pauses = [0, 0, 0, 60.0, 65.0, 30.0]
    requests = [request(i, session=f"s{i % 3}", think_s=pause) for i, pause in enumerate(pauses)]
    play = Play(requests, concurrency=3, more={"idle_cap_s": 10.0})
    assert play.send(0.0) == [0, 1, 2]
    for index in (0, 1):
        play.end(index, time_s=1.0)
        # the third request is in flight
        assert play.send(1.0) == []
    assert play.scheduler.next_due(play.now) == START_S + 61.0
    play.end(2, time_s=5.0)
    assert play.send() == []
    # the shortest pause would have ended at 35: all end 20 s sooner
    assert play.scheduler.next_due(play.now) == START_S + 15.0
    assert play.send(14.9) == []
    assert play.send(15.0) == [5]
    assert play.scheduled_s(5) == 15.0
    play.end(5, time_s=20.0)
    assert play.send() == []
    assert play.send(30.0) == [3]
    assert play.send(35.0) == [4]
    assert play.scheduled_s(4) == 35.0


def test_a_stream_is_reserved_while_the_answer_for_a_next_turn_is_read():
    turns = [request(0, session="a"), request(1, session="a", needs=[0]), request(2)]
    play = Play(turns, concurrency=1)
    assert play.scheduler.needs_answer(0)
    assert not play.scheduler.needs_answer(1)
    assert play.send(0.0) == [0]
    play.end(0, time_s=1.0, reading=True)
    assert play.send() == []
    assert play.scheduler.ending(play.now) is None
    play.time_s = 1.25
    play.scheduler.answer_read(0, b"text", "", play.now_ns)
    assert play.send() == [1]
    # it cannot be wanted before its content is known
    assert play.scheduled_s(1) == 1.25
    assert b"text" in play.scheduler.data(1)
    play.end(1)
    assert play.send() == [2]


@pytest.mark.parametrize("reading", [True, False], ids=["no text", "failed"])
def test_what_needs_a_missing_answer_is_never_sent(reading):
    """Nor is what needs its answer in turn; what only comes after it is."""
    requests = [
        request(0, session="s"),
        request(1, session="s", needs=[0]),
        request(2, session="s", needs=[1]),
        request(3, after=[0]),
    ]
    play = Play(requests, concurrency=1)
    assert play.send(0.0) == [0]
    if reading:
        play.end(0, reading=True)
        play.scheduler.reading_failed("no reader", play.now_ns)
    else:
        play.end(0, outcome="reset", message="gone")
    assert play.send() == [3]
    assert [index for index, _ in play.scheduler.unsendable] == [1, 2]
    assert all("r0" in reason for _, reason in play.scheduler.unsendable)
    assert play.scheduler.failed == (2 if reading else 3)


def test_deadlines_are_given_out_once_and_only_for_requests_in_flight():
    requests = [request(0), request(1), request(2, cancel_after_s=2.0)]
    play = Play(requests, concurrency=3, more={"timeout_s": 10.0})
    assert play.send(0.0) == [0, 1, 2]
    assert play.scheduler.next_due(play.now) == START_S + 2.0
    assert list(play.scheduler.departed(START_S + 1.9)) == []
    assert list(play.scheduler.departed(START_S + 2.0)) == [2]
    play.end(2, outcome="abandoned"), play.end(0)
    assert list(play.scheduler.timed_out(START_S + 9.9)) == []
    assert list(play.scheduler.timed_out(START_S + 10.0)) == [1]
    assert list(play.scheduler.timed_out(START_S + 10.0)) == []
    assert (play.scheduler.completed, play.scheduler.failed) == (2, 0)


def test_a_request_that_is_sent_again_has_new_deadlines_and_counts_once():
    play = Play([request(0, cancel_after_s=3.0), request(1)], more={"timeout_s": 10.0})
    assert play.send(0.0) == [0]
    play.scheduler.send_again(0)
    assert play.scheduler.sent == 0
    assert play.send(2.0) == [0]
    assert play.scheduler.sent == 1
    assert list(play.scheduler.departed(START_S + 4.9)) == []
    assert list(play.scheduler.departed(START_S + 5.0)) == [0]
    assert list(play.scheduler.timed_out(START_S + 11.9)) == []
    assert list(play.scheduler.timed_out(START_S + 12.0)) == [0]


def test_a_request_whose_first_send_failed_counts_once():
    """It never was in flight, so it must not be taken off the count."""
    play = Play([request(0)])
    play.scheduler.release_due(play.now)
    play.scheduler.send_again(play.scheduler.ready.popleft())
    assert play.send() == [0]
    assert play.scheduler.sent == 1


def test_a_timed_phase_sends_nothing_after_its_end_and_drains():
    play = Play([request(i) for i in range(9)], concurrency=2, more={"duration_s": 10.0, "drain_s": 5.0})
    assert play.send(0.0) == [0, 1]
    play.end(0, time_s=9.9)
    assert play.send() == [2]
    play.end(1, time_s=10.0)
    assert play.send() == []
    assert play.scheduler.ending(START_S + 14.9) is None
    assert play.scheduler.ending(START_S + 15.0)[0] == "timeout"
    play.end(2)
    assert play.scheduler.ending(play.now) is not None


def test_fillers_keep_the_level_until_the_measured_requests_have_ended():
    play = Play([request(i) for i in range(7)], concurrency=2, more={"fillers": 4})
    assert play.send(0.0) == [0, 1]
    play.end(0, time_s=1.0)
    assert play.send() == [2]
    play.end(2, time_s=2.0)
    assert play.send() == [3], "a filler takes the place of a measured request"
    play.end(3, time_s=3.0)
    assert play.send() == [4]
    assert play.scheduler.ending(play.now) is None
    play.end(1, time_s=4.0)
    assert play.scheduler.ending(play.now)[0] == "cancelled"
    play.end(4, outcome="cancelled")
    counts = play.scheduler
    assert (counts.measured, counts.sent, counts.completed, counts.failed, counts.fillers) == (3, 3, 3, 0, 2)


def test_after_the_end_of_a_timed_phase_only_fillers_are_sent():
    """Measured requests that were not sent in time never are, be they next in the plan, parked, or thinking."""
    sessions = [request(i, session="s", think_s=9.5) for i in range(2)]
    plain = [request(i) for i in range(2, 9)]
    play = Play([*sessions, *plain], concurrency=2, more={"duration_s": 10.0, "fillers": 3})
    assert play.send(0.0) == [0, 2]
    play.end(0, time_s=1.0)
    assert play.send() == [3]
    play.end(3, time_s=10.5)
    assert play.send() == [6]
    play.end(6, time_s=11.0)
    assert play.send() == [7], "the user who thinks until 10.5 s is too late"
    assert play.scheduler.ending(play.now) is None
    play.end(2, time_s=12.0)
    assert play.scheduler.ending(play.now)[0] == "cancelled"
    assert (play.scheduler.sent, play.scheduler.fillers) == (3, 2)


@pytest.mark.parametrize(("answer_s", "drain_s", "limit_s"), [(2.0, None, 30.0), (40.0, None, 160.0), (40.0, 7.0, 7.0)])
def test_a_timed_phase_drains_for_several_times_the_longest_answer(answer_s, drain_s, limit_s):
    """Its requests may take as long as those before them; a limit that is set is the limit."""
    more = {"duration_s": 50.0, "drain_s": drain_s, "timeout_s": 600.0}
    play = Play([request(i) for i in range(9)], concurrency=2, more=more)
    play.send(0.0)
    play.end(0, time_s=answer_s)
    play.end(1, time_s=answer_s)
    play.send(49.9)
    assert play.scheduler.ending(START_S + 50.0 + limit_s - 0.1) is None
    assert play.scheduler.ending(START_S + 50.0 + limit_s)[0] == "timeout"


def test_the_age_of_what_is_in_flight_at_the_end_counts_and_without_answers_the_timeout_does():
    play = Play([request(i) for i in range(2)], concurrency=2, more={"duration_s": 50.0, "drain_s": None})
    play.send(0.0)
    assert play.scheduler.drain_limit_s == 100.0, "timeout_s"
    play.end(1, time_s=1.0)
    assert play.scheduler.drain_limit_s == 200.0


def test_a_timed_phase_does_not_wait_for_users_who_think_longer():
    play = Play([request(i, session="s", think_s=3600.0) for i in range(2)], more={"duration_s": 10.0})
    assert play.send(0.0) == [0]
    play.end(0, time_s=1.0)
    play.send()
    assert play.scheduler.ending(START_S + 9.0) is None
    assert play.scheduler.ending(START_S + 10.0) is not None


@pytest.mark.parametrize("duration_s", [None, 60.0])
def test_a_phase_that_is_finished_early_lets_its_requests_end_at_their_level(duration_s):
    more = {"duration_s": duration_s, "fillers": 3}
    play = Play([request(i) for i in range(9)], concurrency=2, more=more)
    assert play.send(0.0) == [0, 1]
    play.scheduler.finish(START_S + 1.0)
    play.scheduler.finish(START_S + 2.0)
    play.end(0, time_s=3.0)
    assert play.send() == [6], "a filler"
    assert play.scheduler.ending(play.now) is None
    play.end(1, time_s=4.0)
    assert play.scheduler.ending(play.now)[0] == "cancelled"
    assert (play.scheduler.sent, play.scheduler.completed, play.scheduler.fillers) == (2, 2, 1)


def test_a_stopped_phase_sends_nothing_more():
    play = Play([request(i) for i in range(9)], concurrency=2)
    assert play.send(0.0) == [0, 1]
    play.scheduler.stop("engine_died")
    play.end(0)
    assert play.send() == []
    outcome, message = play.scheduler.ending(play.now)
    assert outcome == "cancelled"
    assert "engine_died" in message


def test_in_slices_streams_pause_and_start_again_one_after_another():
    slices = {
        "slices": [(0.0, 2.0), (5.0, 7.0)],
        "stream_starts_s": [0.0, 0.5],
        "slice_drain_s": 2.0,
        "duration_s": 7.0,
    }
    play = Play([request(i) for i in range(9)], concurrency=2, more=slices)
    assert play.scheduler.timed
    assert play.send(0.0) == [0]
    assert play.scheduler.next_due(play.now) == START_S + 0.5
    assert play.send(0.5) == [1]
    play.end(0, time_s=1.5)
    assert play.send() == [2]
    assert play.scheduled_s(2) == 1.5
    play.end(1, time_s=2.5), play.end(2, time_s=3.0)
    assert play.send(4.9) == []
    assert list(play.scheduler.departed(play.now)) == []
    # nothing is in flight, and the phase goes on
    assert play.scheduler.ending(play.now) is None
    assert play.scheduler.next_due(play.now) == START_S + 5.0
    assert play.send(5.1) == [3]
    assert play.scheduled_s(3) == 5.0
    assert play.send(5.6) == [4]
    play.end(3, time_s=7.1)
    assert play.send() == []
    assert play.scheduler.ending(play.now) is None
    play.end(4, time_s=7.2)
    assert play.scheduler.ending(play.now) is not None


@pytest.mark.parametrize(("kept", "sent"), [(0, [2, 3]), (2, [2, 3]), (4, [4, 5]), (20, [])])
def test_a_slice_begins_with_the_requests_that_are_kept_for_it(kept, sent):
    """So that engines that take turns get the same ones, however many each has answered before."""
    slices = {"slices": [(0.0, 2.0), (5.0, 7.0)], "slice_drain_s": 1.0, "slice_requests": kept, "duration_s": 7.0}
    play = Play([request(i) for i in range(9)], concurrency=2, more=slices)
    assert play.send(0.0) == [0, 1]
    play.end(0, time_s=2.1), play.end(1, time_s=2.2)
    assert play.send(5.0) == sent


def test_what_has_not_ended_in_time_after_its_slice_is_given_up():
    """So that another engine has the machine for itself."""
    slices = {"slices": [(0.0, 2.0), (5.0, 7.0)], "slice_drain_s": 1.0, "duration_s": 7.0}
    play = Play([request(i) for i in range(9)], concurrency=2, more=slices)
    assert play.send(0.0) == [0, 1]
    play.end(0, time_s=2.5)
    assert list(play.scheduler.departed(START_S + 2.9)) == []
    assert play.scheduler.next_due(START_S + 2.9) == START_S + 3.0
    assert list(play.scheduler.departed(START_S + 3.0)) == [1]
    play.end(1, time_s=3.0, outcome="abandoned")
    assert play.send(5.0) == [2, 3]
    assert play.scheduler.failed == 0
