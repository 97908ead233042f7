"""Time and memory of the summary of a point with many events.

    python tests/bench/summary.py [--events 10000000] [--an-answer 250]

Prints one JSON object: seconds for the row and for its intervals, memory of the records, and peak memory.
"""

import argparse
import json
import resource
import sys
import time

import numpy as np

from servebench.analysis.statistics import headline_intervals
from servebench.contracts.exchange import PhaseReport
from servebench.contracts.results import Record
from servebench.contracts.settings import SloSettings
from servebench.measure.points import PointContext, summarize

MS = 1_000_000


def records(events: int, an_answer: int, concurrency: int = 1000) -> list[Record]:
    """Return the records of a closed loop: TTFT around 500 ms, gaps around 20 ms."""
    rng = np.random.default_rng(0)
    made = []
    free = np.zeros(concurrency, dtype=np.int64)
    for number in range(events // an_answer):
        stream = number % concurrency
        sent = int(free[stream])
        first = sent + int(rng.gamma(25, 20) * MS)
        stamps = (first + np.cumsum(rng.gamma(25, 0.8, an_answer) * MS).astype(np.int64)).tolist()
        free[stream] = ended = stamps[-1] + 1000
        made.append(
            Record(
                run_id="r",
                point="c1000-r0",
                request_id=f"r{number}",
                session_id=None,
                warmup=False,
                scheduled_ns=sent,
                connect_started_ns=None,
                connected_ns=None,
                sent_ns=sent,
                first_event_ns=stamps[0],
                first_output_ns=stamps[0],
                last_event_ns=stamps[-1],
                ended_ns=ended,
                event_ns=stamps,
                event_tokens=None,
                reads_merged=0,
                prompt_tokens=100,
                planned_prompt_tokens=100,
                cached_tokens=0,
                reasoning_tokens=None,
                output_tokens=an_answer,
                asked_output_tokens=an_answer,
                counted_by="usage",
                finish_reason="length",
                outcome="ok",
                http_status=200,
                error=None,
                stamp_source="kernel",
            )
        )
    return made


def main() -> None:
    """Measure once and print the result."""
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--events", type=int, default=10_000_000)
    words.add_argument("--an-answer", type=int, default=250)
    asked = words.parse_args()
    made = records(asked.events, asked.an_answer)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    context = PointContext(
        run_id="r",
        point="c1000-r0",
        engine="e",
        engine_version=None,
        launch="attach",
        model="m",
        gpu="none",
        gpu_count=0,
        workload="unique",
        concurrency=1000,
    )
    report = PhaseReport(
        started_ns=0,
        ended_ns=1,
        planned=len(made),
        sent=len(made),
        elapsed_s=1.0,
        cpu_s=1.0,
        loop_lag_ms_p99=0.1,
        loop_lag_ms_max=1.0,
        clock_step_ns=0,
        stamp_source="kernel",
    )
    began = time.process_time()
    row, sample = summarize(made, context=context, report=report, slo=SloSettings(ttft_ms=600.0))
    row_s = time.process_time() - began
    began = time.process_time()
    headline_intervals(sample)
    intervals_s = time.process_time() - began
    found = {
        "events": row.events,
        "row_s": row_s,
        "intervals_s": intervals_s,
        "records_mb": before / 1024,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
