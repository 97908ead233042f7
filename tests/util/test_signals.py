"""A command that is stopped by a signal ends in order and once; nohup is honoured."""

import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

LIMIT_S = 300

# each waits for a line of its standard input, so that the test and not a clock decides when it goes on; it looks up
# from time to time because Python does not see a signal that comes just before a read that blocks
WAITS = """
import select
import sys
from servebench.util.signals import interrupts
with interrupts():
    try:
        print("ready", flush=True)
        while True:
            while not select.select([sys.stdin], [], [], 0.1)[0]:
                pass
            print(sys.stdin.readline().strip(), flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        print(sys.stdin.readline().strip(), flush=True)
        sys.exit(130)
"""
CHILD = """
import sys
from servebench.util.signals import leave_stopping_to_the_parent
leave_stopping_to_the_parent()
print("ready", flush=True)
print(sys.stdin.readline().strip(), flush=True)
"""
# the entry point, held at its first step: a regular file cannot hold it, and others are refused
COMMAND = """
import time
from servebench.cli import main as entry
def held(words):
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
entry.dispatch = held
raise SystemExit(entry.main())
"""


@contextmanager
def started(program, *, hangup=signal.SIG_DFL):
    """A process that has written "ready"; `say` gives it a line and returns the next line that it writes.

    `hangup` is how it was started to treat SIGHUP, whatever the tests themselves were started with."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),  # noqa: PLW1509
    )  # fmt: skip

    def say(line):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    with process:
        assert process.stdout.readline() == "ready\n"
        yield process, say


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_cut_the_cleaning_up_short(number):
    with started(WAITS) as (process, say):
        process.send_signal(number)
        assert process.stdout.readline() == "interrupted\n"
        process.send_signal(number)
        assert say("in order") == "in order"
        assert process.wait(LIMIT_S) == 130


def test_nohup_is_honoured():
    """`nohup servebench ... &` goes on when the terminal closes, and still ends on SIGTERM."""
    with started(WAITS, hangup=signal.SIG_IGN) as (process, say):
        process.send_signal(signal.SIGHUP)
        assert say("still here") == "still here"
        process.terminate()
        assert process.stdout.readline() == "interrupted\n"
        assert say("in order") == "in order"


def test_a_helper_process_waits_for_its_parent():
    with started(CHILD) as (process, say):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(number)
        assert say("still here") == "still here"
        assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_stopped_while_it_starts_says_so(number):
    """One line and exit code 130."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=LIMIT_S)
    assert (err, process.returncode) == ("servebench: interrupted\n", 130)
