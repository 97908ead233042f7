"""The worker process: drives one phase of load and writes what it sees to a spool.

Standard input brings one job (see `job.py`), then one byte for each order: `g` go, `s` stop. When the input closes, the
coordinator is gone and the worker stops. It answers on standard output with lines of JSON.
"""

import contextlib
import errno
import gc
import os
import sys
import time

import orjson

from servebench.load.client.connection import WireFailure, raise_descriptor_limit
from servebench.load.client.job import GO, read_job
from servebench.load.client.loop import EventLoop
from servebench.load.client.phase import LoadPhase
from servebench.load.client.progress import WorkerProgress
from servebench.load.client.spool import SpoolWriter
from servebench.util.clock import step_ns, take_anchor
from servebench.util.errors import reason_of
from servebench.util.signals import leave_stopping_to_the_parent
from servebench.util.units import NS_PER_MS, NS_PER_S

PRIORITY = -10


def main() -> int:
    """Read a job, wait for the order to go, drive the phase, and report."""
    # a terminal sends Ctrl-C to the whole process group: the coordinator decides what it means
    leave_stopping_to_the_parent()
    raise_descriptor_limit()
    with contextlib.suppress(OSError):
        # where it is allowed: for a client that is off its core for 100 ms, events share a read
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    orders = sys.stdin.fileno()
    job = read_job(orders)
    try:
        progress = WorkerProgress.attach(job.progress)
        with open(job.spool, "ab", buffering=0) as file, contextlib.closing(progress):  # noqa: PTH123
            phase = LoadPhase(job, SpoolWriter(file), progress)
            phase.prepare()
            loop = EventLoop(phase, orders)
            loop.connect()
            _send_line(ready=len(phase.pool.idle))
            if not phase.scheduler.stopped and os.read(orders, 1) != GO:
                return 0
            _send_line(**_drive(loop))
    except WireFailure as failure:
        _send_line(failed=str(failure))
        return 1
    except OSError as error:
        _send_line(failed=f"cannot write {job.spool}: {reason_of(error)}", full=error.errno == errno.ENOSPC)
        return 1
    return 0


def _send_line(**facts: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(facts) + b"\n")
    sys.stdout.buffer.flush()


def _cpu_s() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = os.times()
    return time.process_time() + used.children_user + used.children_system


def _drive(loop: EventLoop) -> dict[str, object]:
    """Drive the phase and return the fields of its PhaseReport."""
    phase = loop.phase
    # a collection would stop the loop; everything that is needed exists by now
    gc.collect()
    gc.freeze()
    gc.disable()
    cpu_s, before = _cpu_s(), take_anchor()
    try:
        loop.run()
    finally:
        phase.close()
    after = take_anchor()
    return {
        "started_ns": before.realtime_ns,
        "ended_ns": after.realtime_ns,
        "planned": phase.scheduler.measured,
        "sent": phase.scheduler.sent,
        "fillers": phase.scheduler.fillers,
        "elapsed_s": (after.monotonic_ns - before.monotonic_ns) / NS_PER_S,
        "cpu_s": _cpu_s() - cpu_s - (phase.reader.start_cpu_s if phase.reader is not None else 0.0),
        "loop_lag_ms_p99": loop.lags.percentile_ms(0.99),
        "loop_lag_ms_max": loop.lags.max_ns / NS_PER_MS,
        "clock_step_ns": step_ns(before, after),
        "stamp_source": "user" if loop.user_stamps else "kernel",
        "stopped": phase.scheduler.stopped,
        "connections_opened": phase.pool.opened,
        "connections_failed": phase.pool.refused,
        "receive_queue_bytes_max": phase.queue_bytes_max,
        "nap_ms": 1000 * loop.nap_s,
    }


if __name__ == "__main__":
    raise SystemExit(main())
