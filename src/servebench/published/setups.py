"""Simulate the articles' set-ups and compare their published numbers with those of the emulated engines.

Experiment files are composed as for a run, the launcher builds the emulation, and the emulator's step loop runs on a virtual
clock.
"""

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from servebench.analysis.warnings.load import REQUESTS_MIN, WINDOW_S_MIN
from servebench.config import compose_jobs
from servebench.contracts.emulation import EmulationSpec
from servebench.contracts.engine import LaunchContext
from servebench.contracts.settings import RunSettings
from servebench.emulator.cost import Profile, model_shape
from servebench.emulator.profiles import profile_for
from servebench.engine.launchers.emulated import EmulatedSettings, spec_of
from servebench.published.simulate import Clients, Measured, Timed, simulate
from servebench.registry.registry import Registry
from servebench.util.percentile import percentile

SOURCES = {
    "article 1: Qwen2.5-7B on one RTX 5090": "an article on vLLM, SGLang and TensorRT-LLM on an RTX 5090",
    "article 2: Qwen2.5-1.5B on an RTX 4090": "an article on the three engines on an RTX 4090",
    "article 3: two H100": "an article on vLLM, TensorRT-LLM and SGLang on two H100",
    "article 4: Llama 3 70B on H100": "an article on engines for a 70B model",
    "article 5: Llama-3.3-70B FP8 on H100": "an article on four engines on an H100",
}

POOL = 100
"""httpx lets a client have 100 connections: the 5090 article's harness starts its clock before it waits for one."""

TOLERANCES = {"output_throughput": 0.10, "ttft": 0.30}
"""How far a simulated number may be from the published one, by metric."""

SHAREGPT_INPUT = 220
SOUND_S = 75.0
SOUND_WARMUP_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One published number. `concurrency` is None if the article does not give it."""

    source: str
    engine: str
    gpu: str
    workload: str
    concurrency: int | None
    metric: str
    statistic: str
    unit: str
    value: str
    note: str

    @property
    def number(self) -> float | None:
        """The value as a number, or None if it is a range."""
        try:
            return float(self.value)
        except ValueError:
            return None


@dataclass(frozen=True, kw_only=True)
class Case:
    """The simulation of a cell: one engine of an experiment, and how the article's client loaded it."""

    experiment: str
    engine: str
    words: tuple[str, ...]
    clients: Clients


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A published number and the simulated one. `ours` is None if it cannot be simulated; `comment` says why."""

    cell: Cell
    ours: float | None
    comment: str

    @property
    def error(self) -> float | None:
        """(ours - published) / published."""
        number = self.cell.number
        if self.ours is None or not number:
            return None
        return self.ours / number - 1.0


def published_cells() -> list[Cell]:
    """Return all numbers of the articles, in the order of their file."""
    text = files("servebench.emulator").joinpath("data", "published_results.csv").read_text(encoding="utf-8")
    rows: Iterable[Any] = csv.DictReader(io.StringIO(text))
    names = [one.name for one in fields(Cell)]
    return [
        Cell(**{name: row[name] for name in names} | {"concurrency": int(row["concurrency"] or 0) or None})
        for row in rows
    ]


# what is simulated


class Simulator:
    """Composes experiments and simulates cases, each once."""

    def __init__(self, registry: Registry, override: Callable[[EmulationSpec], Profile | None] = profile_for) -> None:
        """`override` returns the profile of a spec; calibration replaces it."""
        self._registry = registry
        self._profile = override
        self._measured: dict[Case, Measured] = {}
        self._specs: dict[tuple[str, str, tuple[str, ...]], tuple[EmulationSpec, RunSettings]] = {}

    def spec(self, experiment: str, engine: str, words: tuple[str, ...] = ()) -> tuple[EmulationSpec, RunSettings]:
        """Return the emulation and the settings of the run."""
        key = (experiment, engine, words)
        if key not in self._specs:
            overrides = [f"experiment={experiment}", f"engine={engine}", "launch=emulated", "hydra.sweeper.params=null"]
            job = compose_jobs([*overrides, *words], self._registry)[0]
            settings = job.settings
            context = LaunchContext(
                engine=settings.engine, model=settings.model, gpu=settings.gpu, port=1, cache_dir=Path()
            )
            assert isinstance(settings.launch, EmulatedSettings)
            self._specs[key] = spec_of(self._registry.engine(engine), context, settings.launch), settings
        return self._specs[key]

    def measure(self, case: Case) -> Measured:
        """Return the result of simulating a case."""
        if case not in self._measured:
            spec, _ = self.spec(case.experiment, case.engine, case.words)
            self._measured[case] = simulate(spec, case.clients, self._profile(spec))
        return self._measured[case]

    def loading_s(self, experiment: str, engine: str) -> float:
        """Return the seconds of the emulated cold start, unscaled."""
        spec, _ = self.spec(experiment, engine)
        gigabytes = model_shape(spec).weight_bytes / 1e9
        return sum(stage.seconds + stage.seconds_per_gb * gigabytes for stage in spec.emulation.loading)


SWEEPS = {
    "baseline sweep": ("rtx5090_qwen7b_baseline", 50, None),
    "fine-grained sweep": ("rtx5090_qwen7b_fine", 50, None),
    "overload": ("rtx5090_qwen7b_overload", 100, POOL),
    "extreme overload": ("rtx5090_qwen7b_extreme", 200, POOL),
}
EXTREME_FEW = 500
"""At 500 the extreme table repeats the overload one: 100 requests. From 1,000 up only 200 fit its numbers."""

TENSORRT = ("engine.backend=tensorrt",)
PYTORCH = ("engine.backend=pytorch",)
EAGER = ("+engine.extra_args.enforce-eager=true",)
LEVELS_5090 = {"saturation": 50, "ceiling": 100}


def case_of(cell: Cell) -> Case | None:
    """Return how to simulate a number by its article's method; None if that is not possible."""
    if cell.source.startswith("article 1") and cell.metric in ("output_throughput", "ttft", "errors"):
        return _case_5090(cell)
    if cell.source.startswith("article 2") and cell.metric == "ttft":
        words = EAGER if cell.engine == "vllm" else ()
        clients = Clients(concurrency=1, requests=50, input_tokens=32, output_tokens=50)
        return Case(experiment="rtx4090_qwen1p5b", engine=cell.engine, words=words, clients=clients)
    if cell.source.startswith("article 3") and cell.metric == "output_throughput":
        clients = Clients(concurrency=100, requests=1000, input_tokens=SHAREGPT_INPUT, output_tokens=200)
        return Case(experiment="h100x2_gptoss120b_sharegpt", engine=cell.engine, words=(), clients=clients)
    if cell.source.startswith("article 5") and cell.workload.startswith("512 in"):
        assert cell.concurrency is not None
        clients = Clients(
            concurrency=cell.concurrency, duration_s=240.0, warmup_s=60.0, input_tokens=512, output_tokens=256
        )
        return Case(experiment="h100_llama70b_fp8", engine=cell.engine, words=(), clients=clients)
    return None


def _case_5090(cell: Cell) -> Case:
    sweep = cell.workload.partition(",")[0]
    words = TENSORRT if cell.engine == "trtllm" else ()
    if sweep in SWEEPS:
        experiment, requests, pool = SWEEPS[sweep]
        concurrency = cell.concurrency or 1
        if sweep == "extreme overload" and concurrency <= EXTREME_FEW:
            requests = 100
    else:
        # the comparison of the two backends uses the figures of the sweeps, and the highest of the overload
        experiment, pool = "rtx5090_qwen7b_baseline", POOL
        requests = LEVELS_5090.get(cell.statistic, 50)
        concurrency = cell.concurrency or 100
        words = PYTORCH if sweep.startswith("pytorch") else TENSORRT
    return Case(
        experiment=experiment, engine=cell.engine, words=words, clients=_clients_5090(concurrency, requests, pool)
    )


def _clients_5090(level: int, requests: int, pool: int | None) -> Clients:
    return Clients(
        concurrency=min(level, requests), requests=requests, connections=pool, input_tokens=32, output_tokens=256
    )


def value_of(cell: Cell, measured: Measured) -> float:
    """Return the simulated value that corresponds to the article's number."""
    if cell.metric == "output_throughput":
        return measured.throughput_tok_s
    if cell.metric == "errors":
        return 0.0
    # the 4090 article's "time to first token" is the time of all 50 tokens
    values = measured.e2e_ms if cell.source.startswith("article 2") else measured.ttft_ms
    if cell.statistic == "mean":
        return statistics.fmean(values)
    return float(percentile(np.array(values), 100 * QUANTILES[cell.statistic]))


QUANTILES = {"min": 0.0, "p50": 0.5, "median": 0.5, "p90": 0.9, "p95": 0.95, "max": 1.0}


# what servebench says of a method


def judge(case: Case, measured: Measured, concurrency: int | None) -> str:
    """Return the warnings of a point by this method, with the limits of `analysis.warnings`."""
    level = concurrency or case.clients.concurrency
    comments = []
    requests = case.clients.requests
    if requests is not None and requests < level:
        comments.append(f"void, `level_not_reached`: {requests} requests for a level of {level}")
    elif case.clients.connections is not None and case.clients.connections < level:
        comments.append(f"void, `level_not_reached`: {case.clients.connections} connections for a level of {level}")
    window_s, inside = _window(measured.requests, case.clients.concurrency)
    if case.clients.duration_s is not None:
        window_s = measured.seconds
        inside = len(measured.requests)
    if not comments and window_s < WINDOW_S_MIN:
        comments.append(f"`too_short`: at the level for {window_s:.1f} s")
    if not comments and inside < REQUESTS_MIN:
        comments.append(f"`too_few_requests`: {inside} sent at the level")
    return "; ".join(comments)


def _window(requests: Sequence[Timed], level: int) -> tuple[float, int]:
    """Return the seconds from the first to the last moment at the level, and the requests sent in between."""
    changes = sorted([(one.sent_s, 1) for one in requests] + [(one.last_s, -1) for one in requests])
    in_flight, start_s, end_s = 0, None, 0.0
    for moment_s, change in changes:
        if in_flight >= level:
            end_s = moment_s
        in_flight += change
        if in_flight >= level and start_s is None:
            start_s = moment_s
    if start_s is None:
        return 0.0, 0
    return end_s - start_s, sum(start_s <= one.sent_s <= end_s for one in requests)


NOT_SIMULATED = {
    "quality": "answers of an emulated engine have no quality",
    "build": "building an engine is not emulated",
    "library": "used as a library by the article's program, not started as a server",
    "unclear": "the article does not give the set-up: model, GPUs, load or lengths are missing",
}


def _reason(cell: Cell) -> str:
    if cell.metric in ("accuracy", "exact_match", "pass@1"):
        return NOT_SIMULATED["quality"]
    built = cell.metric == "engine_build" or (cell.metric == "cold_start" and cell.engine == "trtllm")
    return NOT_SIMULATED["build" if built else "unclear"]


LOADS = {("article 2", "engine_load"): "rtx4090_qwen1p5b", ("article 5", "cold_start"): "h100_llama70b_fp8"}
"""Cold starts that are emulated by phases, including the reload of a built TensorRT-LLM engine."""
WARM = "warm_start"


def rows_of(simulator: Simulator) -> list[PublishedRow]:
    """Return every published number with the simulated one."""
    rows = []
    for cell in published_cells():
        case = case_of(cell)
        if case is not None:
            measured = simulator.measure(case)
            comment = judge(case, measured, cell.concurrency)
            if cell.source.startswith("article 2"):
                comment = f"not a TTFT but the time of all 50 tokens; simulated TTFT {statistics.fmean(measured.ttft_ms):.0f} ms"
            elif cell.source.startswith("article 5"):
                comment = "; ".join(part for part in (comment, "faster than the card allows: see below") if part)
            rows.append(PublishedRow(cell=cell, ours=value_of(cell, measured), comment=comment))
        elif cell.metric == "throughput_over_vllm" and cell.source.startswith("article 5"):
            rows.append(_shared_prefixes(simulator, cell))
        else:
            rows.append(_cold(simulator, cell))
    return rows


def _cold(simulator: Simulator, cell: Cell) -> PublishedRow:
    experiment = LOADS.get((cell.source[:9], "cold_start" if cell.metric == WARM else cell.metric))
    reason = _reason(cell)
    if cell.metric == "engine_load" and cell.engine != "sglang":
        return PublishedRow(cell=cell, ours=None, comment=NOT_SIMULATED["library"])
    if experiment is None or reason == NOT_SIMULATED["build"] or cell.engine == "ollama":
        return PublishedRow(cell=cell, ours=None, comment=reason)
    seconds = simulator.loading_s(experiment, cell.engine)
    scale = 1000.0 if cell.unit == "ms" else 1.0
    return PublishedRow(
        cell=cell, ours=seconds * scale, comment="phases of the start, weights read at 2 GB/s; one start, not repeated"
    )


def _shared_prefixes(simulator: Simulator, cell: Cell) -> PublishedRow:
    """Return the ratio of SGLang to vLLM for questions on shared documents, with vLLM's prefix cache off and on."""

    def throughput(engine: str, *words: str) -> float:
        clients = Clients(
            concurrency=50, requests=500, input_tokens=1024, output_tokens=128, shared_tokens=896, documents=8
        )
        case = Case(experiment="h100_llama70b_fp8", engine=engine, words=words, clients=clients)
        return simulator.measure(case).throughput_tok_s

    sglang = throughput("sglang")
    off, on = throughput("vllm", "engine.prefix_caching=false"), throughput("vllm")
    comment = (
        f"with vLLM's prefix cache off; with it on, its default since 0.8, {sglang / on:.2f}: the gain is that of a cache "
        "over no cache, not of a tree over blocks"
    )
    return PublishedRow(cell=cell, ours=sglang / off, comment=comment)


# a sound method


ENGINES = ("vllm", "sglang", "trtllm")
SOUND_LEVELS = (1, 20, 32, 50, 64, 100, 128, 256, 500, 1000)
FITTED_UP_TO = 100
"""No published point of the 5090 has more requests in flight: above it, the profile is extrapolated."""


def sound(simulator: Simulator, engine: str, level: int) -> Measured:
    """Return the 5090's model at a level that is held all the time: 15 s warm-up, then a window of 60 s."""
    clients = Clients(
        concurrency=level, duration_s=SOUND_S, warmup_s=SOUND_WARMUP_S, input_tokens=32, output_tokens=256
    )
    words = TENSORRT if engine == "trtllm" else ()
    return simulator.measure(Case(experiment="rtx5090_qwen7b_fine", engine=engine, words=words, clients=clients))


def same_requests(simulator: Simulator, engine: str, level: int, requests: int, pool: int | None) -> float:
    """Return the mean TTFT in ms by the extreme table's method, with another number of requests or without a pool."""
    clients = _clients_5090(level, requests, pool)
    case = Case(experiment="rtx5090_qwen7b_extreme", engine=engine, words=(), clients=clients)
    return statistics.fmean(simulator.measure(case).ttft_ms)
