"""`servebench published`: the articles' numbers beside those of the emulated engines, by the articles' method and by a
sound one, and what of their conclusions stands.

Knows the order of the rooms: the experiment files are composed as for a run, the launcher says what would be emulated, and
the emulator's step loop runs on a virtual clock.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from servebench.config import compose_jobs
from servebench.contracts.emulation import EmulationSpec
from servebench.contracts.engine import LaunchContext
from servebench.contracts.settings import RunSettings
from servebench.emulator.cost import Profile, shape_of
from servebench.emulator.profiles import profile_for
from servebench.emulator.simulate import Clients, Measured, simulate
from servebench.engine.emulated import EmulatedSettings, spec_of
from servebench.errors import ConfigError
from servebench.registry import Registry

SOURCES = {
    "000_ff34121c054b13ec.txt": "an article on vLLM, SGLang and TensorRT-LLM on an RTX 5090",
    "001_189fe1a6524f7753.txt": "an article on the three engines on an RTX 4090",
    "002_66fa7a8d798b2689.txt": "an article on vLLM, TensorRT-LLM and SGLang on two H100",
    "003_953176219294f84b.txt": "an article on engines for a 70B model",
    "004_5418a8262b072261.txt": "an article on four engines on an H100",
}

POOL = 100
"""httpx lets a client have 100 connections: the 5090 article's harness starts its clock before it waits for one."""

THROUGHPUT_TOLERANCE = 0.10
TTFT_TOLERANCE = 0.30

SHAREGPT_INPUT = 220
SOUND_S = 75.0
SOUND_WARMUP_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One published number. `concurrency` is null where the article tells none."""

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
        """The value, where it is one number."""
        try:
            return float(self.value)
        except ValueError:
            return None


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is simulated for a cell: an experiment's run of one engine, and how the article's client drove it."""

    experiment: str
    engine: str
    words: tuple[str, ...]
    clients: Clients


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published number beside ours. `ours` is None where nothing can be simulated, and `said` says why."""

    cell: Cell
    ours: float | None
    said: str

    @property
    def error(self) -> float | None:
        """(ours - published) / published."""
        number = self.cell.number
        if self.ours is None or not number:
            return None
        return self.ours / number - 1.0


def published_cells() -> list[Cell]:
    """All numbers of the articles, in the order of their file."""
    text = files("servebench.emulator").joinpath("data", "published_results.csv").read_text(encoding="utf-8")
    return [
        Cell(
            source=row["source"],
            engine=row["engine"],
            gpu=row["gpu"],
            workload=row["workload"],
            concurrency=int(row["concurrency"]) if row["concurrency"] else None,
            metric=row["metric"],
            statistic=row["statistic"],
            unit=row["unit"],
            value=row["value"],
            note=row["note"],
        )
        for row in csv.DictReader(io.StringIO(text))
    ]


# what is simulated


class Simulator:
    """Composes experiments and simulates cases, each once."""

    def __init__(self, registry: Registry, override: Callable[[EmulationSpec], Profile | None] = profile_for) -> None:
        """`override` chooses the profile of a spec; calibration tries others."""
        self._registry = registry
        self._profile = override
        self._measured: dict[Case, Measured] = {}
        self._specs: dict[tuple[str, str, tuple[str, ...]], tuple[EmulationSpec, RunSettings]] = {}

    def spec(self, experiment: str, engine: str, words: tuple[str, ...] = ()) -> tuple[EmulationSpec, RunSettings]:
        """What would be emulated, and the settings of the run."""
        key = (experiment, engine, words)
        if key not in self._specs:
            asked = [f"experiment={experiment}", f"engine={engine}", "launch=emulated", "hydra.sweeper.params=null"]
            job = compose_jobs([*asked, *words], self._registry)[0]
            settings = job.settings
            context = LaunchContext(
                engine=settings.engine, model=settings.model, gpu=settings.gpu, port=1, cache_dir=Path()
            )
            assert isinstance(settings.launch, EmulatedSettings)
            self._specs[key] = spec_of(self._registry.engine(engine), context, settings.launch), settings
        return self._specs[key]

    def measure(self, case: Case) -> Measured:
        """The case, simulated."""
        if case not in self._measured:
            spec, _ = self.spec(case.experiment, case.engine, case.words)
            self._measured[case] = simulate(spec, case.clients, self._profile(spec))
        return self._measured[case]

    def loading_s(self, experiment: str, engine: str) -> float:
        """The emulated cold start, unscaled."""
        spec, _ = self.spec(experiment, engine)
        gigabytes = shape_of(spec).weight_bytes / 1e9
        return sum(stage.seconds + stage.seconds_per_gb * gigabytes for stage in spec.emulation.loading)


SWEEPS = {
    "baseline sweep": ("rtx5090_qwen7b_baseline", 50, None),
    "fine-grained sweep": ("rtx5090_qwen7b_fine", 50, None),
    "overload": ("rtx5090_qwen7b_overload", 100, POOL),
    "extreme overload": ("rtx5090_qwen7b_extreme", 200, POOL),
}
EXTREME_FEW = 500
"""At 500 the extreme table repeats the overload one: 100 requests. From 1,000 up only 200 fit its numbers."""

PYTORCH = ("+engine.extra_args.backend=pytorch",)
EAGER = ("+engine.extra_args.enforce-eager=true",)
LEVELS_5090 = {"saturation": 50, "ceiling": 100}


def case_of(cell: Cell) -> Case | None:
    """How a number is simulated by its article's method; None where that cannot be."""
    if cell.source.startswith("000") and cell.metric in ("output_throughput", "ttft", "errors"):
        return _case_5090(cell)
    if cell.source.startswith("001") and cell.metric == "ttft":
        words = EAGER if cell.engine == "vllm" else ()
        clients = Clients(concurrency=1, requests=50, input_tokens=32, output_tokens=50)
        return Case(experiment="rtx4090_qwen1p5b", engine=cell.engine, words=words, clients=clients)
    if cell.source.startswith("002") and cell.metric == "output_throughput":
        clients = Clients(concurrency=100, requests=1000, input_tokens=SHAREGPT_INPUT, output_tokens=200)
        return Case(experiment="h100x2_gptoss120b_sharegpt", engine=cell.engine, words=(), clients=clients)
    if cell.source.startswith("004") and cell.workload.startswith("512 in"):
        assert cell.concurrency is not None
        clients = Clients(
            concurrency=cell.concurrency,
            requests=None,
            duration_s=240.0,
            warmup_s=60.0,
            input_tokens=512,
            output_tokens=256,
        )
        return Case(experiment="h100_llama70b_fp8", engine=cell.engine, words=(), clients=clients)
    return None


def _case_5090(cell: Cell) -> Case:
    sweep = cell.workload.partition(",")[0]
    words: tuple[str, ...] = ()
    if sweep in SWEEPS:
        experiment, requests, pool = SWEEPS[sweep]
        concurrency = cell.concurrency or 1
        if sweep == "extreme overload" and concurrency <= EXTREME_FEW:
            requests = 100
    else:
        # the comparison of the two backends: its figures are those of the sweeps, and a ceiling of the overload
        experiment, pool = "rtx5090_qwen7b_baseline", POOL
        requests = LEVELS_5090.get(cell.statistic, 50)
        concurrency = cell.concurrency or 100
        words = PYTORCH if sweep.startswith("pytorch") else ()
    clients = Clients(
        concurrency=min(concurrency, requests),
        requests=requests,
        connections=pool,
        input_tokens=32,
        output_tokens=256,
    )
    return Case(experiment=experiment, engine=cell.engine, words=words, clients=clients)


def value_of(cell: Cell, measured: Measured) -> float:
    """What the article's number is of what was simulated."""
    if cell.metric == "output_throughput":
        return measured.throughput_tok_s
    if cell.metric == "errors":
        return 0.0
    # what the 4090 article calls time to first token is the time of its 50 tokens
    values = sorted(measured.e2e_ms if cell.source.startswith("001") else measured.ttft_ms)
    return {
        "mean": statistics.fmean,
        "median": statistics.median,
        "p50": statistics.median,
        "p90": lambda some: _quantile(some, 0.90),
        "p95": lambda some: _quantile(some, 0.95),
        "min": min,
        "max": max,
    }[cell.statistic](values)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
