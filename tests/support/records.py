"""Records of requests and of quality answers; a test names only the fields that matter to it."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pandas as pd
import pyarrow as pa

from servebench.analysis.evidence import PointEvidence
from servebench.contracts.exchange import PhaseReport
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import QualityRecord, Record
from servebench.contracts.settings import EngineSettings, GpuSettings, ModelSettings, SloSettings, WorkloadSettings
from servebench.load.plan.levels import plan_levels
from servebench.measure.points import PointSample, summarize
from servebench.registry.registry import registry
from servebench.store import tables
from support.settings import run_settings

SENT_NS = 1_760_000_000_000_000_000
MS = 1_000_000
HEADLINES = (
    *("output_throughput_tok_s", "ttft_ms_mean", "ttft_ms_p50", "ttft_ms_p95", "ttft_ms_p99", "ttfo_ms_mean"),
    *("itl_ms_mean", "itl_ms_p99", "tpot_ms_mean", "tpot_ms_p50", "e2e_ms_mean", "e2e_ms_p50", "e2e_ms_p95"),
)
"""The columns that get an interval: `_low` and `_high`."""


def requests_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Return records in the form in which `read_requests` returns stored ones."""
    schema = tables._schema("requests")
    columns = [pa.array(tables._values(records, name), schema.field(name).type) for name in schema.names]
    frame: pd.DataFrame = pa.table(columns, schema=schema).to_pandas(use_threads=False)
    return frame


def record(
    request_id: str = "r0", *, sent_ns: int | None = SENT_NS, event_ns: Sequence[int] | None = None, **changes: Any
) -> Record:
    """Return the record of a request that succeeded, with two content events 1 and 2 ms after it was sent.

    Stamps that are not given follow from `sent_ns` and `event_ns`.
    """
    start = sent_ns or 0
    stamps = list(event_ns) if event_ns is not None else [start + MS, start + 2 * MS]
    first, last = (stamps[0], stamps[-1]) if stamps else (None, None)
    fields: dict[str, Any] = {
        "run_id": "s/00", "point": "c1-r0", "request_id": request_id, "session_id": None, "warmup": False,
        "scheduled_ns": start, "connect_started_ns": None, "connected_ns": None, "sent_ns": sent_ns,
        "first_event_ns": first, "first_output_ns": first, "last_event_ns": last, "ended_ns": last or start,
        "event_ns": stamps, "event_tokens": None, "reads_merged": 0, "prompt_tokens": 10,
        "planned_prompt_tokens": 10, "cached_tokens": None, "reasoning_tokens": None, "output_tokens": len(stamps),
        "asked_output_tokens": None, "counted_by": "usage", "finish_reason": "stop", "outcome": "ok",
        "http_status": 200, "error": None, "stamp_source": "kernel",
    }  # fmt: skip
    return Record(**(fields | changes))


def record_ms(
    sent: float | None = 0, events: Sequence[float] | None = None, ended: float | None = None, **changes: Any
) -> Record:
    """Return a record whose stamps are given in milliseconds since 0."""
    if ended is not None:
        changes["ended_ns"] = round(ended * MS)
    return record(
        sent_ns=None if sent is None else round(sent * MS), event_ns=[round(at * MS) for at in events or ()], **changes
    )


def failed_record(request_id: str = "r0", outcome: str = "timeout", error: str = "no answer", **changes: Any) -> Record:
    fields: dict[str, Any] = {
        "event_ns": [], "output_tokens": None, "counted_by": None, "finish_reason": None, "http_status": None,
        "outcome": outcome, "error": error,
    }  # fmt: skip
    return record(request_id, **(fields | changes))


def phase_report(**changes: Any) -> PhaseReport:
    """Return the client's report on a phase that went well."""
    fields: dict[str, Any] = {
        "started_ns": 0, "ended_ns": 10**9, "planned": 3, "sent": 3, "elapsed_s": 2.0, "cpu_s": 0.5,
        "loop_lag_ms_p99": 0.25, "loop_lag_ms_max": 1.0, "clock_step_ns": 0, "stamp_source": "kernel",
    }  # fmt: skip
    return PhaseReport(**(fields | changes))


def phase_facts(**changes: Any) -> PhaseFacts:
    """Return the facts of a measured phase of a closed loop."""
    fields: dict[str, Any] = {
        "run_id": "s/00", "point": "c1-r0", "warmup": False, "concurrency": 1, "repeat": 0, "planned": {},
    }  # fmt: skip
    return PhaseFacts(**(fields | changes))


def point_evidence(**changes: Any) -> PointEvidence:
    """Return what a point is built from."""
    settings = changes.pop("settings", None) or run_settings()
    known: dict[str, Any] = {
        "settings": settings, "level": plan_levels(run_settings().load, 0)[0], "engine": registry().engine("vllm"),
        "emulated": False, "facts": phase_facts(), "report": phase_report(),
    }  # fmt: skip
    return PointEvidence(**(known | changes))


def summary_of(
    records: Sequence[Record], report: PhaseReport | None = None, slo: SloSettings | None = None, **changes: Any
) -> tuple[PointRow, PointSample]:
    """Return what `summarize` does of records; `changes` are facts of the phase, names of the settings' groups, the GPUs' number
    and price, and arguments."""
    facts = {one.name: changes.pop(one.name) for one in fields(PhaseFacts) if one.name in changes}
    count, price = changes.pop("gpu_count", 1), changes.pop("price_usd_per_hour", None)
    settings = run_settings(
        engine=EngineSettings(name=changes.pop("engine", "vllm")),
        model=ModelSettings(name=changes.pop("model", "m")),
        gpu=GpuSettings(name=changes.pop("gpu", "none"), count=count, price_usd_per_hour=price),
        workload=WorkloadSettings(name=changes.pop("workload", "unique")),
        slo=slo or SloSettings(),
    )
    facts = {"engine_version": "1.0", **facts}
    return summarize(records, phase_facts(**facts), report or phase_report(), settings, **changes)


def quality_records(benchmark: str, correct: Sequence[bool | None], **changes: Any) -> list[QualityRecord]:
    """Return graded answers to questions 0, 1, ...: right, wrong, or (None) without an answer."""
    return [
        QualityRecord(
            **{
                **{"run_id": "s/r", "benchmark": benchmark, "task": None, "item_id": f"{benchmark}-{index}"},
                **{"item_digest": "d", "point": None, "concurrency": 8, "rate": None, "correct": right},
                **{"score": None, "extracted": "A", "reference": "A", "answer": "A", "prompt": "?", "note": None},
                **{"detail": None, "outcome": "ok" if right is not None else "timeout", "http_status": 200},
                **{"error": None if right is not None else "timed out", "finish_reason": "stop"},
                **{"prompt_tokens": 5, "output_tokens": 1, "sent_ns": index * 10**9, "method": "m"},
                **{"ended_ns": index * 10**9 + 5 * 10**8, "latency_ms": 500.0, "api": "chat", "shots": 0},
                **{"seed": 0, "max_tokens": 8, "emulated": False},
                **changes,
            }
        )
        for index, right in enumerate(correct)
    ]
