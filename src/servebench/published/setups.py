"""Simulate the articles' set-ups and compare their published numbers with those of the emulated engines.

Experiment files are composed as for a run, the launcher builds the emulation, and the emulator's step loop runs on a virtual
clock. `methods.yaml` says how each number is simulated.
"""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from servebench.analysis.published import published_rows
from servebench.analysis.warnings.load import REQUESTS_MIN
from servebench.config import compose_jobs
from servebench.contracts.emulation import EmulationSpec
from servebench.contracts.engine import LaunchContext
from servebench.contracts.precision import WINDOW_S_MIN
from servebench.contracts.settings import RunSettings
from servebench.emulator.cost import Profile, model_shape, profile_for
from servebench.engine.launchers.emulated import EmulatedSettings, spec_of
from servebench.published.simulate import Clients, Measured, Timed, simulate
from servebench.registry.registry import Registry
from servebench.util.percentile import percentile

POOL = 100
"""httpx lets a client have 100 connections: the 5090 article's harness starts its clock before it waits for one."""

TOLERANCES = {"output_throughput": 0.10, "ttft": 0.30}
"""How far a simulated number may be from the published one, by metric."""


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
class Method:
    """An entry of `methods.yaml`."""

    match: Mapping[str, str]
    experiment: str = ""
    overrides: Mapping[str, Sequence[str]] = field(default_factory=dict)
    clients: Mapping[str, Any] | None = None
    values: Literal["ttft_ms", "e2e_ms"] = "ttft_ms"
    comment: str = ""


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
    names = [one.name for one in fields(Cell)]
    cells: list[dict[str, Any]] = [{name: row[name] for name in names} for row in published_rows()]
    return [Cell(**{**cell, "concurrency": int(cell["concurrency"] or 0) or None}) for cell in cells]


@cache
def _methods() -> tuple[Method, ...]:
    text = files("servebench.published").joinpath("methods.yaml").read_text(encoding="utf-8")
    return tuple(Method(**one) for one in yaml.safe_load(text))


def method_of(cell: Cell) -> Method:
    """Return how a number is simulated: the first entry that it matches."""
    return next(
        method
        for method in _methods()
        if all(re.match(pattern, str(getattr(cell, name))) for name, pattern in method.match.items())
    )


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


def case_of(cell: Cell) -> Case | None:
    """Return how to simulate a number by its article's method; None if that is not possible."""
    method = method_of(cell)
    if method.clients is None:
        return None
    level = cell.concurrency or method.clients["concurrency"]
    clients = Clients(**{**method.clients, "concurrency": min(level, method.clients.get("requests", level))})
    words = tuple(method.overrides.get(cell.engine, ()))
    return Case(experiment=method.experiment, engine=cell.engine, words=words, clients=clients)


def value_of(cell: Cell, measured: Measured) -> float:
    """Return the simulated value that corresponds to the article's number."""
    if cell.metric == "output_throughput":
        return measured.throughput_tok_s
    if cell.metric == "errors":
        return 0.0
    values = getattr(measured, method_of(cell).values)
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
        comments.append(f"void, level_not_reached: {requests} requests for a level of {level}")
    elif case.clients.connections is not None and case.clients.connections < level:
        comments.append(f"void, level_not_reached: {case.clients.connections} connections for a level of {level}")
    window_s, inside = _window(measured.requests, case.clients.concurrency)
    if case.clients.duration_s is not None:
        window_s = measured.seconds
        inside = len(measured.requests)
    if not comments and window_s < WINDOW_S_MIN:
        comments.append(f"too_short: at the level for {window_s:.1f} s")
    if not comments and inside < REQUESTS_MIN:
        comments.append(f"too_few_requests: {inside} sent at the level")
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


def rows_of(simulator: Simulator) -> list[PublishedRow]:
    """Return every published number with the simulated one."""
    return [_row(simulator, cell) for cell in published_cells()]


def _row(simulator: Simulator, cell: Cell) -> PublishedRow:
    method, case = method_of(cell), case_of(cell)
    if case is not None:
        measured = simulator.measure(case)
        # the limits of a point do not apply to what the article calls TTFT
        comment = judge(case, measured, cell.concurrency) if method.values == "ttft_ms" else ""
        more = method.comment.format(ttft_ms=statistics.fmean(measured.ttft_ms))
        return PublishedRow(cell=cell, ours=value_of(cell, measured), comment="; ".join(filter(None, (comment, more))))
    if (cell.workload, cell.metric) == ("shared prefixes", "throughput_over_vllm"):
        return _shared_prefixes(simulator, cell)
    if method.experiment:
        seconds = simulator.loading_s(method.experiment, cell.engine)
        return PublishedRow(cell=cell, ours=seconds * (1000.0 if cell.unit == "ms" else 1.0), comment=method.comment)
    return PublishedRow(cell=cell, ours=None, comment=method.comment)


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


def sound(simulator: Simulator, engine: str, level: int) -> Measured:
    """Return the 5090's model at a level that is held all the time: 15 s warm-up, then a window of 60 s."""
    clients = Clients(concurrency=level, duration_s=75.0, warmup_s=15.0, input_tokens=32, output_tokens=256)
    words = ("engine.backend=tensorrt",) if engine == "trtllm" else ()
    return simulator.measure(Case(experiment="rtx5090_qwen7b_fine", engine=engine, words=words, clients=clients))


def same_requests(simulator: Simulator, engine: str, level: int, requests: int, pool: int | None) -> float:
    """Return the mean TTFT in ms by the extreme table's method, with another number of requests or without a pool."""
    clients = Clients(
        concurrency=min(level, requests), requests=requests, connections=pool, input_tokens=32, output_tokens=256
    )
    case = Case(experiment="rtx5090_qwen7b_extreme", engine=engine, words=(), clients=clients)
    return statistics.fmean(simulator.measure(case).ttft_ms)
