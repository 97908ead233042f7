"""CPU hogs of random start and length beside real llama.cpp: each is named by its pid and dated to within a second.

SERVEBENCH_REAL_HOGS is their number. The machine need not be quiet: others are named as well, and do not count.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from servebench.analysis.disturbance import find_disturbances
from servebench.contracts.telemetry import Reading
from servebench.store.layout import RunFolder
from servebench.store.tables import read_readings, read_rows
from support.commands import servebench_started
from support.waiting import wait_until

HOGS = int(os.environ.get("SERVEBENCH_REAL_HOGS", "4"))
PER_POINT = 5
WORDS = (
    "workload=unique",
    "workload.input_tokens=16",
    "workload.output_tokens=16",
    "load.concurrency=[2]",
    "tracking=none",
)
WORDS += ("load.self_check=never", "study.name=s", "load.duration_s=90", "load.timeout_s=120", "load.warmup_requests=4")


def hog(seconds: float) -> tuple[int, int, int]:
    """Keep a core busy; return the pid, start and end (ns)."""
    started = time.time_ns()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    return process.pid, started, time.time_ns()


def readings_beside(
    folder: Path, hogs: list[float], rng: random.Random
) -> tuple[list[Reading], list[tuple[int, int, int]]]:
    """Measure one point with hogs of these lengths beside it."""
    run = RunFolder(folder / "outputs" / "s" / "00_llamacpp_unique")
    with servebench_started(folder, *WORDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: [one for one in run.spools() if one.name == "c2-r0.spool"], limit_s=600)
        time.sleep(rng.uniform(4, 8))
        done = []
        for seconds in hogs:
            done.append(hog(seconds))
            time.sleep(rng.uniform(3, 6))
        assert process.wait(600) == 0
    assert read_rows(run)[0].disturbances
    return read_readings(run)["c2-r0"], done


@pytest.mark.parametrize("number", range(-(-HOGS // PER_POINT)))
def test_each_hog_is_named_and_dated(tmp_path, installed, number):
    installed("llamacpp")
    rng = random.Random(number)
    lengths = [rng.uniform(2, 12) for _ in range(min(PER_POINT, HOGS - PER_POINT * number))]
    readings, hogs = readings_beside(tmp_path, lengths, rng)
    found = find_disturbances(readings)
    wrong = []
    for pid, start, end in hogs:
        own = [one for one in found if one.pid == pid]
        errors = [((one.start_ns - start) / 1e9, (one.end_ns - end) / 1e9) for one in own]
        sys.stdout.write(f"hog {pid} of {(end - start) / 1e9:.1f} s: {[one.took for one in own]}, off by {errors}\n")
        if len(own) != 1 or max(map(abs, errors[0])) > 1:
            wrong.append(pid)
    others = [one.words(hogs[0][1]) for one in found if one.pid not in {pid for pid, _, _ in hogs}]
    sys.stdout.write(f"others: {others}\n")
    assert len(wrong) <= len(hogs) // 20, wrong
