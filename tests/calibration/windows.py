"""Cells of single points: coverage of intervals, open loops, searches, and alarms about trends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from statistics import fmean

from calibration.cells import CalibrationCell, Outcome, Promise, Shown
from calibration.simulate import EPOCH_NS, STEADY, Plant, job_of, simulate_run, simulate_search
from servebench.analysis.statistics import controlled
from servebench.analysis.warnings.catalog import NOT_STATIONARY
from servebench.contracts.emulation import Variation
from servebench.contracts.point_row import PointRow
from servebench.measure.points import point_sample
from servebench.util.units import NS_PER_S
from servebench.workload.build.lengths import mean_length
from support.records import HEADLINES

COVERAGE = Promise(
    name="coverage",
    text="the 95% interval of a point holds the long-run value of its start",
    bar=0.92,
    at_most=False,
)
WIDTH = Promise(
    name="width",
    text="the 95% interval of a point is at most twice as wide as the 95% of values that repetitions give",
    bar=2.0,
    kind="width",
)
UNTIL = Promise(
    name="until",
    text="the 95% intervals of a point that ended by `load.until` hold the long-run value",
    bar=0.93,
    at_most=False,
)
OPEN_LOOP = Promise(
    name="open_loop", text="an open loop measures the long-run value within 2% on average", bar=0.02, kind="bias"
)
SEARCH_NEAR = Promise(
    name="search_near",
    text="a search that names a level is within 10% of the true one",
    bar=0.95,
    at_most=False,
)
SEARCH_ABOVE = Promise(name="search_above", text="a search names a level above the true one", bar=0.05)
SEARCH_BRACKET = Promise(
    name="search_bracket",
    text="the bracket of a search that names a level holds the true one",
    bar=0.90,
    at_most=False,
)
STATIONARY = Promise(name="stationary", text="`not_stationary` is a false alarm", bar=0.02)
SHIFT_FOUND = Promise(
    name="shift_found",
    text="in a closed loop of 500 requests `not_stationary` finds a step of 15% in the middle, and a warm-up (20% faster after a "
    "third)",
    bar=0.60,
    at_most=False,
)
DRIFT_FOUND = Promise(
    name="drift_found",
    text="no promise: `not_stationary` finds what hardly exceeds wander, or happens in an open loop",
    bar=0.0,
    at_most=False,
)

UNTIL_METRICS = (
    *("output_throughput_tok_s", "ttft_ms_mean", "ttft_ms_p50", "ttft_ms_p95", "ttft_ms_p99"),
    *("tpot_ms_mean", "itl_ms_mean", "e2e_ms_mean", "e2e_ms_p50"),
)
TRUTH_REQUESTS = 16_000
NEAR = 0.10
TRUTH_ERROR = 0.02
"""How exactly the true level of a search is known."""
SLO_TRUTH_REQUESTS = {"concurrency": 6000, "rate": 30_000}
"""Of each point of the truth: at a rate the requests that miss the SLO come in long bursts."""

LENGTHS_64 = "workload.output_tokens={kind:normal,mean:64,stdev:40,min:2,max:200}"
LENGTHS_200 = "workload.output_tokens={kind:normal,mean:200,stdev:150,min:2,max:600}"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A load on an engine, without its number of requests."""

    name: str
    words: tuple[str, ...]
    variation: Variation = STEADY
    counts: tuple[int, ...] = (100, 500, 2000)
    truth_runs: int = 1
    """How many long runs the truth is the mean of."""

    def plant(self, requests: int) -> Plant:
        """Return it with a number of requests, which no time limits."""
        words = [word for word in self.words if not word.startswith("load.max_duration_s=")]
        return Plant(words=(*words, f"load.requests={requests}"), variation=self.variation)


SCENARIOS = (
    Scenario(name="8 users, 64 ± 40 tokens", words=("load.concurrency=[8]", LENGTHS_64)),
    Scenario(
        name="8 users, 64 ± 40 tokens, no wander",
        words=("load.concurrency=[8]", LENGTHS_64),
        variation=Variation(start_sd=0.0, wander_sd=0.0),
        counts=(100, 2000),
    ),
    Scenario(
        name="8 users, 64 ± 40 tokens, wander 5% over 10 s",
        words=("load.concurrency=[8]", LENGTHS_64),
        variation=Variation(start_sd=0.0, wander_sd=0.05, wander_s=10.0),
        counts=(100, 500),
    ),
    Scenario(name="32 users, 200 ± 150 tokens", words=("load.concurrency=[32]", LENGTHS_200), counts=(320, 2000)),
    Scenario(name="1 user, 64 ± 40 tokens", words=("load.concurrency=[1]", LENGTHS_64)),
    Scenario(name="6 requests/s, 64 ± 40 tokens", words=("load=rate", "load.rate=[6]", LENGTHS_64)),
)

CROWD = Scenario(name="64 users, 64 ± 40 tokens", words=("load.concurrency=[64]", LENGTHS_64))
BUSY = Scenario(
    name="12 requests/s of 19 possible, 64 ± 40 tokens",
    words=("load=rate", "load.rate=[12]", "engine.max_num_seqs=16", LENGTHS_64),
    truth_runs=4,
)

CAPACITY_REQ_S = 19.1
"""What the engine of BUSY completes when requests always wait: of 64 users it answers 19.1 a second, of 32 19.2."""
LONG_QUEUES = {0.5: 1, 0.8: 8, 0.95: 24}
"""Of how many long runs the truth is the mean, by share of the capacity."""
STOPPED = (
    *(*SCENARIOS, CROWD, BUSY),
    Scenario(
        name="512 users, 64 ± 40 tokens",
        # answers take 7 s, and an interval takes seven times as long
        words=("load.concurrency=[512]", "engine.max_num_seqs=512", "load.max_duration_s=600", LENGTHS_64),
    ),
    *(
        Scenario(
            name=f"open loop at {share:g} of capacity",
            words=("load=rate", f"load.rate=[{share * CAPACITY_REQ_S:.4g}]", "engine.max_num_seqs=16", LENGTHS_64),
            truth_runs=runs,
        )
        for share, runs in LONG_QUEUES.items()
    ),
    Scenario(
        name="open loop, 4 prompts of 2,000 tokens a second",
        words=("load=rate", "load.rate=[4]", "workload.input_tokens=2000", LENGTHS_64),
        truth_runs=2,
    ),
    Scenario(
        name="8 users, answers with a heavy tail",
        words=("load.concurrency=[8]", "workload.output_tokens={kind:lognormal,mean:64,stdev:128,min:2,max:1500}"),
    ),
    Scenario(
        name="8 users, waves of 30 s",
        words=("load.concurrency=[8]", LENGTHS_64),
        variation=Variation(start_sd=0.0, wander_sd=0.03, wander_s=30.0),
    ),
    Scenario(
        name="8 users, 20% slower in the first 10 s",
        words=("load.concurrency=[8]", LENGTHS_64),
        variation=replace(STEADY, slowdown=1.2, shift=1 / 1.2 - 1, shift_over_s=10.0),
    ),
)
"""The loads on which points end by themselves. An engine that slows down for good has no long-run value, so none drifts."""

ANSWERS_S = {1.5: 130, 7.0: 600, 15.0: 1200}
"""Tokens of answers of about so many seconds."""
OPEN_RATES = {1.5: (4.0, 25.0, 40.0), 7.0: (4.0, 8.6, 13.8), 15.0: (4.0, 7.5)}
"""A low rate, about half of what the engine completes, and eight tenths of it. From nine tenths on the queue of random arrivals
comes in rare long episodes: three runs of an hour have TTFT means of 72, 194 and 237 ms."""
ARRIVALS = ("constant", "poisson")
OPEN_METRICS = ("output_throughput_tok_s", "goodput_req_s", "ttft_ms_mean")


def cells() -> Iterator[CalibrationCell]:
    """Yield the cells."""
    for scenario in SCENARIOS:
        for count in scenario.counts:
            yield CalibrationCell(
                promises=(COVERAGE, WIDTH),
                name=f"{scenario.name}, {count} requests",
                trial=partial(_covered, scenario=scenario, requests=count),
                truth=partial(scenario_truth, scenario),
                share=min(1.0, 500 / count),
            )
    for scenario in STOPPED:
        for until in ("10%", "5%"):
            yield CalibrationCell(
                promises=(UNTIL,),
                name=f"{scenario.name}, load.until={until}",
                trial=partial(_stopped, scenario=scenario, until=until),
                truth=partial(scenario_truth, scenario),
                share=0.5,
            )
    for seconds, rates in OPEN_RATES.items():
        for rate, arrival in product(rates, ARRIVALS):
            load = OpenLoad(seconds=seconds, rate=rate, arrival=arrival)
            yield CalibrationCell(
                promises=(OPEN_LOOP,),
                name=f"answers of {seconds:g} s at {rate:g}/s, {arrival}",
                trial=partial(_open_loop, load=load),
                truth=partial(_open_truth, load),
                # random arrivals scatter more
                share=1.0 if arrival == "poisson" else 0.25,
            )
    for name in SEARCHES:
        yield CalibrationCell(
            promises=(SEARCH_NEAR, SEARCH_ABOVE, SEARCH_BRACKET),
            name=name,
            trial=partial(_searched, name=name),
            truth=partial(_true_level, name),
            share=0.2,
        )
    for name, (scenario, counts) in TRENDS.items():
        for count in counts:
            trial = partial(_alarmed, scenario=scenario, requests=count)
            yield CalibrationCell(promises=(STATIONARY,), name=f"{name}, {count} requests", share=0.5, trial=trial)
    for scenario in (SCENARIOS[0], SCENARIOS[5]):
        for name in CHANGES:
            for count in (100, 500):
                promise = SHIFT_FOUND if (scenario, count) == (SCENARIOS[0], 500) and name in PROMISED else DRIFT_FOUND
                yield CalibrationCell(
                    promises=(promise,),
                    name=f"{scenario.name}, {name}, {count} requests",
                    share=0.5,
                    trial=partial(_found_change, scenario=scenario, requests=count, name=name, promise=promise),
                    truth=partial(window_of, scenario, count, CHANGES[name][0]),
                )


# intervals


@lru_cache(maxsize=32)
def scenario_truth(scenario: Scenario) -> Mapping[str, float]:
    """Return the long-run values of a scenario; the mean E2E of a closed loop as if the mean length of its answers were that of
    their distribution, from which 16,000 differ by 0.5%: more than short windows with known lengths do."""
    plant = scenario.plant(TRUTH_REQUESTS)
    runs = [simulate_run(plant, f"truth{run or ''}", seed=-1 - run) for run in range(scenario.truth_runs)]
    values = {name: [value for run in runs if (value := run.rows[0].get(name)) is not None] for name in HEADLINES}
    found = {name: fmean(known) for name, known in values.items() if known}
    settings = job_of(plant.words).settings
    if settings.load.concurrency is not None:
        mean = mean_length(settings.workload.output_tokens)
        samples = [point_sample(run.records[0], run.rows[0].concurrency, mean_tokens=mean) for run in runs]
        found["e2e_ms_mean"] = fmean(
            float(controlled(one.e2e_ms, one.lengths).mean()) for one in samples if one.lengths
        )
    return found


def _covered(seed: int, truth: Mapping[str, float], *, scenario: Scenario, requests: int) -> Outcome:
    """Return by metric whether the interval of a point holds the long-run value, and what was shown; None without interval."""
    row = simulate_run(scenario.plant(requests), f"{seed}", seed=seed).rows[0]
    outcome: dict[tuple[Promise, str], float | Shown | None] = {}
    for name, true in truth.items():
        outcome[COVERAGE, name] = _holds(row, name, true)
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        outcome[WIDTH, name] = None if low is None or high is None else (row[name], (high - low) / 2)
    return outcome


def _holds(row: PointRow, name: str, true: float) -> float | None:
    """Return whether the interval of a column holds the truth; None without an interval."""
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return None if low is None or high is None else float(low <= true <= high)


def _stopped(seed: int, truth: Mapping[str, float], *, scenario: Scenario, until: str) -> Outcome:
    """Return by metric whether the interval of a point that ended by itself holds the long-run value; None without interval."""
    plant = Plant(words=(*scenario.words, f"load.until={until}"), variation=scenario.variation)
    row = simulate_run(plant, f"{seed}", seed=seed).rows[0]
    return {(UNTIL, name): _holds(row, name, truth[name]) for name in UNTIL_METRICS}


def _alarmed(seed: int, _truth: None, *, scenario: Scenario, requests: int) -> Outcome:
    """Return whether a point whose engine does not change for good is called not stationary."""
    point = simulate_run(scenario.plant(requests), f"{seed}", seed=seed).points[0]
    return {(STATIONARY, ""): float(NOT_STATIONARY.code in point.codes)}


TRENDS = {
    "closed loop, no wander": (SCENARIOS[1], (100, 500)),
    "closed loop, wander 2% over 5 s": (SCENARIOS[0], (100, 500)),
    "closed loop, wander 2% over 30 s": (
        Scenario(name="slow", words=SCENARIOS[0].words, variation=Variation(start_sd=0.0, wander_s=30.0)),
        (100, 500),
    ),
    "closed loop, wander 5% over 10 s": (SCENARIOS[2], (100, 500)),
    "open loop at half load": (
        Scenario(name="half", words=("load=rate", "load.rate=[6]", "engine.max_num_seqs=16", LENGTHS_64)),
        (100, 500),
    ),
    "open loop near capacity": (
        Scenario(name="busy", words=("load=rate", "load.rate=[12]", "engine.max_num_seqs=16", LENGTHS_64)),
        (100, 500),
    ),
}
PROMISED = ("warm-up 20%", "step 15%")
CHANGES: Mapping[str, tuple[float, Callable[[float, float], dict[str, float]]]] = {
    "warm-up 20%": (1.2, lambda begin, length: {"shift": 1 / 1.2 - 1, "shift_s": begin, "shift_over_s": length / 3}),
    "drift 10%": (1.0, lambda begin, length: {"shift": 0.10, "shift_s": begin, "shift_over_s": length}),
    "step 15%": (1.0, lambda begin, length: {"shift": 0.15, "shift_s": begin + length / 2}),
}
"""How slow the engine is before a change, and what is planted in a window that begins at a second and has a length."""


@lru_cache(maxsize=16)
def window_of(scenario: Scenario, requests: int, slowdown: float) -> tuple[float, float]:
    """Return when the window of a point begins, on the clock of its engine, and how long it is, in seconds."""
    row = simulate_run(scenario.plant(requests).planted(slowdown=slowdown), "window", seed=-1).rows[0]
    assert row.window_ns is not None
    start, end = row.window_ns
    return (start - EPOCH_NS) / NS_PER_S, (end - start) / NS_PER_S


def _found_change(
    seed: int, window: tuple[float, float], *, scenario: Scenario, requests: int, name: str, promise: Promise
) -> Outcome:
    """Return whether a change for good is found."""
    slowdown, change = CHANGES[name]
    plant = scenario.plant(requests).planted(slowdown=slowdown, **change(*window))
    point = simulate_run(plant, f"{seed}", seed=seed).points[0]
    return {(promise, ""): float(NOT_STATIONARY.code in point.codes)}


# open loops


@dataclass(frozen=True, kw_only=True)
class OpenLoad:
    """Requests at a rate, whose answers take about so many seconds."""

    seconds: float
    rate: float
    arrival: str

    def plant(self, requests: int | str = "auto") -> Plant:
        """Return it with a number of requests."""
        words = (
            "load=rate",
            f"load.rate=[{self.rate:g}]",
            f"load.arrival={self.arrival}",
            f"workload.output_tokens={ANSWERS_S[self.seconds]}",
            "slo.ttft_ms=60000",
            f"load.requests={requests}",
        )
        return Plant(words=words, variation=STEADY)


OPEN_TRUTH_RUNS = 3


@lru_cache(maxsize=32)
def _open_truth(load: OpenLoad) -> Mapping[str, float]:
    """Return the true rates, which are those that are offered, and the TTFT of long runs away from the empty engine."""
    requests = round(max(4000, 60 * load.seconds * load.rate))
    runs = [simulate_run(load.plant(requests), f"truth{run}", seed=-1 - run).rows[0] for run in range(OPEN_TRUTH_RUNS)]
    return {
        "output_throughput_tok_s": load.rate * ANSWERS_S[load.seconds],
        "goodput_req_s": load.rate,
        "ttft_ms_mean": fmean(row.ttft_ms_mean or math.nan for row in runs),
    }


def _open_loop(seed: int, truth: Mapping[str, float], *, load: OpenLoad) -> Outcome:
    """Return by metric the relative error of a point of the usual length."""
    row = simulate_run(load.plant(), f"{seed}", seed=seed).rows[0]
    known = {name: row.get(name) for name in OPEN_METRICS}
    return {(OPEN_LOOP, name): None if one is None else one / truth[name] - 1 for name, one in known.items()}


# searches

SERVER = ("engine.max_num_seqs=16", "workload.output_tokens={kind:normal,mean:48,stdev:16,min:4,max:96}")


@dataclass(frozen=True, kw_only=True)
class SearchCase:
    """A search, and whether a level meets what it looks for, by a long point there. `bounds` hold the true level."""

    words: tuple[str, ...]
    of: str
    bounds: tuple[float, float]
    variation: Variation = STEADY
    possible: bool = True
    """False if no level can meet it: then any level that is named is above the truth."""

    @property
    def plant(self) -> Plant:
        """The search itself."""
        return Plant(words=(*SERVER, *self.words), variation=self.variation)


SLO = ("slo.ttft_ms=400", "slo.attainment=0.99")
SEARCHES: Mapping[str, SearchCase] = {
    "SLO, users": SearchCase(words=("load=slo", *SLO), of="concurrency", bounds=(8, 64)),
    "SLO, rate": SearchCase(words=("load=slo", "load.search.of=rate", *SLO), of="rate", bounds=(16.0, 24.0)),
    **{
        f"SLO, users, 0.3% of the requests fail in bursts of {burst}": SearchCase(
            words=("load=slo", *SLO),
            of="concurrency",
            bounds=(8, 64),
            variation=Variation(start_sd=0.0, failure_rate=0.003, failure_burst=burst),
        )
        for burst in (4, 16)
    },
    **{
        f"SLO, users, 2% of the requests fail in bursts of {burst}": SearchCase(
            words=("load=slo", *SLO),
            of="concurrency",
            bounds=(1, 1),
            variation=Variation(start_sd=0.0, failure_rate=0.02, failure_burst=burst),
            possible=False,
        )
        for burst in (1, 4, 16)
    },
}


@lru_cache(maxsize=16)
def _true_level(name: str) -> float:
    """Return the highest level that meets what a search looks for, by bisection with long points; 0 if there is none."""
    case = SEARCHES[name]
    if not case.possible:
        return 0.0
    low, high = case.bounds
    while high / low > 1.01 and (case.of == "rate" or high - low > 1):
        middle = (low * high) ** 0.5 if case.of == "rate" else (low + high) // 2
        low, high = (middle, high) if _meets(case, middle) else (low, middle)
    return low


def _meets(case: SearchCase, level: float) -> bool:
    words = ("load=rate", f"load.rate=[{level:.4g}]") if case.of == "rate" else (f"load.concurrency=[{level:.0f}]",)
    plant = Plant(
        words=(*SERVER, *words, *SLO, f"load.requests={SLO_TRUTH_REQUESTS[case.of]}"), variation=case.variation
    )
    row = simulate_run(plant, "truth", seed=-1).rows[0]
    assert row.slo_good is not None
    assert row.slo_requests
    return row.slo_good / row.slo_requests >= 0.99


def _searched(seed: int, true: float, *, name: str) -> Outcome:
    """Return whether the level that a search names is near the true one (None if it names none), and whether it is above it by
    more than the truth may be wrong itself."""
    answer = simulate_search(SEARCHES[name].plant, f"{seed}", seed=seed).search
    level = answer.level if answer is not None else None
    found: dict[tuple[Promise, str], float | None] = {}
    if true:
        low, high = answer.bracket if answer is not None else (None, None)
        inside = (low or 0) <= (1 + TRUTH_ERROR) * true and true <= (1 + TRUTH_ERROR) * (
            math.inf if high is None else high
        )
        found[SEARCH_NEAR, ""] = None if level is None else float(abs(level / true - 1) <= NEAR)
        found[SEARCH_BRACKET, ""] = None if level is None else float(inside)
    found[SEARCH_ABOVE, ""] = float(level is not None and level > (1 + TRUTH_ERROR) * true)
    return found
