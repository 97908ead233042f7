"""Time and memory of the summary of a point with many events.

    python tests/bench/summary.py [--events 10000000] [--an-answer 250]

Prints one JSON object: seconds for the row and for its intervals, memory of the records, and peak memory.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from servebench.analysis.statistics import headline_intervals
from servebench.contracts.results import Record
from servebench.contracts.settings import SloSettings
from support.records import phase_report, record, summary_of

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
            record(
                f"r{number}",
                sent_ns=sent,
                event_ns=stamps,
                point="c1000-r0",
                ended_ns=ended,
                prompt_tokens=100,
                planned_prompt_tokens=100,
                cached_tokens=0,
                asked_output_tokens=an_answer,
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
    report = phase_report(planned=len(made), sent=len(made))
    began = time.process_time()
    row, sample = summary_of(made, report, SloSettings(ttft_ms=600.0), point="c1000-r0", concurrency=1000)
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
