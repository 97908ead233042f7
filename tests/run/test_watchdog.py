"""The watchdog of a phase: silence of an engine that was asked ends it, a pause of the plan does not."""

import pytest

from servebench.load.client.progress import Counts
from servebench.run import watchdog
from support.fake_engine import FakeRunning
from support.orchestration import Recorder
from support.records import record_ms


@pytest.fixture
def watch(monkeypatch):
    """`watch(*counts)`: what the watchdog says of these counts, a second apart, with a patience of 3 s."""

    def run(*counts):
        now = iter(range(100))
        monkeypatch.setattr(watchdog.time, "monotonic", lambda: float(next(now)))
        watcher = watchdog.Watcher(Recorder(), FakeRunning(), "x", 10, None, patience_s=3.0)
        return [watcher(one) for one in counts]

    return run


def counts(**facts):
    return Counts(**{"sent": 4, "in_flight": 4, **facts})


SEEN = {
    "silent": ([counts()] * 5, True),
    "reads": ([counts(reads=n) for n in range(8)], False),
    "a late read": ([counts(), counts(), counts(), counts(reads=1), counts(reads=1), counts(reads=1)], False),
    "nothing asked": ([counts(in_flight=0)] * 8, False),
    "only timeouts, which are no progress": ([counts(failed=n) for n in range(6)], True),
    "only refusals": ([counts(in_flight=0, failed=n) for n in range(6)], True),
    "answers": ([counts(completed=n) for n in range(6)], False),
    "a stopped worker, which reads nothing": ([counts(stalled=1)] * 8, False),
    "a worker that goes on": ([counts(stalled=1)] * 8 + [counts()] * 5, True),
}


@pytest.mark.parametrize(("seen", "ended"), SEEN.values(), ids=SEEN)
def test_silence_ends_a_phase(watch, seen, ended):
    assert ("no_progress" in watch(*seen)) is ended


def test_the_progress_has_the_median_ttft_of_the_requests_so_far_and_seldom_reads_them():
    events = Recorder(live=True)
    watcher = watchdog.Watcher(events, FakeRunning(), "x", 10, None, patience_s=3.0)
    assert (watcher.wants_look(0), watcher.wants_look(1), watcher.wants_look(5000)) == (False, True, False)
    watcher.see([record_ms(0, events=[n]) for n in (10, 20, 90)])
    watcher(counts(completed=3))
    assert events.heard[-1].ttft_ms == pytest.approx(20.0)
    assert [ended for ended in range(9) if watcher.wants_look(ended)] == [6, 7, 8]
    events.live = False
    assert not watcher.wants_look(8)


def test_engines_that_take_turns_show_their_progress_in_turns(monkeypatch):
    """From the first call on: others were still preparing their part before."""
    heard = {"a": [], "b": []}
    for name, slices in (("a", [(0.0, 2.0), (4.0, 6.0)]), ("b", [(2.0, 4.0)])):
        now = iter([0.0, *(10.0 + second for second in range(6))])
        monkeypatch.setattr(watchdog.time, "monotonic", lambda now=now: next(now))
        events = Recorder()
        watcher = watchdog.Watcher(events, FakeRunning(), name, 10, 6.0, patience_s=3.0, slices=slices)
        for second in range(6):
            before = len(events.heard)
            watcher(counts(reads=second + 1))
            heard[name] += [second] * (len(events.heard) - before)
    assert heard == {"a": [0, 1, 4, 5], "b": [2, 3]}
