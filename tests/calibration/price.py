"""What an answer costs: engine seconds of `load.until` beside fixed counts and the rules by which two other tools stop.

All measure the same simulated engines, without their warm-up. The numbers and intervals of fixed counts and of `load.until` are
those of the point. The rules of the others are those of their sources, read in November 2026:

- AIPerf (ai-dynamo/aiperf, orchestrator/convergence/ci_width.py and strategies.py): whole runs, three to ten, until the width of
  Student's interval of one metric over the runs is below the threshold. Here runs of AIPERF_REQUESTS, the metric TTFT p50, and
  a threshold of twice the precision, which is half a width. Its numbers are means over the runs.
- perf_analyzer (triton-inference-server/perf_analyzer, src/inference_profiler.cc): windows of five seconds, three to ten, until
  the largest request rate and the largest mean latency of the last three are each at most so much larger than the smallest. Its
  numbers are those of these three; it has no intervals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median, stdev
from typing import Any

from calibration.simulate import Plant, SimulatedRun, simulate_run
from calibration.windows import SCENARIOS, Scenario, scenario_truth
from servebench.contracts.results import Record
from servebench.report.export.markdown import table
from servebench.util.figures import number
from servebench.util.units import NS_PER_S

PRECISIONS = (0.10, 0.05)
COUNTS = (50, 200, 1000)
METRICS = ("output_throughput_tok_s", "ttft_ms_p50")
LOADS = (SCENARIOS[4], SCENARIOS[0], SCENARIOS[2])
UNTIL_S = 600
"""What `load.until` may take at most."""
AIPERF_REQUESTS = 100
RUNS_MIN, RUNS_MAX = 3, 10
WINDOW_S, WINDOWS, TRIALS_MAX = 5.0, 3, 10


@dataclass(frozen=True)
class Shown:
    """A number as it is shown, and its interval."""

    value: float
    low: float | None = None
    high: float | None = None

    def within(self, share: float, true: float) -> bool:
        """Return whether the true value is so near."""
        return abs(self.value / true - 1) <= share

    def holds(self, true: float) -> bool | None:
        """Return whether the interval holds the true value; None without one."""
        return None if self.low is None or self.high is None else self.low <= true <= self.high


@dataclass(frozen=True)
class Paid:
    """What one repetition of a method shows for what it took. `claimed`: it says that it is precise."""

    seconds: float
    shown: tuple[Shown, ...]
    claimed: bool


def price_page(repetitions: int, seed: int, progress: Callable[[str], None]) -> str:
    """Return the table as Markdown, with so many repetitions of each cell; `progress` gets each line as it is known."""
    rows = []
    for scenario in LOADS:
        rng = random.Random(f"{seed}/price/{scenario.name}")
        found: dict[tuple[str, float], list[Paid]] = {}
        for _ in range(repetitions):
            for key, paid in _repetition(scenario, rng.randrange(1 << 31)):
                found.setdefault(key, []).append(paid)
        truth = scenario_truth(scenario)
        for (method, precision), some in sorted(found.items(), key=lambda one: -one[0][1]):
            rows.append([scenario.name, f"±{precision:.0%}", method, *_figures(some, precision, truth)])
            progress(" | ".join(rows[-1]))
    columns = ["load", "asked", "method", "engine s, mean", "says so", "throughput within", "TTFT p50 within"]
    return "\n".join([*table([*columns, "throughput interval holds", "TTFT interval holds"], rows), ""])


def _figures(some: Sequence[Paid], precision: float, truth: Any) -> list[str]:
    def share(values: Sequence[bool | None]) -> str:
        known = [one for one in values if one is not None]
        return f"{fmean(known):.0%}" if known else "-"

    within, holds = (
        [share([judge(paid.shown[i], truth[name]) for paid in some]) for i, name in enumerate(METRICS)]
        for judge in (lambda shown, true: shown.within(precision, true), Shown.holds)
    )
    return [number(fmean(paid.seconds for paid in some), 3), share([paid.claimed for paid in some]), *within, *holds]


def _repetition(scenario: Scenario, seed: int) -> Iterator[tuple[tuple[str, float], Paid]]:
    """Yield what each method shows in one repetition, by method and precision."""
    fixed = {count: simulate_run(scenario.plant(count), f"{seed}/{count}", seed=seed) for count in COUNTS}

    @cache
    def aiperf_run(number: int) -> SimulatedRun:
        return simulate_run(scenario.plant(AIPERF_REQUESTS), f"{seed}/run{number}", seed=seed)

    for precision in PRECISIONS:
        words = (*scenario.words, f"load.until={precision}", f"load.max_duration_s={UNTIL_S}")
        ours = simulate_run(Plant(words=words, variation=scenario.variation), f"{seed}/until", seed=seed)
        yield ("servebench", precision), _of_point(ours, claimed=ours.rows[0].ended_by == "precise")
        for count, run in fixed.items():
            yield (f"{count} requests", precision), _of_point(run, claimed=False)
        yield ("AIPerf", precision), aiperf(aiperf_run, precision)
        yield ("perf_analyzer", precision), perf_analyzer(fixed[COUNTS[-1]].records[0], precision)


def _of_point(run: SimulatedRun, *, claimed: bool) -> Paid:
    row = run.rows[0]
    shown = tuple(Shown(row[name], row.get(f"{name}_low"), row.get(f"{name}_high")) for name in METRICS)
    return Paid(_seconds(run.records[0]), shown, claimed)


def _seconds(records: Sequence[Record]) -> float:
    sent = [one.sent_ns for one in records if one.sent_ns is not None]
    return (max(one.ended_ns for one in records) - min(sent)) / NS_PER_S


def aiperf(run_of: Callable[[int], SimulatedRun], precision: float) -> Paid:
    """Return what AIPerf's convergence by `ci_width` shows; `run_of` makes one more run. Each is a start of its own, so they are
    more independent than those on one engine."""
    for count in range(RUNS_MIN, RUNS_MAX + 1):
        some = [run_of(number) for number in range(count)]
        shown = tuple(_student([run.rows[0][name] for run in some]) for name in METRICS)
        ttft = shown[METRICS.index("ttft_ms_p50")]
        if converged := ((ttft.high or 0.0) - (ttft.low or 0.0)) / ttft.value < 2 * precision:
            break
    return Paid(sum(_seconds(run.records[0]) for run in some), shown, converged)


def _student(values: Sequence[float]) -> Shown:
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
    return Shown(fmean(values), fmean(values) - half, fmean(values) + half)


def perf_analyzer(records: Sequence[Record], precision: float) -> Paid:
    """Return what perf_analyzer's windows show, of one long load."""
    begin = min(one.sent_ns for one in records if one.sent_ns is not None)
    windows: list[list[Record]] = [[] for _ in range(TRIALS_MAX)]
    for one in records:
        index = int((one.ended_ns - begin) / NS_PER_S / WINDOW_S)
        if one.outcome == "ok" and index < TRIALS_MAX:
            windows[index].append(one)
    for count in range(WINDOWS, TRIALS_MAX + 1):
        last = windows[count - WINDOWS : count]
        if (
            stable := all(last)
            and _alike([len(some) for some in last], precision)
            and _alike([fmean(one.ended_ns - (one.sent_ns or 0) for one in some) for some in last], precision)
        ):
            break
    merged = [one for some in last for one in some]
    tokens = sum(one.output_tokens or 0 for one in merged) / (WINDOWS * WINDOW_S)
    ttft_ms = median((one.first_event_ns or 0) - (one.sent_ns or 0) for one in merged) / 1e6
    return Paid(count * WINDOW_S, (Shown(tokens), Shown(ttft_ms)), stable)


def _alike(values: Sequence[float], share: float) -> bool:
    return max(values) / min(values) <= 1 + share
