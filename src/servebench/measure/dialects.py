"""The same records by the definitions of other load generators, and why each number differs.

Each tool reports on all requests that succeeded, from its first request to its last answer, where servebench reports on the
window in which the asked load was there. Beside that they differ in when the clock of a request starts and stops, in what
TPOT and ITL are, and in whose count of tokens they take. What is known of each, by version looked at:

| tool | clock starts | clock stops | tokens | TPOT | ITL |
|---|---|---|---|---|---|
| vllm (`vllm bench serve`) | before the connection | last content event | usage | (E2E - TTFT) / (n - 1) | every gap, pooled |
| sglang (`bench_serving`) | before the connection | end of the stream | usage, else the number asked for | (E2E - TTFT) / (n - 1) | every gap, pooled |
| aiperf | before the connection | last content event | its own tokenizer | - | (E2E - TTFT) / (n - 1), one a request |
| guidellm | first byte written | last content event | usage | E2E / n, the first token included | (last - first) / (n - 1), one a request |

What a stored record cannot tell again: a tool's own tokenizer (the stored count is used), and the cost of its own event loop.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from servebench.contracts.point_row import POINT_COLUMNS, PointRow
from servebench.measure.columns import gaps_ms, measured_rows, request_metrics
from servebench.util.arrays import Floats
from servebench.util.stretches import covered
from servebench.util.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class ToolDefinition:
    """How a tool measures; the defaults are servebench's own definitions."""

    name: str
    title: str
    starts: Literal["connect", "sent"] = "sent"
    stops: Literal["content", "stream"] = "content"
    tokens: Literal["usage", "asked"] = "usage"
    tpot: Literal["after_first", "all", "none"] = "after_first"
    itl: Literal["gaps", "per_request"] = "gaps"
    notes: tuple[str, ...] = ()


DIALECTS: Mapping[str, ToolDefinition] = {
    one.name: one
    for one in (
        ToolDefinition(
            name="vllm",
            title="vllm bench serve",
            starts="connect",
            notes=(
                "a request of one token has TPOT 0 in its goodput and so passes; here it is undetermined",
                "reasoning under the name reasoning_content is not looked at: TTFT then skips the thinking",
                "'peak concurrent requests' counts per second and can be above the concurrency asked for",
            ),
        ),
        ToolDefinition(
            name="sglang",
            title="sglang.bench_serving",
            starts="connect",
            stops="stream",
            tokens="asked",
            notes=(
                "it asks for no usage by default and then counts the tokens it asked for, not those that came",
                "E2E and TPOT hold the end of the stream, [DONE] included",
            ),
        ),
        ToolDefinition(
            name="aiperf",
            title="AIPerf",
            starts="connect",
            tpot="none",
            itl="per_request",
            notes=(
                "what it calls ITL is what others call TPOT; its inter-chunk latency is the ITL of servebench",
                "it counts tokens with its own tokenizer; the stored count stands in for it here",
                "its throughput ends with the last answer, so a slow last request lowers it",
            ),
        ),
        ToolDefinition(
            name="guidellm",
            title="GuideLLM",
            tpot="all",
            itl="per_request",
            notes=(
                "its TPOT holds the first token: at short outputs it is far above that of others",
                "its ITL is a mean for each request: a stall inside one cannot be seen",
            ),
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Retold:
    """A number by servebench's definition and window, by the same definition over the whole run, and by the tool's.

    `because` names what the tool defines otherwise.
    """

    metric: str
    unit: str
    own: float | None
    whole_run: float | None
    theirs: float | None
    because: str

    @property
    def by_window(self) -> float | None:
        """How much of the difference comes from the window, as a share of one's own number."""
        return _share(self.own, self.whole_run)

    @property
    def by_definition(self) -> float | None:
        """How much the definition changes the number of the whole run."""
        return _share(self.whole_run, self.theirs)


def _share(before: float | None, after: float | None) -> float | None:
    return after / before - 1 if before and after is not None else None


STATISTICS: tuple[tuple[str, Callable[[Floats], Any]], ...] = (
    ("mean", np.mean),
    ("p50", lambda values: np.percentile(values, 50)),
    ("p99", lambda values: np.percentile(values, 99)),
)


def retell(requests: pd.DataFrame, row: PointRow, dialect: ToolDefinition) -> list[Retold]:
    """Return a point's numbers by a tool's definitions. `requests` are the point's stored rows, `row` its row of points.csv.

    Empty when no request succeeded. Numbers that a tool does not have are left out. Pure.
    """
    measured = measured_rows(requests)
    ok = measured[(measured["outcome"] == "ok") & measured["sent_ns"].notna()]
    if ok.empty:
        return []
    ours, theirs = _latencies(ok, _OWN), _latencies(ok, dialect)
    ours["itl_ms"], theirs["itl_ms"] = gaps_ms(ok), gaps_ms(ok) if dialect.itl == "gaps" else theirs["itl_ms"]
    ours["tpot_ms"] = request_metrics(ok)["tpot_ms"].dropna().to_numpy(dtype=np.float64)
    found = _throughputs(measured, ok, row, dialect)
    for name, because in _becauses(dialect, several=bool((ok["event_tokens"].str[0].astype(float) > 1).any())).items():
        for statistic, reduce in STATISTICS if name in theirs and theirs[name].size else ():
            whole = float(reduce(ours[name])) if ours[name].size else None
            found[f"{name}_{statistic}"] = whole, float(reduce(theirs[name])), because
    return [
        Retold(
            metric=metric,
            unit=POINT_COLUMNS[metric].unit,
            own=row.get(metric),
            whole_run=whole,
            theirs=their,
            because=because,
        )
        for metric, (whole, their, because) in found.items()
    ]


_OWN = ToolDefinition(name="servebench", title="servebench")


def _numbers(frame: pd.DataFrame, column: str) -> Floats:
    found: Floats = frame[column].to_numpy(dtype=np.float64, na_value=np.nan)
    return found


def _tokens(ok: pd.DataFrame, dialect: ToolDefinition) -> Floats:
    counted = _numbers(ok, "output_tokens")
    if dialect.tokens == "asked":
        asked = _numbers(ok, "asked_output_tokens")
        return np.where(np.isnan(asked), counted, asked)
    return counted


def _latencies(ok: pd.DataFrame, dialect: ToolDefinition) -> dict[str, Floats]:
    """TTFT, TPOT, ITL (one a request) and E2E in ms, undefined ones left out."""
    sent, first, last = (_numbers(ok, name) for name in ("sent_ns", "first_event_ns", "last_event_ns"))
    connect = _numbers(ok, "connect_started_ns")
    start = np.where(np.isnan(connect), sent, connect) if dialect.starts == "connect" else sent
    stop = _numbers(ok, "ended_ns") if dialect.stops == "stream" else last
    tokens = _tokens(ok, dialect)
    several = tokens >= 2
    events = ok["event_ns"].str.len().fillna(0).to_numpy() >= 2
    decoding = (stop - first)[several & events] / NS_PER_MS / (tokens[several & events] - 1)
    found = {"ttft_ms": (first - start) / NS_PER_MS, "e2e_ms": (stop - start) / NS_PER_MS}
    if dialect.tpot == "after_first":
        found["tpot_ms"] = decoding
    elif dialect.tpot == "all":
        found["tpot_ms"] = (stop - start) / NS_PER_MS / np.where(tokens > 0, tokens, np.nan)
    found["itl_ms"] = decoding if dialect.itl == "per_request" else np.empty(0)
    return {name: values[~np.isnan(values)] for name, values in found.items()}


def _becauses(dialect: ToolDefinition, *, several: bool) -> dict[str, str]:
    """Return what the tool defines otherwise, by latency; `several`: a first event has more than one token."""
    connect = "starts before the connection is open" if dialect.starts == "connect" else ""
    stream = "stops at the end of the stream, not at the last content" if dialect.stops == "stream" else ""
    asked = "counts the tokens asked for, not those that came" if dialect.tokens == "asked" else ""
    first = "is the whole answer over all tokens, the first one included" if dialect.tpot == "all" else ""
    event = "counts the first event as one token" if several and dialect.tpot == "after_first" else ""
    mean = "is one mean for each request, not every gap" if dialect.itl == "per_request" else ""
    same = "the same definition"
    return {
        "ttft_ms": connect or same,
        "tpot_ms": "; ".join(filter(None, (first, event, stream, asked))) or same,
        "itl_ms": mean or same,
        "e2e_ms": "; ".join(filter(None, (connect, stream))) or same,
    }


def _throughputs(
    measured: pd.DataFrame, ok: pd.DataFrame, row: PointRow, dialect: ToolDefinition
) -> dict[str, tuple[float | None, float | None, str]]:
    """Return tokens and requests a second from the first request to the last answer, of the whole run and by the tool's
    definition, and what differs. Between slices a tool would not wait."""
    began, same = float(measured["sent_ns"].min()), "the same definition"
    spans = measured[["sent_ns", "ended_ns"]].dropna().to_numpy(dtype=np.int64).tolist()
    whole_ns = covered(spans) if row.slices else float(measured["ended_ns"].max()) - began
    whole_s = their_s = whole_ns / NS_PER_S
    tokens = "counts the tokens asked for" if dialect.tokens == "asked" else same
    if dialect.name == "aiperf":
        their_s -= (float(measured["ended_ns"].max()) - float(ok["last_event_ns"].max())) / NS_PER_S
        tokens = same = "ends with the last content of an answer that succeeded"

    def rate(amount: float, seconds: float) -> float | None:
        return float(amount / seconds) if seconds > 0 and not np.isnan(amount) else None

    own, theirs = _tokens(ok, _OWN).sum(), _tokens(ok, dialect).sum()
    return {
        "output_throughput_tok_s": (rate(own, whole_s), rate(theirs, their_s), tokens),
        "request_throughput_req_s": (rate(len(ok), whole_s), rate(len(ok), their_s), same),
    }
