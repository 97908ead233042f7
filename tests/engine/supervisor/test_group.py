"""An engine that is several processes with several addresses: it lives, is ready and ends as one."""

import os
import signal
from dataclasses import replace

import pytest

from servebench.engine.launchers.process import start, start_and_wait
from servebench.engine.supervisor.ports import port_problem
from servebench.run.requests import target_of
from support.waiting import wait_until


@pytest.fixture
def group(fake, context_of, log):
    """Start a group of two processes and wait until it is ready; return it and the two ports."""
    engine = fake()
    contexts = context_of(), context_of()
    started = []

    def start_both():
        first, second = (start(engine, one, engine.command(one), log) for one in contexts)
        pids, urls = (*first.pids, *second.pids), (*first.base_urls, *second.base_urls)
        started.append(replace(first, pids=pids, base_urls=urls, processes=(*first.processes, *second.processes)))
        return started[0]

    running = start_and_wait(start_both, contexts[0], lambda _: None, lambda _: None)
    yield running, tuple(one.port for one in contexts)
    running.stop()


def test_a_group_is_ready_and_stops_as_one(group):
    """It is ready when all addresses answer; load goes to the first; the stop leaves no process and no port."""
    running, ports = group
    assert running.base_urls == tuple(f"http://127.0.0.1:{port}/v1" for port in ports)
    assert target_of(running).port == ports[0]
    assert (running.pid, running.died()) == (running.pids[0], None)
    report = running.stop()
    assert (report.stopped, report.leftover) == (True, ())
    assert [port_problem("127.0.0.1", port) for port in ports] == [None, None]


def test_a_group_dies_with_any_of_its_processes(group):
    """The death of the second process is that of the engine."""
    running, _ = group
    os.kill(running.pids[1], signal.SIGKILL)
    wait_until(lambda: running.died() is not None)
    assert "SIGKILL" in (running.died() or "")
