"""Stored runs without an engine: records of a simulated closed loop, written by servebench's own tables."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servebench.analysis.statistics import headline_intervals
from servebench.contracts.exchange import PhaseReport
from servebench.contracts.results import Doubt, Point, QualityRecord, Record
from servebench.contracts.settings import SloSettings
from servebench.measure.points import PointContext, summarize, with_intervals
from servebench.store import RecordWriter, RunFolder, RunState, StudyFolder, StudyState, write_points, write_run
from servebench.store.state import write_study

# a suite that a shell runs in the background is started with Ctrl-C ignored, and so would be all that it starts
signal.signal(signal.SIGINT, signal.default_int_handler)

START_NS = 1_760_000_000_000_000_000
MS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How a simulated engine behaves. `slow` multiplies every latency; `run_sd` is how much one start of it differs from
    another, `drift_sd` how much its speed wanders within a point (both as shares)."""

    name: str = "alpha"
    ttft_ms: float = 80.0
    tpot_ms: float = 8.0
    tokens: int = 40
    slow: float = 1.0
    slow_per_stream: float = 0.02
    spread: float = 0.15
    drift_sd: float = 0.02
    run_sd: float = 0.0
    fail_share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is asked of it."""

    levels: Sequence[int] = (4,)
    requests: int = 120
    repeats: int = 1
    seed: int = 0
    workload: str = "unique"
    model: str = "org/tiny-1b"
    gpu: str = "none"
    price: float | None = None
    slo: SloSettings = field(
        default_factory=lambda: SloSettings(ttft_ms=None, tpot_ms=None, e2e_ms=None, attainment=0.99)
    )
    config: dict[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    version: str = "1.0"


def closed_loop(engine: Engine, shape: Shape, level: int, repeat: int, run_id: str, point: str) -> list[Record]:
    """Records of `level` streams that send one request after another."""
    rng = np.random.default_rng((shape.seed, level, repeat))
    speed = float(np.exp(rng.normal(0, engine.run_sd)))
    free = [START_NS] * level
    wander = 0.0
    records = []
    for index in range(shape.requests):
        wander = 0.9 * wander + rng.normal(0, engine.drift_sd * 0.436)
        stream = int(np.argmin(free))
        sent = free[stream]
        pace = engine.slow * speed * float(np.exp(wander)) * (1 + engine.slow_per_stream * level)
        failed = rng.random() < engine.fail_share
        ttft = engine.ttft_ms * pace * float(rng.lognormal(0, engine.spread))
        gap = engine.tpot_ms * pace * float(rng.lognormal(0, engine.spread / 3))
        stamps = [] if failed else [int(sent + (ttft + gap * k) * MS) for k in range(engine.tokens)]
        ended = stamps[-1] + 50_000 if stamps else sent + 5 * MS
        free[stream] = ended + 100_000
        records.append(
            Record(
                run_id=run_id, point=point, request_id=f"{point}-{index:05d}", session_id=None, warmup=False,
                scheduled_ns=sent, connect_started_ns=None, connected_ns=None, sent_ns=sent + 20_000,
                first_event_ns=stamps[0] if stamps else None, first_output_ns=stamps[0] if stamps else None,
                last_event_ns=stamps[-1] if stamps else None, ended_ns=ended, event_ns=stamps,
                event_tokens=[1] * len(stamps) if stamps else None, reads_merged=0, prompt_tokens=100,
                planned_prompt_tokens=100, cached_tokens=0, reasoning_tokens=None,
                output_tokens=None if failed else engine.tokens, asked_output_tokens=engine.tokens,
                counted_by=None if failed else "usage", finish_reason=None if failed else "length",
                outcome="http_error" if failed else "ok", http_status=500 if failed else 200,
                error="500 <b>overloaded</b>" if failed else None, stamp_source="kernel", text="hello <script>" * 2,
            )
        )  # fmt: skip
    return records


def point_of(
    records: Sequence[Record], engine: Engine, shape: Shape, level: int, repeat: int, doubts: Sequence[Doubt] = ()
) -> Point:
    """The stored row that these records make."""
    context = PointContext(
        run_id=records[0].run_id, point=records[0].point, engine=engine.name, engine_version=shape.version,
        launch="process", model=shape.model, gpu=shape.gpu, gpu_count=1, workload=shape.workload, concurrency=level,
        repeat=repeat, price_usd_per_hour=shape.price,
    )  # fmt: skip
    report = PhaseReport(
        started_ns=records[0].scheduled_ns, ended_ns=records[-1].ended_ns, planned=len(records), sent=len(records),
        elapsed_s=10.0, cpu_s=0.5, loop_lag_ms_p99=0.1, loop_lag_ms_max=0.2, clock_step_ns=0, stamp_source="kernel",
    )  # fmt: skip
    row, sample = summarize(records, context=context, report=report, slo=shape.slo)
    return Point(row=with_intervals(row, headline_intervals(sample, resamples=100)), doubts=tuple(doubts))


def manifest_of(engine: Engine, shape: Shape, run_id: str) -> dict[str, Any]:
    config = {
        "engine": {"name": engine.name, "host": "127.0.0.1", "port": 1, "dtype": "auto", "prefix_caching": None,
                   "max_num_seqs": 8, "tensor_parallel_size": 1, "extra_args": []},
        "launch": {"name": "process"},
        "model": {"name": shape.model, "path": None},
        "gpu": {"name": shape.gpu, "count": 1, "price_usd_per_hour": shape.price},
        "workload": {"name": shape.workload, "seed": 0, "input_tokens": 100, "output_tokens": engine.tokens},
        "load": {"name": "quick", "concurrency": list(shape.levels), "rate": None, "requests": shape.requests},
        "slo": {"ttft_ms": shape.slo.ttft_ms, "tpot_ms": shape.slo.tpot_ms, "e2e_ms": shape.slo.e2e_ms,
                "attainment": shape.slo.attainment},
        "study": {"dir": "outputs", "name": None},
    }  # fmt: skip
    for key, value in shape.config.items():
        group, _, name = key.partition(".")
        config.setdefault(group, {})[name] = value
    return {
        "schema_version": 1,
        "run_id": run_id,
        "title": f"{engine.name} · {shape.model} · {shape.workload}",
        "status": "finished",
        "started_s": START_NS / 1e9,
        "overrides": list(shape.overrides),
        "engine_version": shape.version,
        "command": {"argv": [engine.name, "serve"], "env": {}},
        "cold_start": {
            "started_ns": START_NS, "seconds": 4.0 * engine.slow, "shared": False,
            "phases": [{"name": "spawned", "ended_ns": START_NS, "seconds": 0.1},
                       {"name": "first token", "ended_ns": START_NS, "seconds": 4.0 * engine.slow}],
        },
        "config": config,
        "machine": {"platform": "Linux", "cpu_model": "cpu", "cpu_threads": 2, "gpus": [], "cuda": None},
        "packages": {"servebench-suite": "0.1.0"},
        "git": None,
    }  # fmt: skip


Made = tuple[Engine, Shape]


def write_one(
    folder: RunFolder, engine: Engine, shape: Shape, *, with_requests: bool = True, doubts: Sequence[Doubt] = ()
) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    run_id = f"{folder.path.parent.name}/{folder.name}"
    points, writer = [], RecordWriter(folder)
    for level in shape.levels:
        for repeat in range(shape.repeats):
            name = f"c{level}" + (f"-r{repeat}" if shape.repeats > 1 else "")
            records = closed_loop(engine, shape, level, repeat, run_id, name)
            points.append(point_of(records, engine, shape, level, repeat, doubts))
            if with_requests:
                writer.append(records)
    writer.close()
    write_points(folder, points)
    folder.manifest.write_text(json.dumps(manifest_of(engine, shape, run_id)))
    write_run(
        folder,
        RunState(run_id=run_id, title=f"{engine.name} · {shape.model} · {shape.workload}", overrides=shape.overrides,
                 status="finished", started_s=START_NS / 1e9, ended_s=START_NS / 1e9 + 60),
    )  # fmt: skip


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., Path]:
    """Writes a study of simulated runs below `tmp_path/outputs` and gives its folder."""

    def make(*runs: Made, name: str = "study", **options: Any) -> Path:
        study = StudyFolder(tmp_path / "outputs" / name)
        study.path.mkdir(parents=True, exist_ok=True)
        names = [f"{index:02d}_{engine.name}_{shape.workload}" for index, (engine, shape) in enumerate(runs)]
        write_study(
            study, StudyState(study_id=name, words=("demo",), runs=tuple(names), status="finished", ended_s=1.0)
        )
        for run, (engine, shape) in zip(names, runs, strict=True):
            write_one(study.run(run), engine, shape, **options)
        return study.path

    return make


@pytest.fixture
def simulated() -> Any:
    """The parts above by name: Engine, Shape, closed_loop, point_of, write_one."""

    class Parts:
        pass

    for part in (Engine, Shape, closed_loop, point_of, write_one, manifest_of):
        setattr(Parts, part.__name__, staticmethod(part))
    return Parts


def graded_rows(benchmark: str, correct: Sequence[bool | None], **changes: Any) -> list[QualityRecord]:
    """Graded answers to questions 0, 1, ...: right, wrong, or (None) never answered."""
    return [
        QualityRecord(
            **{
                **{"run_id": "s/r", "benchmark": benchmark, "task": None, "item_id": f"{benchmark}-{place}"},
                **{"item_digest": "d", "point": None, "concurrency": 8, "rate": None, "correct": right},
                **{"score": None, "extracted": "A", "reference": "A", "answer": "A", "prompt": "?", "note": None},
                **{"detail": None, "outcome": "ok" if right is not None else "timeout", "http_status": 200},
                **{"error": None if right is not None else "timed out", "finish_reason": "stop"},
                **{"prompt_tokens": 5, "output_tokens": 1, "sent_ns": place * 10**9, "method": "m"},
                **{"ended_ns": place * 10**9 + 5 * 10**8, "latency_ms": 500.0, "api": "chat", "shots": 0},
                **{"seed": 0, "max_tokens": 8, "emulated": False},
                **changes,
            }
        )
        for place, right in enumerate(correct)
    ]


@pytest.fixture
def graded() -> Callable[..., list[QualityRecord]]:
    """`graded_rows`."""
    return graded_rows
