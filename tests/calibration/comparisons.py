"""Cells of `compare`, its gate, and `recommend`: pairs of simulated engines that are equal, or differ by a known amount."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

from calibration.cells import CalibrationCell, Outcome, Promise
from calibration.simulate import Plant, run_data, simulate_run
from servebench.analysis.advice import Adviser
from servebench.analysis.conclude import conclude
from servebench.analysis.pairing import compare_speed
from servebench.analysis.recommendation.rules import load_rules
from servebench.analysis.verdict.gate import GateQuestion, evaluate_gate
from servebench.analysis.verdict.model import Comparison

SPREADS = (0.0, 0.01, 0.02, 0.03)
VERDICTS = ("faster", "slower", "mixed")
STARTS = 5
EARLIER = 8
"""Starts of the set-up in earlier studies, where some are known."""
LIMIT = 0.05

AA = Promise(
    name="aa",
    text="`compare` calls two equal engines faster or slower (four levels)",
    bar=0.05,
)
POWER_5 = Promise(
    name="power5", text="a slowdown of 5% is found with five starts that differ by 1%", bar=0.80, at_most=False
)
POWER_10 = Promise(
    name="power10", text="a slowdown of 10% is found with five starts that differ by 1%", bar=0.95, at_most=False
)
GATE = Promise(
    name="gate",
    text="the gate passes a regression of 2 points more than its limit",
    bar=0.05,
)
RECOMMEND = Promise(name="recommend", text="`recommend` names a winner among equal engines", bar=0.05)
ANSWER = Promise(
    name="answer",
    text="the last screen names a best of two equal engines at some level",
    bar=0.05,
)

FOUND = {"output_throughput_tok_s": "output throughput", "ttft_ms_p50": "TTFT p50", "e2e_ms_p50": "E2E p50"}
"""The metrics in which a slowdown is to be found."""

QUICK = Plant(words=("load=quick",))
UNTIL = Plant(words=("load=quick", "load.until=10%"))
VARIED = (
    "workload.input_tokens={kind:normal,mean:256,stdev:128,min:16,max:768}",
    "workload.output_tokens={kind:normal,mean:64,stdev:24,min:8,max:160}",
)
"""Requests of different lengths, so that latencies near a limit differ from request to request."""


def cells() -> Iterator[CalibrationCell]:
    """Yield the cells."""
    for starts in (1, 2, STARTS):
        for spread in SPREADS:
            name = f"{_count(starts)} a side, starts differ by {spread:.0%}"
            yield CalibrationCell(
                promises=(AA,), name=name, share=0.5, trial=partial(_equal, starts=starts, spread=spread)
            )
    for spread in SPREADS:
        name = f"one start a side, {EARLIER} earlier starts known, starts differ by {spread:.0%}"
        yield CalibrationCell(
            promises=(AA,), name=name, share=0.5, trial=partial(_equal, starts=1, spread=spread, earlier=EARLIER)
        )
    for starts, limits in ((1, QUICK), (1, UNTIL), (STARTS, QUICK)):
        for spread in SPREADS:
            name = f"{_count(starts)} a side{', load.until=10%' * (limits is UNTIL)}, starts differ by {spread:.0%}"
            trial = partial(_best, plant=limits.planted(start_sd=spread), starts=starts)
            yield CalibrationCell(promises=(ANSWER,), name=name, share=0.5, trial=trial)
    for promise, slowdown in ((POWER_5, 1.05), (POWER_10, 1.10)):
        trial = partial(_slowed, promise=promise, slowdown=slowdown)
        yield CalibrationCell(promises=(promise,), name="four levels", share=0.5, trial=trial)
    for starts, spread in ((1, 0.0), (1, 0.01), (STARTS, 0.0), (STARTS, 0.01), (STARTS, 0.03)):
        name = f"7% slower, limit 5%, {_count(starts)}, starts differ by {spread:.0%}"
        yield CalibrationCell(
            promises=(GATE,), name=name, share=0.25, trial=partial(_passed, starts=starts, spread=spread)
        )
    for starts in (1, STARTS):
        name = f"{_count(starts)}, starts differ by 1%, a level near the SLO"
        share = 1.0 if starts == 1 else 0.25
        yield CalibrationCell(
            promises=(RECOMMEND,), name=name, share=share, trial=partial(_won, starts=starts), truth=_near_slo
        )


def _count(starts: int) -> str:
    return "one start" if starts == 1 else f"{starts} starts"


def _compared(seed: int, starts: int, spread: float, slowdown: float, earlier: int = 0) -> Comparison:
    """Compare two engines of which the second is slower by `slowdown`, with so many earlier starts of the first stored."""
    plant = QUICK.planted(start_sd=spread)
    a, b, *stored = [
        run_data(simulate_run(side, f"{seed}/{name}", seed=seed, starts=count), plant, name)
        for name, side, count in (
            ("a", plant, starts),
            ("b", plant.planted(slowdown=slowdown), starts),
            ("0", plant, earlier),
        )
        if count
    ]
    return compare_speed([(a, b)], earlier=stored)[0]


def _equal(seed: int, _truth: None, *, starts: int, spread: float, earlier: int = 0) -> Outcome:
    """Return whether two equal engines are called different."""
    return {(AA, ""): float(_compared(seed, starts, spread, 1.0, earlier).result in VERDICTS)}


def _best(seed: int, _truth: None, *, plant: Plant, starts: int) -> Outcome:
    """Return whether the answer of a study of two equal engines marks one of them as the best."""
    runs = [
        run_data(simulate_run(plant, f"{seed}/{name}", seed=seed, starts=starts), plant, name) for name in ("a", "b")
    ]
    answer = conclude(runs).answer
    return {(ANSWER, ""): float(any(lead.clear for one in answer.workloads for lead in one.leads))}


def _slowed(seed: int, _truth: None, *, promise: Promise, slowdown: float) -> Outcome:
    """Return in which metrics a slowdown is found."""
    rows = _compared(seed, STARTS, 0.01, slowdown).regressions
    slower = {row.metric.name for row in rows}
    return {(promise, title): float(name in slower) for name, title in FOUND.items()}


def _passed(seed: int, _truth: None, *, starts: int, spread: float) -> Outcome:
    """Return whether the gate passes a regression of 2 points more than its limit."""
    gate = evaluate_gate([_compared(seed, starts, spread, 1.0 + LIMIT + 0.02)], GateQuestion(LIMIT))
    return {(GATE, ""): float(not gate.failed and not gate.undecided)}


@lru_cache(maxsize=1)
def _near_slo() -> Plant:
    """Return a set-up whose SLO is met by just 99% of the requests at its third level, in the long run."""
    row = simulate_run(Plant(words=("load.concurrency=[4]", "load.requests=4000", *VARIED)), "slo", seed=1).rows[0]
    assert row.ttft_ms_p99 is not None
    limit = round(row.ttft_ms_p99, 1)
    return Plant(words=("load=quick", f"slo.ttft_ms={limit}", *VARIED))


def _won(seed: int, plant: Plant, *, starts: int) -> Outcome:
    """Return, by use case in which both have a score, whether one of two equal engines wins."""
    runs = [
        run_data(simulate_run(plant, f"{seed}/{name}", seed=seed, starts=starts), plant, name) for name in ("a", "b")
    ]
    return {
        (RECOMMEND, one.use_case.title): float(one.best is not None)
        for one in Adviser(runs, load_rules(None)).recommendations()
        if len(one.ranking) > 1
    }
