"""Signals end a command in order, once; and a closed terminal ends none that was told not to mind."""

import os
import signal
import subprocess
import sys
import time

import pytest

WAITS = """
import sys, time
from servebench.util.signals import interrupts
with interrupts():
    try:
        print("ready", flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        time.sleep(0.5)
        print("in order", flush=True)
        sys.exit(130)
"""
CHILD = """
import time
from servebench.util.signals import leave_stopping_to_the_parent
leave_stopping_to_the_parent()
print("ready", flush=True)
time.sleep(1)
"""


def started(program, **options):
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_two_signals_end_it_once(number):
    process = started(WAITS)
    process.send_signal(number)
    time.sleep(0.1)
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("in order\n", 130)


def test_nohup_is_honoured():
    """`nohup servebench ... &` goes on when the terminal closes, and still ends when it is told to."""
    process = started(WAITS, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.terminate()
    assert process.communicate(timeout=30)[0] == "in order\n"


def test_a_helper_process_waits_for_its_parent():
    process = started(CHILD)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    assert process.wait(30) == 0
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_in_its_start_says_so(tmp_path, number):
    """One line and 130, before anything was begun."""
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "servebench", "run", "--lock", str(fifo)],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    # it waits for somebody to write into its manifest
    writer = os.open(fifo, os.O_WRONLY)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    os.close(writer)
    assert (err, process.returncode) == ("servebench: interrupted\n", 130)
