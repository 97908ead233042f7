"""Samples beside the load: at the interval, once before and once after, and never in the way."""

import time

import pytest

from servebench.contracts.settings import TelemetrySettings
from servebench.contracts.telemetry import Reading, TelemetrySource
from servebench.telemetry import sampler as sampler_module
from servebench.telemetry.sampler import Sampler, Telemetry
from support.waiting import wait_until


class Counting(TelemetrySource):
    name = "counting"
    closed = 0

    def __init__(self, subject=None):
        super().__init__(subject)
        self.count = 0

    def sample(self):
        self.count += 1
        return self.count

    def readings(self, t_ns, sample):
        return [Reading(t_ns=t_ns, source=self.name, name=None, raw_name="n", labels="", value=float(sample))]

    def close(self):
        type(self).closed += 1


class Failing(Counting):
    name = "failing"

    def sample(self):
        raise OSError("gone")


class Unreadable(Counting):
    name = "unreadable"

    def readings(self, t_ns, sample):
        raise ValueError("what is this?")


class Untyped(Counting):
    name = "untyped"

    def readings(self, t_ns, sample):
        return [("n", float(sample))]


class Absent(Counting):
    name = "absent"

    def open(self):
        return "not on this machine"


class Broken(Counting):
    name = "broken"

    def open(self):
        raise RuntimeError("a plugin's fault")

    def close(self):
        raise RuntimeError("another fault")


class Unmade(Counting):
    name = "unmade"

    def __init__(self, subject=None):
        raise RuntimeError("a plugin's fault")


class NeverClosed(Counting):
    name = "never_closed"

    def close(self):
        raise RuntimeError("another fault")


def test_one_sample_before_one_after_and_some_between():
    source = Counting()
    began_ns = time.monotonic_ns()
    with Sampler([source], 0.05) as sampler:
        wait_until(lambda: source.count >= 4)
    passed_s = (time.monotonic_ns() - began_ns) / 1e9
    values = [reading.value for reading in sampler.readings()]
    assert values == [float(number) for number in range(1, source.count + 1)]
    assert 5 <= len(values) <= passed_s / 0.05 + 2
    stamps = [reading.t_ns for reading in sampler.readings()]
    assert stamps == sorted(stamps)


def test_a_phase_shorter_than_the_interval_has_its_two_ends():
    with Sampler([Counting()], 1e6) as sampler:
        pass
    assert len(sampler.readings()) == 2


@pytest.mark.parametrize("source", [Failing, Unreadable, Untyped])
def test_a_source_that_fails_loses_its_samples_and_nothing_else(source):
    with Sampler([source(), Counting()], 1e6) as sampler:
        pass
    assert [reading.source for reading in sampler.readings()] == ["counting", "counting"]
    assert sampler.failures == {source.name: 2}


def test_an_exception_of_the_load_passes_at_once():
    # the test's limit is shorter than the interval
    with pytest.raises(KeyboardInterrupt), Sampler([Counting()], 1e6):
        raise KeyboardInterrupt


def test_readings_are_logged_before_at_intervals_and_after_each_once(monkeypatch):
    monkeypatch.setattr(sampler_module, "LOG_INTERVAL_S", 0.02)
    monkeypatch.setattr(sampler_module, "LOG_SHARE", 1.0)
    batches = []
    with Sampler([Counting(), Unreadable()], 0.01, batches.append) as sampler:
        assert [one.value for one in batches[0]] == [1.0]
        wait_until(lambda: len(batches) >= 3)
    assert [one for batch in batches for one in batch] == sampler.readings()
    assert sampler.failures["unreadable"] >= 2


def test_a_phase_that_raises_ends_its_log_at_once():
    batches = []
    with pytest.raises(KeyboardInterrupt), Sampler([Counting()], 1e6, batches.append):
        raise KeyboardInterrupt
    assert len(batches) == 1


def test_what_is_missing_is_named_and_all_is_closed():
    Counting.closed = 0
    telemetry = Telemetry.open([NeverClosed, Counting, Absent, Broken, Unmade], None, TelemetrySettings(interval_s=0.5))
    telemetry.close()
    assert telemetry.facts() == {
        "interval_s": 0.5,
        "sources": ["never_closed", "counting"],
        "missing": {
            "absent": "not on this machine",
            "broken": "RuntimeError: a plugin's fault",
            "unmade": "RuntimeError: a plugin's fault",
        },
        "lost_samples": {},
    }
    assert Counting.closed == 1


def test_telemetry_that_is_off_opens_nothing():
    assert Telemetry.open([Broken], None, TelemetrySettings(enabled=False)).facts()["sources"] == []


def test_some_sources_can_be_read_while_the_phase_goes_on():
    """What cannot be parsed is counted once, when the phase is over."""
    with Sampler([Unreadable(), Counting()], 1e6) as sampler:
        assert [one.source for one in sampler.readings()] == ["counting"]
    sampler.readings()
    assert sampler.failures == {"unreadable": 2}
