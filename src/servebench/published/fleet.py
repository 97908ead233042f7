"""Estimate the machines needed to drive and store a number of tokens per second, from measured constants.

`docs/fleet.md` has the formulas, the source of each constant, and the limits of the estimate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from servebench.util import markdown
from servebench.util.units import NS_PER_S

CPU_US_PER_EVENT = 10.9
"""CPU time of a load worker per event: the worst of docs/performance.md at sustained loads (500 streams)."""
PARSE_US_PER_EVENT = 6.0
"""CPU time to parse an event after the measurement (docs/performance.md)."""
SUMMARY_GB_PER_MILLION = 0.092
"""Resident memory of a point's summary: 0.92 GB for ten million events (docs/performance.md)."""
WIRE_BYTES_PER_EVENT = 280
"""A streamed chunk of 211 bytes (vLLM) or 214 (SGLang), as the emulated servers send them, with the headers of a TCP
segment of its own (66 bytes with Ethernet)."""
SPOOL_BYTES_PER_EVENT = 214
KEPT_BYTES_PER_EVENT = 3
"""requests.parquet and answers.parquet: 2.7 and 3.0 bytes an event with 256 tokens a request."""
EVENTS_S_PER_WORKER = 20_000
"""One worker process was exact within 0.02 ms up to 22,190 events/s (docs/performance.md)."""
STREAMS_PER_WORKER = 2_000
"""As load.workers=auto distributes them."""
BUSY_MAX = 0.5
"""Highest share of a core or a network: above it, queueing disturbs the measurement."""
PORTS_PER_ADDRESS = 28_000
"""Connections from one address to one endpoint: Linux uses ports 32768 to 60999."""
REQUEST_BYTES = 400
BYTES_PER_TOKEN = 4.5
"""Size of a request: a fixed part, and English text."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The load. `tokens_per_event` is above 1 for engines that send several tokens at once."""

    tokens_s: float
    itl_ms: float = 30.0
    input_tokens: int = 1_000
    output_tokens: int = 256
    tokens_per_event: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Node:
    """A load machine: cores for load workers, network in Gbit/s, number of addresses."""

    cores: int = 16
    network_gbit_s: float = 10.0
    addresses: int = 1


def _row(title: str, shape: str = "") -> Any:
    """Declare a field as a row of the table, with the format of its value."""
    return field(metadata={"title": title, "format": shape})


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The estimate. `bound_by` is the resource that determines the number of nodes."""

    streams: int = _row("streams at once", ",.0f")
    events_s: float = _row("events/s", ",.0f")
    requests_s: float = _row("requests/s", ",.0f")
    down_gbit_s: float = _row("network to the clients, Gbit/s", ",.2f")
    up_gbit_s: float = _row("network from the clients, Gbit/s", ",.3f")
    spool_mb_s: float = _row("spool while it runs, MB/s in sum", ",.0f")
    kept_gb_h: float = _row("kept on disk, GB an hour", ",.1f")
    cpu_cores: float = _row("CPU of the load workers, cores", ",.1f")
    workers: int = _row("load workers", ",.0f")
    nodes: int = _row("nodes of 16 cores and 10 Gbit/s", ",.0f")
    bound_by: str = _row("what decides the nodes")
    parse_cores: float = _row("cores to parse as fast as it comes", ",.1f")
    summary_gb_per_minute: float = _row("memory to summarise a point of a minute, GB", ",.1f")


def fleet(demand: Demand, node: Node) -> Fleet:
    """Return the fleet for a demand. The number of streams is tokens/s times ITL, by Little's law (1961)."""
    events_s = demand.tokens_s / demand.tokens_per_event
    requests_s = demand.tokens_s / demand.output_tokens
    streams = math.ceil(demand.tokens_s * demand.itl_ms / 1000)
    down_bit_s = 8 * events_s * WIRE_BYTES_PER_EVENT
    up_bit_s = 8 * requests_s * (REQUEST_BYTES + BYTES_PER_TOKEN * demand.input_tokens)
    cpu_cores = events_s * CPU_US_PER_EVENT / 1e6
    workers = max(math.ceil(events_s / EVENTS_S_PER_WORKER), math.ceil(streams / STREAMS_PER_WORKER))
    needs = {
        "cores": max(cpu_cores / BUSY_MAX, float(workers)) / node.cores,
        "network": max(down_bit_s, up_bit_s) / (BUSY_MAX * node.network_gbit_s * NS_PER_S),
        "ports": streams / (PORTS_PER_ADDRESS * node.addresses),
    }
    bound_by = max(needs, key=lambda name: needs[name])
    return Fleet(
        streams=streams,
        events_s=events_s,
        requests_s=requests_s,
        down_gbit_s=down_bit_s / 1e9,
        up_gbit_s=up_bit_s / 1e9,
        spool_mb_s=events_s * SPOOL_BYTES_PER_EVENT / 1e6,
        kept_gb_h=3600 * events_s * KEPT_BYTES_PER_EVENT / 1e9,
        cpu_cores=cpu_cores,
        workers=workers,
        nodes=max(1, math.ceil(needs[bound_by])),
        bound_by=bound_by,
        parse_cores=events_s * PARSE_US_PER_EVENT / 1e6,
        summary_gb_per_minute=60 * events_s / 1e6 * SUMMARY_GB_PER_MILLION,
    )


def table(rates: Sequence[float]) -> str:
    """Return a Markdown table with a column for each rate in tokens/s, for an ITL of 30 ms, 1,000 tokens in and 256 out."""
    fleets = [fleet(Demand(tokens_s=rate), Node()) for rate in rates]
    rows = [
        [one.metadata["title"], *(format(getattr(found, one.name), one.metadata["format"]) for found in fleets)]
        for one in fields(Fleet)
    ]
    return "\n".join(markdown.table(["", *(f"{rate:,.0f} tokens/s" for rate in rates)], rows))
