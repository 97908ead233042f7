"""The load worker of this checkout against that of another one: CPU and error, in alternating runs on one server.

    python tests/bench/versus.py CHECKOUT [--level 1000] [--pairs 5]

Prints one JSON object a level. Ratios are this checkout's value over the other's, the median over the pairs, so they hold on a
machine that is not idle. The other checkout must read the same job and write the same spool.
"""

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import truth

from servebench.load.client import job
from servebench.load.coordinator import worker_process

LEVELS: dict[str, dict[str, Any]] = {
    "64": {"streams": 64, "ttft_us": 100_000, "itl_us": 20_000, "tokens": 60},
    "1000": {"streams": 1000, "ttft_us": 500_000, "itl_us": 50_000, "tokens": 40},
    "flood": {"streams": 64, "ttft_us": 1000, "itl_us": 0, "tokens": 3000},
}


def _known_facts(source: Path) -> tuple[str, ...]:
    """Return the facts of a plan that the worker of these sources knows; an older one refuses others."""
    text = "".join(path.read_text() for path in (source / "servebench" / "load").rglob("*.py"))
    return tuple(name for name in job._OF_PLAN if f"    {name}: " in text)


@contextlib.contextmanager
def worker_of(checkout: Path) -> Iterator[None]:
    """Have `drive` start the load worker of another checkout."""
    source = checkout.resolve() / "src"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), *filter(None, sys.path)])}
    with (
        mock.patch.object(worker_process, "worker_environment", return_value=environment),
        mock.patch.object(job, "_OF_PLAN", _known_facts(source)),
    ):
        yield


def compare_checkouts(base: Path, level: str, pairs: int) -> dict[str, object]:
    """Measure both workers in turns and return the medians and the ratio of CPU time per event."""
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for number in range(pairs):
        # the second of a pair may meet a warmer machine: change the order
        for turn in (0, 1) if number % 2 else (1, 0):
            with worker_of(base) if turn else contextlib.nullcontext():
                (theirs if turn else ours).append(truth.measure(rounds=2, **LEVELS[level]))

    def medians(found: list[dict[str, float]]) -> dict[str, float]:
        names = ("cpu_us_an_event", "ttft_error_ms_mean", "itl_error_ms_mean", "events_s", "merged", "failed")
        return {name: round(statistics.median(one[name] for one in found), 4) for name in names}

    ratios = [one["cpu_us_an_event"] / other["cpu_us_an_event"] for one, other in zip(ours, theirs, strict=True)]
    return {
        "level": level,
        "cpu_ratio": round(statistics.median(ratios), 3),
        "cpu_ratios": [round(ratio, 3) for ratio in ratios],
        "ours": medians(ours),
        "theirs": medians(theirs),
    }


def main() -> None:
    """Compare and print."""
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("base", type=Path, metavar="CHECKOUT")
    words.add_argument("--level", choices=LEVELS, action="append")
    words.add_argument("--pairs", type=int, default=5)
    asked = words.parse_args()
    for level in asked.level or LEVELS:
        found = compare_checkouts(asked.base, level, asked.pairs)
        sys.stdout.write(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n")


if __name__ == "__main__":
    main()
