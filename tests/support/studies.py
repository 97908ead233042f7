"""Stored studies without an engine: a simulated closed loop, written by servebench's own tables."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from servebench.analysis.statistics import headline_intervals
from servebench.contracts.results import Doubt, Point, Record
from servebench.contracts.settings import SloSettings
from servebench.contracts.stored import RunData
from servebench.measure.points import with_intervals
from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.state import RunState, StudyState, write_run, write_study
from servebench.store.tables import RecordWriter, write_points
from support.records import MS, failed_record, phase_report, record, summary_of
from support.records import SENT_NS as START_NS


def with_columns(run: RunData, **columns: Any) -> RunData:
    """Return a run whose points have these values."""
    rows = [replace(row, **columns) for row in run.point_rows]
    return replace(run, rows=lambda: rows)


@dataclass(frozen=True, kw_only=True)
class SimulatedEngine:
    """How a simulated engine behaves. `slow` multiplies every latency; `run_sd` is how much its starts differ, `drift_sd`
    how much its speed drifts within a point (both as shares)."""

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
    leave_share: float = 0.0
    """The share of requests that the client abandons halfway, as with `load.cancel_fraction`."""


@dataclass(frozen=True, kw_only=True)
class SimulatedLoad:
    """The load on a simulated engine, and the settings of its run."""

    levels: Sequence[int] = (4,)
    requests: int = 120
    repeats: int = 1
    starts: int = 1
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


def closed_loop(
    engine: SimulatedEngine, load: SimulatedLoad, level: int, repeat: int, run_id: str, point: str
) -> list[Record]:
    """Return the records of `level` streams that each send one request after another."""
    rng = np.random.default_rng((load.seed, level, repeat))
    start = np.random.default_rng((load.seed, repeat // load.repeats, 12345))
    speed = float(np.exp(start.normal(0, engine.run_sd)))
    free = [START_NS] * level
    wander = 0.0
    records = []
    for index in range(load.requests):
        wander = 0.9 * wander + rng.normal(0, engine.drift_sd * 0.436)
        stream = int(np.argmin(free))
        sent = free[stream]
        pace = engine.slow * speed * float(np.exp(wander)) * (1 + engine.slow_per_stream * level)
        failed = rng.random() < engine.fail_share
        ttft = engine.ttft_ms * pace * float(rng.lognormal(0, engine.spread))
        gap = engine.tpot_ms * pace * float(rng.lognormal(0, engine.spread / 3))
        stamps = [] if failed else [int(sent + (ttft + gap * k) * MS) for k in range(engine.tokens)]
        ended = stamps[-1] + 50_000 if stamps else sent + 5 * MS
        left = engine.leave_share > 0 and rng.random() < engine.leave_share
        if left and stamps:
            stamps = stamps[: len(stamps) // 2]
            ended = stamps[-1]
        free[stream] = ended + 100_000
        fields: dict[str, Any] = {
            "run_id": run_id, "point": point, "scheduled_ns": sent, "sent_ns": sent + 20_000, "ended_ns": ended,
            "prompt_tokens": 100, "planned_prompt_tokens": 100, "cached_tokens": 0,
            "asked_output_tokens": engine.tokens, "text": "hello <script>" * 2,
        }  # fmt: skip
        name = f"{point}-{index:05d}"
        if failed:
            records.append(failed_record(name, "http_error", "500 <b>overloaded</b>", http_status=500, **fields))
        else:
            fields |= {"outcome": "abandoned", "finish_reason": None} if left else {"finish_reason": "length"}
            records.append(record(name, event_ns=stamps, event_tokens=[1] * len(stamps), **fields))
    return records


def point_of(
    records: Sequence[Record],
    engine: SimulatedEngine,
    load: SimulatedLoad,
    level: int,
    repeat: int,
    doubts: Sequence[Doubt] = (),
) -> Point:
    report = phase_report(
        started_ns=records[0].scheduled_ns, ended_ns=records[-1].ended_ns, planned=len(records), sent=len(records),
        elapsed_s=10.0, cpu_s=0.5, loop_lag_ms_p99=0.1, loop_lag_ms_max=0.2, clock_step_ns=0, stamp_source="kernel",
    )  # fmt: skip
    row, sample = summary_of(
        *(records, report, load.slo), run_id=records[0].run_id, point=records[0].point, engine=engine.name,
        engine_version=load.version, model=load.model, gpu=load.gpu, workload=load.workload, concurrency=level,
        repeat=repeat, price_usd_per_hour=load.price,
    )  # fmt: skip
    row = replace(row, start_id=start_id(load.seed, repeat // load.repeats))
    return Point(row=with_intervals(row, headline_intervals(sample)), doubts=tuple(doubts))


def start_id(seed: int, start: int) -> str:
    """When a start of the engine began."""
    return datetime.fromtimestamp(START_NS / 1e9 - 30 + 3600 * seed + 60 * start, UTC).isoformat()


def manifest_of(engine: SimulatedEngine, load: SimulatedLoad, run_id: str) -> dict[str, Any]:
    config = {
        "engine": {"name": engine.name, "host": "127.0.0.1", "port": 1, "dtype": "auto", "prefix_caching": None,
                   "max_num_seqs": 8, "tensor_parallel_size": 1, "extra_args": []},
        "launch": {"name": "process"},
        "model": {"name": load.model, "path": None},
        "gpu": {"name": load.gpu, "count": 1, "price_usd_per_hour": load.price},
        "workload": {"name": load.workload, "seed": 0, "input_tokens": 100, "output_tokens": engine.tokens},
        "load": {"name": "quick", "concurrency": list(load.levels), "rate": None, "requests": load.requests},
        "slo": {"ttft_ms": load.slo.ttft_ms, "tpot_ms": load.slo.tpot_ms, "e2e_ms": load.slo.e2e_ms,
                "attainment": load.slo.attainment},
        "study": {"dir": "outputs", "name": None},
    }  # fmt: skip
    for key, value in load.config.items():
        group, _, name = key.partition(".")
        config.setdefault(group, {})[name] = value
    return {
        "schema_version": 2,
        "run_id": run_id,
        "title": f"{engine.name} · {load.model} · {load.workload}",
        "status": "finished",
        "started_s": START_NS / 1e9,
        "overrides": list(load.overrides),
        "engine_version": load.version,
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


Simulated = tuple[SimulatedEngine, SimulatedLoad]


def write_simulated_run(
    folder: RunFolder,
    engine: SimulatedEngine,
    load: SimulatedLoad,
    *,
    doubts: Sequence[Doubt] = (),
) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    run_id = f"{folder.path.parent.name}/{folder.name}"
    points, writer = [], RecordWriter(folder)
    for level in load.levels:
        for repeat in range(load.repeats * load.starts):
            name = f"c{level}" + (f"-r{repeat}" if load.repeats * load.starts > 1 else "")
            records = closed_loop(engine, load, level, repeat, run_id, name)
            points.append(point_of(records, engine, load, level, repeat, doubts))
            writer.append(records)
    writer.close()
    write_points(folder, points)
    folder.manifest.write_text(json.dumps(manifest_of(engine, load, run_id)))
    write_run(
        folder,
        RunState(run_id=run_id, title=f"{engine.name} · {load.model} · {load.workload}", overrides=load.overrides,
                 status="finished", started_s=START_NS / 1e9, ended_s=START_NS / 1e9 + 60),
    )  # fmt: skip


def write_simulated_study(outputs: Path, *runs: Simulated, name: str = "study", **options: Any) -> Path:
    study = StudyFolder(outputs / name)
    study.path.mkdir(parents=True, exist_ok=True)
    names = [f"{index:02d}_{engine.name}_{load.workload}" for index, (engine, load) in enumerate(runs)]
    write_study(study, StudyState(study_id=name, words=("demo",), runs=tuple(names), status="finished", ended_s=1.0))
    for run, (engine, load) in zip(names, runs, strict=True):
        write_simulated_run(study.run(run), engine, load, **options)
    return study.path
