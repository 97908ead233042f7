"""What a chart shows and what it is: series of points in, Vega-Lite specs out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servebench.contracts.level import Level
from servebench.contracts.point_row import POINT_COLUMNS, PointRow
from servebench.util.arrays import Floats

Spec = dict[str, Any]


def nominal(field: str, **more: Any) -> Spec:
    """Return the encoding of a field that holds names."""
    return {"field": field, "type": "nominal", **more}


def quantitative(field: str, **more: Any) -> Spec:
    """Return the encoding of a field that holds numbers."""
    return {"field": field, "type": "quantitative", **more}


@dataclass(frozen=True, kw_only=True)
class Series:
    """A run as the charts show it: a line called `name` in the panel of its workload, with the colour of its engine.

    `latencies` maps a load level to arrays of the successful requests by name (ttft_ms, itl_ms, e2e_ms).
    """

    name: str
    panel: str
    colour: int
    rows: Sequence[PointRow]
    gpu_count: int = 0
    latencies: Mapping[Level, Mapping[str, Floats]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One panel: a Vega-Lite spec without its outer frame, and the same in words for those who do not see it."""

    title: str
    spec: Spec
    words: str


@dataclass(frozen=True, kw_only=True)
class ChartSet:
    """Panels of one kind, one for each workload. `stats` are the percentiles between which the reader can switch; a `wide`
    set has one panel a row."""

    name: str
    title: str
    charts: Sequence[Chart]
    note: str = ""
    stats: Sequence[str] = ()
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class ChartMetric:
    """A metric over the load: its columns by percentile, or one column under the empty name. `slo` is the key of its limit."""

    name: str
    title: str
    axis: str
    columns: Mapping[str, str]
    slo: str = ""


STATS = ("p50", "p90", "p99")


def _latency(name: str, words: str) -> ChartMetric:
    return ChartMetric(
        name=name,
        title=f"{words} ({name.upper()})",
        axis=f"{name.upper()}, ms",
        columns={stat: f"{name}_ms_{stat}" for stat in STATS},
        slo=f"{name}_ms",
    )


def _plain(name: str, column: str) -> ChartMetric:
    found = POINT_COLUMNS[column]
    title = found.title[:1].upper() + found.title[1:]
    return ChartMetric(name=name, title=title, axis=found.heading, columns={"": column})


METRICS = (
    _plain("output_throughput", "output_throughput_tok_s"),
    _latency("ttft", "Time to first token"),
    _latency("tpot", "Time per output token"),
    _latency("itl", "Gap between tokens"),
    _latency("e2e", "Whole answer"),
    _plain("goodput", "goodput_req_s"),
    _plain("cost", "cost_usd_per_mtok"),
    _plain("energy", "energy_j_per_token"),
)
