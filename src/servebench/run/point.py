"""The one builder of points, for a point that was just measured and for one that is recovered from its files."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from servebench.analysis.disturbance import crowded_slices, disturbance_columns, disturbed_spans, find_disturbances
from servebench.analysis.drift import Drift, point_drifts, trend_columns, warmup_share
from servebench.analysis.evidence import PointEvidence
from servebench.analysis.serial import learned_prior
from servebench.analysis.statistics import headline_intervals
from servebench.analysis.warnings.catalog import SCHEMA_NOT_ENFORCED
from servebench.analysis.warnings.load import REQUESTS_MIN
from servebench.analysis.warnings.point import point_warnings
from servebench.contracts.engine import Engine
from servebench.contracts.noise import FLAT_PRIOR
from servebench.contracts.point_row import POINT_COLUMNS, PointRow
from servebench.contracts.precision import WINDOW_S_MIN
from servebench.contracts.request import Request
from servebench.contracts.results import Doubt, Point, Record
from servebench.contracts.settings import RunSettings
from servebench.contracts.telemetry import Reading
from servebench.measure.content import json_columns, needle_columns
from servebench.measure.in_flight import excess_and_freed
from servebench.measure.jobs import session_rows
from servebench.measure.points import summarize, with_intervals
from servebench.measure.window import steady_slices
from servebench.protocol.kinds.table import kind_named
from servebench.telemetry.columns import held_requests, telemetry_columns
from servebench.util.errors import EngineError
from servebench.util.proportions import wilson
from servebench.util.stretches import expanded, merged
from servebench.util.units import NS_PER_S
from servebench.workload.ideal_cache import ideal_columns, ideal_hits_of


def build_point(evidence: PointEvidence, *, unknown: Sequence[str] = (), extra: Sequence[Doubt] = ()) -> Point:
    """Return the point with all its columns and warnings. Pure.

    `unknown` names columns that this evidence cannot support: they are null. `extra` are warnings that need more than the
    evidence to detect.
    """
    evidence = replace(evidence, disturbances=find_disturbances(evidence.readings, evidence.pauses))
    row, drifts = _measured_row(evidence)
    row = _with_telemetry(row, evidence.records, evidence.readings)
    row = replace(
        row, **disturbance_columns(row, evidence.disturbances, evidence.records, evidence.readings, evidence.pauses)
    )
    ideal: dict[str, tuple[int, int]] = {}
    with suppress(EngineError):  # the engine that counts may be gone
        ideal = ideal_hits_of(evidence.requests, evidence.records, evidence.tokenizer) if evidence.tokenizer else {}
    row = replace(row, **content_columns(evidence.requests, evidence.records, ideal, row))
    lacks = kind_named(evidence.settings.workload.api).lacks
    nothing: dict[str, Any] = dict.fromkeys([*unknown, *(name for name in POINT_COLUMNS if name.startswith(lacks))])
    row = replace(row, **nothing, **_pooled_columns(row, evidence.settings))
    warnings = point_warnings(replace(evidence, row=row, drifts=drifts))
    doubts = (*warnings, *content_doubts(evidence.requests, evidence.engine), *extra)
    return Point(row=row, doubts=doubts, sessions=session_rows(evidence.measured, evidence.facts, ideal))


def _measured_row(evidence: PointEvidence) -> tuple[PointRow, Mapping[str, Drift]]:
    level, report, facts = evidence.level, evidence.report, evidence.facts
    summary = partial(
        summarize,
        *(evidence.records, facts, report, evidence.settings),
        offered_req_s=level.offered_req_s,
        floor=evidence.floor,
        disturbed=(disturbed := disturbed_spans(evidence.disturbances, report.started_ns, report.ended_ns)),
        crowded=crowded_slices(evidence.readings, steady_slices(facts, report), disturbed),
    )
    row, sample = summary()
    drifts = point_drifts(sample, open_loop=level.open_loop)
    cut_s = None if replace(evidence, row=row).disturbed_out_ns else warmup_share(drifts) * sample.window_s
    start_ns = row.window_start_ns or 0
    # a change caused by other processes is not a warm-up
    if cut_s and not merged(disturbed, start_ns, round(expanded(start_ns + round(cut_s * NS_PER_S), row.left_out))):
        steady, rest = summary(cut_s=cut_s)
        if (steady.ttft_ms_n or 0) >= REQUESTS_MIN and (steady.window_s or 0.0) >= WINDOW_S_MIN:
            row, sample = replace(steady, warmup_cut_s=cut_s), rest
            drifts = point_drifts(sample, open_loop=level.open_loop)
    # a point that ends by time, or when it is precise, was meant to send what it came to, unless its arrivals were known
    fixed = level.requests is not None or (level.open_loop and not level.targets)
    planned = 0 if facts.warmup else report.planned if fixed else report.sent
    more: dict[str, Any] = {**trend_columns(drifts), "requests_planned": planned, "emulated": evidence.emulated}
    more["interval_prior"] = facts.noise_from or FLAT_PRIOR
    intervals = headline_intervals(sample, prior=learned_prior(facts.wander))
    return with_intervals(replace(row, **more), intervals), drifts


def _pooled_columns(row: PointRow, settings: RunSettings) -> dict[str, Any]:
    """Return the rates of texts that are embedded or ranked: each request has a batch of them. Null for other workloads."""
    each, rate = getattr(settings.workload, "batch_size", None), row.request_throughput_req_s
    if each is None or rate is None:
        return {}
    tokens_s = None if row.input_tokens_mean is None else row.input_tokens_mean * rate
    return {"input_throughput_texts_s": each * rate, "input_throughput_tok_s": tokens_s}


def _with_telemetry(row: PointRow, records: Sequence[Record], readings: Sequence[Reading]) -> PointRow:
    """Return the row with its telemetry and what follows from it: cache hits that answers do not report, energy per token."""
    excess, freed = excess_and_freed(records, held_requests(readings), row.window_start_ns, row.window_end_ns)
    row = replace(
        row,
        **telemetry_columns(readings, row.window_start_ns, row.window_end_ns, row.left_out),
        server_excess_requests_mean=excess,
        cancelled_freed=freed,
    )
    if row.prefix_cache_hit_rate is None:
        row = replace(row, prefix_cache_hit_rate=row.server_prefix_cache_hit_rate)
    tokens = (row.output_throughput_tok_s or 0.0) * (row.window_s or 0.0)
    if row.energy_j is None or not tokens:
        return row
    return replace(
        row,
        energy_j_per_token=row.energy_j / tokens,
        output_tok_s_per_w=tokens / row.energy_j if row.energy_j else None,
    )


def content_columns(
    requests: Sequence[Request], records: Sequence[Record], ideal: Mapping[str, tuple[int, int]], row: PointRow
) -> dict[str, Any]:
    """Return the columns that follow from prompts and answers; `_low` and `_high` are Wilson intervals. `ideal` are the hits that
    the best cache would have, by request."""
    columns: dict[str, Any] = {
        **json_columns(records, requests),
        **needle_columns(records, requests),
        **ideal_columns(ideal, records, row),
    }
    share, count = columns.get("json_compliance"), columns.get("json_compliance_n")
    if share is not None and count:
        columns["json_compliance_low"], columns["json_compliance_high"] = wilson(round(share * count), count)
    return columns


def content_doubts(requests: Sequence[Request], engine: Engine) -> list[Doubt]:
    """Return warnings about answers whose content cannot be what the workload requests."""
    if engine.dialect.json_schema or not any(request.schema is not None for request in requests):
        return []
    return [
        SCHEMA_NOT_ENFORCED.issue(
            f"{engine.name} does not enforce JSON schemas, so none was sent: json_compliance describes answers that at most "
            "had the schema in their prompt"
        )
    ]
